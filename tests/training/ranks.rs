//! Local ranks of the CPU backend compared with one device: near the exact step on any mesh, and with the same bits in every stage of ZeRO.

use ir::relative_error::{largest, relative_error};
use ir::{Module, Tensor};
use passes::optimizer::Optimizer;
use passes::registry::Pass;
use passes::{Manager, PassContext, Pipeline};
use std::collections::BTreeMap;
use testing::models::configurations::{Configuration, pairwise};
use testing::models::{self, Fixture, adamw, done, momentum};
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::Mode;
use trainyard::verification::compare::FLOOR;
use trainyard::verification::execute::{Machine, Tensors};
use trainyard::verification::{Subject, inputs};

/// Samples of the global batch.
const GLOBAL: u64 = 12;

const STEPS: u64 = 3;

#[test]
fn mlp_trains_on_local_ranks_as_on_one_device() {
    check(&models::MLP_DYNAMO);
}

#[test]
fn gpt2_trains_on_local_ranks_as_on_one_device() {
    check(&models::GPT2_DYNAMO);
}

#[test]
fn llama_trains_on_local_ranks_as_on_one_device() {
    check(&models::LLAMA_DYNAMO);
}

#[test]
fn bert_trains_on_local_ranks_as_on_one_device() {
    check(&models::BERT_DYNAMO);
}

/// The outputs of several steps, and the states after them.
#[derive(Debug, PartialEq)]
struct StepOutcomes {
    /// The loss and the gradients of each step.
    outputs: Vec<Tensors>,
    states: Tensors,
}

/// Runs steps of a subject's program, which may have been split since, on the same samples for any number of microbatches.
fn run(subject: &Subject, module: &Module, mode: Mode) -> StepOutcomes {
    let batch = module
        .inputs
        .iter()
        .find(|input| input.batched)
        .and_then(|input| module.ty(input.value).dims[0].size());
    let microbatches = GLOBAL / batch.expect("a bound batch");
    let mut machine = done(Machine::new(module, mode, microbatches as usize, &subject.start));
    let mut run = StepOutcomes { outputs: vec![], states: Tensors::new() };
    for step in 0..STEPS {
        let inputs = done(inputs::draw(&subject.compilation.forward, step, microbatches));
        let executed = done(machine.step(&inputs));
        run.outputs.push(executed.last_outputs(|name| name == "loss" || name.starts_with("grad.")));
        run.states = executed.states;
    }
    run
}

/// The subject's program after the passes that a mesh adds.
fn split(subject: &Subject, configuration: Configuration) -> Module {
    let plan = CompilationPlan { spmd: configuration.spmd(), ..CompilationPlan::default() };
    let mut passes = plan.training().passes;
    let spmd = passes.iter().position(|pass| matches!(pass, Pass::Spmd(_))).expect("a mesh is split over");
    let pipeline = Pipeline { passes: passes.split_off(spmd) };
    let (mut module, mut cx) = (subject.compilation.training.clone(), PassContext::default());
    let ran = Manager::default().run(&pipeline, &mut module, &mut cx, |_, _, _| {});
    ran.unwrap_or_else(|failure| panic!("{configuration:?}: {failure}"));
    assert_eq!(module.mesh.devices(), configuration.dp * configuration.tp);
    module
}

fn check(fixture: &Fixture) {
    // Gradient descent does not amplify rounding. Adam divides by it where a gradient is zero but for rounding. Then a state, and later
    // gradients, are only as near as the learning rate is small.
    let descent = Optimizer { lr: 0.01, ..momentum() };
    check_with(fixture, &descent, &pairwise(4), 1e-5, 1e-5);
    let few = [(2, 1, 1, 3), (1, 2, 0, 1), (2, 2, 3, 3)];
    let few = few.map(|(dp, tp, zero, microbatches)| Configuration {
        sequence_parallel: tp > 1,
        ..Configuration { dp, tp, zero, microbatches, sequence_parallel: false }
    });
    check_with(fixture, &adamw(), &few, 5e-3, 5e-3);
}

