//! Compares the loop on the CPU with the same steps in the interpreter.

use super::*;
use data::Batch;
use ir::Tensor;
use ir::interp::{self, Mode, StateValues};
use std::collections::BTreeMap;

fn tensors(module: &Module, batch: &Batch) -> BTreeMap<String, Tensor> {
    let tensor = |input: &ir::Input| {
        let bytes = &batch.tensors[&input.name].bytes;
        (input.name.clone(), Tensor::from_bytes(module.ty(input.value), bytes).unwrap())
    };
    module.inputs.iter().map(tensor).collect()
}

/// Returns the mean loss over the held-out data with these states.
fn evaluated(forward: &Module, module: &Module, states: &StateValues, loader: &Loader) -> f64 {
    let value = |name: &str| module.states.iter().find(|(_, state)| state.name == name).unwrap().0;
    let mut shared: StateValues =
        forward.states.iter().map(|(id, state)| (id, states[&value(&state.name)].clone())).collect();
    let (mut sum, mut weight) = (0.0, 0.0);
    for batch in loader.eval_batches() {
        let inputs = [tensors(forward, &batch.whole())];
        let outputs = interp::step(forward, Mode::Exact, &mut shared, &inputs).unwrap();
        sum += outputs["loss.sum"][0].item();
        weight += outputs["loss.weight"][0].item();
    }
    sum / weight
}

#[test]
fn losses_rates_and_eval_losses_are_the_interpreters() {
    let mut run = setup();
    (run.microbatches, run.schedule.eval_every) = (2, Some(10));
    let outcome = run.go().unwrap();
    let (module, loader) = (run.train_module(), run.loader());
    let forward = run.module(include_str!("bigram.forward.ir"), &[]);
    let mut states = interp::initial_states(&module, 3, Missing::Refuse).unwrap();
    let mut eval_losses = vec![evaluated(&forward, &module, &states, &loader)];
    for (step, metrics) in run.metrics().iter().enumerate() {
        let batch = loader.global_batch(step as u64);
        let microbatches = [0, 1].map(|index| tensors(&module, &batch.microbatch(index, 2)));
        let outputs = interp::step(&module, Mode::Exact, &mut states, &microbatches).unwrap();
        for (name, found) in [("loss", metrics.loss), ("lr", metrics.lr), ("grad_norm", metrics.grad_norm)] {
            let expected = outputs[name][0].item();
            assert!((found - expected).abs() < 1e-4, "{name} of step {step}: {found} and {expected}");
        }
        if let Some(found) = metrics.eval_loss {
            eval_losses.push(evaluated(&forward, &module, &states, &loader));
            assert!((found - eval_losses.last().unwrap()).abs() < 1e-4);
        }
    }
    assert_eq!(eval_losses.len(), 3);
    assert!((outcome.initial_eval_loss.unwrap() - eval_losses[0]).abs() < 1e-5);
    assert!((outcome.eval_loss.unwrap() - eval_losses[2]).abs() < 1e-4);
}
