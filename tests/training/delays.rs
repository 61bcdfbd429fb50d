//! Several steps of asynchronous schedules, compared with steps of the program without stages, whose weights are delayed by hand here.

use ir::tensor::Elements;
use ir::{Role, StepOutput, Tensor};
use passes::optimizer::{Algorithm, Optimizer};
use passes::stage::Stage;
use std::collections::BTreeMap;
use testing::models::{self, done};
use trainyard::pipeline::{Batch, CompilationPlan};
use trainyard::verification::execute::{Machine, Tensors};
use trainyard::verification::{Mode, Subject, inputs};

const RATE: f64 = 0.0625;
const STEPS: u64 = 5;
const SAMPLES: u64 = 2;

/// The model, with stages or without.
fn subject(stage: Option<Stage>) -> Subject {
    let optimizer = Optimizer {
        algorithm: Algorithm::Sgd { momentum: 0.0, nesterov: false },
        lr: RATE,
        ..Optimizer::default()
    };
    let microbatches = stage.as_ref().map_or(1, |stage| u64::from(stage.microbatches));
    let batch = Batch { global: Some(SAMPLES * microbatches), data_ranks: 1 };
    models::LLAMA_DYNAMO
        .compiled(SAMPLES, CompilationPlan { optimizer, stage, batch, ..CompilationPlan::default() })
}

/// One tensor plus a multiple of another.
fn plus(tensor: &Tensor, factor: f64, other: &Tensor) -> Tensor {
    let mut sum = tensor.clone();
    if let Elements::Float(numbers) = &mut sum.elements {
        numbers.iter_mut().zip(other.numbers()).for_each(|(number, other)| *number += factor * other);
    }
    sum
}

/// The weights after some steps, computed without the pass `delay`: each step takes the gradient at weights of an earlier update. The
/// learning rate is a power of two, which every float type has. Before step 0, version k is that of [`Machine`]: the state
/// times 1 + k/16.
fn by_hand(plain: &Subject, delays: &BTreeMap<String, u32>, microbatches: u64) -> Tensors {
    let module = &plain.compilation.training;
    // The versions of each weight, the newest first.
    let mut versions: BTreeMap<&String, Vec<Tensor>> = BTreeMap::new();
    for (name, delay) in delays {
        let newest = &plain.start[name];
        let ages = (0..=*delay).map(|age| plus(newest, f64::from(age) / 16.0, newest).rounded()).collect();
        versions.insert(name, ages);
    }
    for step in 0..STEPS {
        let mut start = plain.start.clone();
        for (&name, ages) in &versions {
            start.insert(name.clone(), ages[ages.len() - 1].clone());
        }
        let inputs = done(inputs::draw(&plain.compilation.forward, step, microbatches));
        let ended = done(done(Machine::new(module, Mode::Exact, inputs.len(), &start)).last_step(&inputs));
        for (&name, ages) in &mut versions {
            let gradient = &ended.outputs[&StepOutput::Gradient(name).to_string()][0];
            let newest = plus(&ages[0], -RATE, gradient);
            ages.insert(0, newest);
            ages.pop();
        }
    }
    versions.into_iter().map(|(name, ages)| (name.clone(), ages[0].clone())).collect()
}

fn check(schedule: &str, ranks: u32, microbatches: u32, delay: impl Fn(u32) -> u32) {
    let schedule = schedule.parse().expect("a schedule");
    let stage = Stage { microbatches, ..Stage::new(ranks, Some(schedule)) };
    let (delayed, plain) = (subject(Some(stage)), subject(None));
    let module = &delayed.compilation.training;
    let trained = module.states.values().filter(|state| state.role == Role::Parameter);
    let delays = trained.map(|state| (state.name.clone(), delay(state.stage))).collect();
    let expected = by_hand(&plain, &delays, microbatches.into());
    for (mode, tolerance) in [(Mode::Exact, 1e-9), (Mode::On(cpu::TARGET), 1e-4)] {
        let mut machine = done(Machine::new(module, mode, microbatches as usize, &delayed.start));
        let mut states = Tensors::new();
        for step in 0..STEPS {
            let inputs = done(inputs::draw(&delayed.compilation.forward, step, microbatches.into()));
            states = done(machine.step(&inputs)).states;
        }
        for (name, expected) in &expected {
            let largest =
                expected.numbers().iter().fold(0.0, |largest: f64, number| largest.max(number.abs()));
            let pairs = states[name].numbers().into_iter().zip(expected.numbers());
            let error = pairs.fold(0.0, |error: f64, (a, b)| error.max((a - b).abs()));
            assert!(error <= tolerance * largest, "{mode:?} {name}: {error} of {largest}");
        }
    }
}

#[test]
fn each_stage_of_pipedream_trains_with_the_weights_of_its_delay() {
    check("pipedream", 4, 1, |stage| 3 - stage);
}

#[test]
fn every_stage_of_2bw_trains_with_the_weights_before_the_last_update() {
    check("2bw", 2, 3, |_| 1);
}
