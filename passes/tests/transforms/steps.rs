//! Whole steps of small training programs in the interpreter: microbatches, schedules, clipping, decay, frozen parameters.

use ir::interp::{self, Missing, Mode, StateValues, StepOutputs};
use ir::{Blob, DType, Module, Tensor, random};
use passes::optimizer::schedule::{Curve, Schedule};
use passes::{Manager, PassContext, Pipeline};
use std::collections::BTreeMap;

/// Returns a classifier of `batch` sequences of two positions: an embedding and a biased matrix, as an importer leaves it.
fn classifier(batch: usize) -> Module {
    let text = format!(
        "trainyard-ir 1
module @classifier imported {{
  data @0 \"table\" : f64[7, 4]
  data @1 \"head.weight\" : f64[5, 4]
  data @2 \"head.bias\" : f64[5]
  func @forward(%0 \"tokens\" batched : i64[{batch}, 2]) {{
    %1 = constant {{data = @0}} : f64[7, 4] !{{fwd}}
    %2 = constant {{data = @1}} : f64[5, 4] !{{fwd}}
    %3 = constant {{data = @2}} : f64[5] !{{fwd}}
    %4 = gather %1, %0 {{dim = 0}} : f64[{batch}, 2, 4] !{{fwd}}
    %5 = tanh %4 : f64[{batch}, 2, 4] !{{fwd}}
    %6 = contract %5, %2 {{lhs = abk, rhs = ck, out = abc}} : f64[{batch}, 2, 5] !{{fwd}}
    %7 = add %6, %3 : f64[{batch}, 2, 5] !{{fwd}}
  }}
  output \"logits\" = %7
}}"
    );
    let mut module = ir::text::parse(&text).expect("the text is a program");
    for data in module.data.values_mut() {
        let sizes: Vec<usize> =
            data.ty.sizes().expect("bound").into_iter().map(|size| size as usize).collect();
        let stream = random::stream(&data.name);
        let elements =
            (0..sizes.iter().product()).map(|i: usize| random::normal(3, stream, i as u64)).collect();
        data.blob = Blob::File(Some(Tensor::float(DType::F64, sizes, elements).to_bytes().into()));
    }
    module
}

fn compile(mut module: Module, pipeline: &str) -> Module {
    let pipeline: Pipeline = pipeline.parse().expect("the pipeline is well written");
    let mut cx = PassContext::default();
    Manager::default().run(&pipeline, &mut module, &mut cx, |_, _, _| {}).expect("the passes succeed");
    module
}

/// Returns eight samples with labels. Unequal numbers of them count.
fn samples() -> Vec<([i64; 2], [i64; 2])> {
    let labels = [[0, -100], [1, 2], [-100, -100], [3, 4], [-100, 0], [1, 1], [2, -100], [4, 3]];
    labels
        .into_iter()
        .enumerate()
        .map(|(i, labels)| ([i as i64 % 7, (3 * i as i64 + 1) % 7], labels))
        .collect()
}

/// Returns the eight samples in microbatches of `batch`.
fn microbatches(batch: usize) -> Vec<BTreeMap<String, Tensor>> {
    let tensor = |rows: Vec<[i64; 2]>| Tensor::int(DType::I64, vec![batch, 2], rows.concat());
    let microbatch = |part: &[([i64; 2], [i64; 2])]| {
        let tokens = tensor(part.iter().map(|(tokens, _)| *tokens).collect());
        let labels = tensor(part.iter().map(|(_, labels)| *labels).collect());
        BTreeMap::from([("tokens".to_string(), tokens), ("labels".to_string(), labels)])
    };
    samples().chunks(batch).map(microbatch).collect()
}

/// Runs steps on the same eight samples. Returns the outputs of each step, and the final states by name.
fn train(module: &Module, batch: usize, steps: usize) -> (Vec<StepOutputs>, BTreeMap<String, Tensor>) {
    let mut states: StateValues =
        interp::initial_states(module, 0, Missing::Refuse).expect("the weights are here");
    let microbatches = microbatches(batch);
    let step = |_| interp::step(module, Mode::Exact, &mut states, &microbatches).expect("the program runs");
    let outputs = (0..steps).map(step).collect();
    let named = states.into_iter().map(|(id, tensor)| (module.states[id].name.clone(), tensor));
    (outputs, named.collect())
}

fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
    a.numbers().iter().zip(b.numbers()).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max)
}

const TRAIN: &str = "fold parameters loss autodiff";

#[test]
fn microbatches_of_any_size_give_the_same_step() {
    let pipeline =
        format!("{TRAIN} optimizer(adamw, lr=0.01, weight-decay=0.1, clip=0.5, keep-gradients) simplify");
    let [whole, half, single] =
        [8, 4, 1].map(|batch| train(&compile(classifier(batch), &pipeline), batch, 2));
    for other in [half, single] {
        for (a, b) in whole.0.iter().zip(&other.0) {
            for name in ["loss", "grad_norm", "grad.table", "grad.head.weight", "grad.head.bias"] {
                assert!(largest_difference(&a[name][0], &b[name][0]) < 1e-13, "{name}");
            }
        }
        for (name, tensor) in &whole.1 {
            assert!(largest_difference(tensor, &other.1[name]) < 1e-12, "{name}");
        }
    }
}

#[test]
fn the_loss_is_the_mean_over_the_labels_that_count() {
    let module = compile(classifier(4), TRAIN);
    let (outputs, _) = train(&module, 4, 1);
    let sums: f64 = outputs[0]["loss.sum"].iter().map(Tensor::item).sum();
    let weights: f64 = outputs[0]["loss.weight"].iter().map(Tensor::item).sum();
    assert_eq!(weights, 11.0);
    assert!((outputs[0]["loss"][0].item() - sums / weights).abs() < 1e-14);
}

#[test]
fn a_batch_without_a_label_that_counts_changes_nothing() {
    let module = compile(classifier(4), &format!("{TRAIN} optimizer(sgd, lr=0.5)"));
    let mut states = interp::initial_states(&module, 0, Missing::Refuse).expect("the weights are here");
    let before = states.clone();
    let mut microbatch = microbatches(4).remove(0);
    microbatch.insert("labels".into(), Tensor::splat(DType::I64, vec![4, 2], -100.0));
    let outputs = interp::step(&module, Mode::Exact, &mut states, &[microbatch]).expect("the program runs");
    assert_eq!(outputs["loss"][0].item(), 0.0);
    assert_eq!(outputs["grad_norm"][0].item(), 0.0);
    for (id, state) in module.states.iter().filter(|(_, state)| state.name != "step") {
        assert_eq!(states[&id], before[&id], "{}", state.name);
    }
}

#[test]
fn the_rate_of_every_step_follows_its_formula() {
    for (curve, _) in Curve::ALL {
        let word = Curve::ALL.iter().find(|(known, _)| *known == curve).expect("every curve has a name").1;
        for warmup in [0, 3] {
            let optimizer = format!("optimizer(sgd, lr=0.2, {word}, warmup={warmup}, min=0.01, steps=8)");
            let module = compile(classifier(8), &format!("{TRAIN} {optimizer} simplify"));
            let schedule = Schedule { curve, warmup, min: 0.01, steps: 8, decay: 0 };
            for (step, outputs) in train(&module, 8, 12).0.iter().enumerate() {
                let rate = outputs["lr"][0].item();
                assert!((rate - schedule.rate(0.2, step as u64)).abs() < 1e-15, "{optimizer}, step {step}");
            }
        }
    }
    let cosine = Schedule { curve: Curve::Cosine, warmup: 2, min: 0.1, steps: 6, decay: 0 };
    let rates: Vec<f64> = (0..8).map(|step| cosine.rate(1.0, step)).collect();
    let half = |x: f64| 0.1 + 0.9 * 0.5 * (1.0 + x);
    let root = std::f64::consts::FRAC_1_SQRT_2;
    let expected = [0.5, 1.0, 1.0, half(root), half(0.0), half(-root), 0.1, 0.1];
    assert!(rates.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-15), "{rates:?}");
    let stable = Schedule { curve: Curve::WarmupStableDecay, warmup: 2, min: 0.2, steps: 8, decay: 4 };
    let rates: Vec<f64> = (0..10).map(|step| stable.rate(1.0, step)).collect();
    let expected = [0.5, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2];
    assert!(rates.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-15), "{rates:?}");
}