/// Checks that losses, and the gradients of the first step, are within 1e-5 of one device's in f64. Later gradients, and the states after
/// the last step, have tolerances of their own.
fn check_with(
    fixture: &Fixture,
    optimizer: &Optimizer,
    configurations: &[Configuration],
    later: f64,
    states: f64,
) {
    let subjects = [1, 3].map(|count| (count, fixture.subject(GLOBAL / count, optimizer.clone())));
    let alone = &subjects[0].1;
    let whole = run(alone, &alone.compilation.training, Mode::Exact);
    for &configuration in configurations {
        let what = format!("{} {configuration:?}", fixture.file);
        let cut = subjects.iter().find(|(count, _)| *count == configuration.microbatches);
        let (_, subject) = cut.expect("in one or in three");
        let ranks = run(subject, &split(subject, configuration), Mode::On(cpu::TARGET));
        let mut outputs = 0.0f64;
        for (step, (given, expected)) in ranks.outputs.iter().zip(&whole.outputs).enumerate() {
            let loss = (given["loss"].item() - expected["loss"].item()).abs();
            assert!(loss <= 1e-5, "{what}: the loss of step {step} is {loss:e} off");
            let tolerance = if step == 0 { 1e-5 } else { later };
            outputs = outputs.max(worst(&what, tolerance, given, expected)).max(loss);
        }
        let states = worst(&what, states, &ranks.states, &whole.states);
        println!("{what}: loss and gradients {outputs:.1e}, states {states:.1e}");
    }
}

/// Returns the largest error of some tensors, which must be within the tolerance. Tensors of one kind, such as `adam.m(…)`, have a common
/// floor. Tensors below it are zero but for rounding, as the gradient of a key's bias is.
pub(super) fn worst(what: &str, tolerance: f64, given: &Tensors, expected: &Tensors) -> f64 {
    assert!(given.keys().eq(expected.keys()) && given.len() > 6, "{what}: other names");
    let kind = |name: &str| match name.split_once('(') {
        Some((slot, _)) => slot.to_owned(),
        None => if name.starts_with("grad.") { "gradient" } else { "parameter" }.to_owned(),
    };
    let mut floors: BTreeMap<String, f64> = BTreeMap::new();
    for (name, tensor) in expected.iter().filter(|(_, tensor)| tensor.len() > 1) {
        let floor = floors.entry(kind(name)).or_default();
        *floor = floor.max(FLOOR * largest([tensor]));
    }
    let mut worst = 0.0f64;
    for (name, expected) in expected {
        let floor = floors.get(&kind(name)).copied().unwrap_or_default();
        let apart = relative_error(&given[name], expected, floor);
        let tolerance = if largest([expected]) < floor { 10.0 * tolerance } else { tolerance };
        assert!(apart <= tolerance, "{what}: `{name}` is {apart:e} off");
        worst = worst.max(apart);
    }
    worst
}

#[test]
#[ignore = "longer"]
fn every_stage_of_zero_has_the_same_bits_where_sums_have_the_same_addends() {
    for (fixture, meshes) in [
        (&models::MLP_DYNAMO, &[(2, 1), (4, 1), (2, 2)][..]),
        (&models::GPT2_DYNAMO, &[(2, 2)]),
        (&models::LLAMA_DYNAMO, &[(4, 1)]),
        (&models::BERT_DYNAMO, &[(2, 1), (2, 2)]),
    ] {
        for &(dp, tp) in meshes {
            check_stages(fixture, dp, tp, 1, None);
            check_stages(fixture, dp, tp, 3, Some(0.1));
        }
    }
}

/// Checks that all stages have the same bits, except for two differences: stages 0 and 1 sum a rank's microbatches before ranks, and 2 and
/// 3 sum ranks before microbatches; and a norm is the sum of each rank's squares, which differ if gradients are split.
fn check_stages(fixture: &Fixture, dp: u64, tp: u64, microbatches: u64, clip: Option<f64>) {
    let what = format!("{} dp={dp} tp={tp} in {microbatches}, clip {clip:?}", fixture.file);
    let subject = fixture.subject(GLOBAL / microbatches, Optimizer { clip, ..adamw() });
    let runs = [0, 1, 2, 3].map(|zero| {
        let configuration = Configuration { dp, tp, zero, sequence_parallel: false, microbatches };
        run(&subject, &split(&subject, configuration), Mode::On(cpu::TARGET))
    });
    let same = |a: usize, b: usize| {
        let differ =
            |(name, tensor): (&String, &Tensor)| (runs[b].states[name] != *tensor).then(|| name.clone());
        let differ: Vec<String> = runs[a].states.iter().filter_map(differ).collect();
        assert!(differ.is_empty(), "{what}: stages {a} and {b} differ in {differ:?}");
        assert!(runs[a].outputs == runs[b].outputs, "{what}: stages {a} and {b} report different numbers");
    };
    same(2, 3);
    if microbatches == 1 && clip.is_none() {
        same(0, 1);
        same(1, 2);
    }
    let losses =
        |run: &StepOutcomes| run.outputs.iter().map(|outputs| outputs["loss"].item()).collect::<Vec<_>>();
    for (first, other) in runs[1..].iter().flat_map(|run| losses(&runs[0]).into_iter().zip(losses(run))) {
        assert!((first - other).abs() <= 1e-6, "{what}: losses {first} and {other}");
    }
}