#[test]
fn clipping_scales_all_gradients_to_one_norm() {
    let run = |clip: &str| {
        let module = compile(classifier(8), &format!("{TRAIN} optimizer(sgd, lr=1{clip}, keep-gradients)"));
        let initial = interp::initial_states(&module, 0, Missing::Refuse).expect("the weights are here");
        let (outputs, after) = train(&module, 8, 1);
        let moved: f64 = module
            .states
            .iter()
            .filter(|(_, state)| state.name != "step")
            .map(|(id, state)| {
                let (old, new) = (initial[&id].floats(), after[&state.name].floats());
                old.iter().zip(new).map(|(a, b)| (a - b).powi(2)).sum::<f64>()
            })
            .sum();
        (outputs[0]["grad_norm"][0].item(), moved.sqrt())
    };
    let (norm, moved) = run("");
    assert!((norm - moved).abs() < 1e-12 && norm > 0.1, "{norm} {moved}");
    let (same_norm, clipped) = run(", clip=0.05");
    assert_eq!(norm, same_norm);
    assert!((clipped - 0.05 * norm / (norm + 1e-6)).abs() < 1e-12, "{clipped}");
    assert_eq!(run(", clip=100").1, moved);
}

#[test]
fn adamw_moves_as_its_formula_says() {
    let optimizer = "optimizer(adamw, lr=0.1, weight-decay=0.5, eps=1e-3, keep-gradients)";
    let module = compile(classifier(8), &format!("{TRAIN} {optimizer}"));
    let (outputs, after) = train(&module, 8, 2);
    let initial = interp::initial_states(&module, 0, Missing::Refuse).expect("the weights are here");
    for (name, decay) in [("table", 0.5), ("head.weight", 0.5), ("head.bias", 0.0)] {
        let id = module.state(name).expect("it is a parameter");
        for i in 0..initial[&id].len() {
            let (mut p, mut m, mut v) = (initial[&id].floats()[i], 0.0, 0.0);
            for (t, outputs) in outputs.iter().enumerate() {
                let g = outputs[&format!("grad.{name}")][0].floats()[i];
                m = 0.9 * m + 0.1 * g;
                v = 0.999 * v + 0.001 * g * g;
                let correct = |moment: f64, beta: f64| moment / (1.0 - beta.powi(t as i32 + 1));
                p = p * (1.0 - 0.1 * decay) - 0.1 * correct(m, 0.9) / (correct(v, 0.999).sqrt() + 1e-3);
            }
            assert!((p - after[name].floats()[i]).abs() < 1e-12, "{name}[{i}]");
        }
    }
}

#[test]
fn frozen_parameters_stay_and_the_others_move() {
    let pipeline =
        "fold parameters(freeze=head.*) loss autodiff optimizer(adamw, lr=0.1, weight-decay=0.1, decay-all)";
    let module = compile(classifier(8), pipeline);
    let initial = interp::initial_states(&module, 0, Missing::Refuse).expect("the weights are here");
    let (_, after) = train(&module, 8, 2);
    for (id, state) in module.states.iter().filter(|(_, state)| initial_is_data(state)) {
        let moved = largest_difference(&initial[&id], &after[&state.name]) > 0.0;
        assert_eq!(moved, state.name == "table", "{}", state.name);
    }
}

fn initial_is_data(state: &ir::State) -> bool {
    matches!(state.initializer, ir::Initializer::Data(_))
}

#[test]
fn simplify_changes_no_step() {
    let pipeline = format!("{TRAIN} optimizer(nesterov, lr=0.1, weight-decay=0.1, cosine, steps=5, clip=1)");
    let (plain, simple) =
        (compile(classifier(4), &pipeline), compile(classifier(4), &format!("{pipeline} simplify")));
    assert!(simple.order().len() < plain.order().len());
    let ((outputs, states), (simple_outputs, simple_states)) = (train(&plain, 4, 3), train(&simple, 4, 3));
    for (name, tensor) in &states {
        assert!(largest_difference(tensor, &simple_states[name]) < 1e-14, "{name}");
    }
    for (a, b) in outputs.iter().zip(&simple_outputs) {
        assert!(a.iter().all(|(name, tensors)| largest_difference(&tensors[0], &b[name][0]) < 1e-14));
    }
}
