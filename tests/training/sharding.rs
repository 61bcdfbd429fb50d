//! Programs that are split over simulated ranks compute the same as on one device: every model, with every pair of options, and with
//! `FULL_PRODUCT=1` all their combinations.

use ir::interp::{self, Missing, Mode, StateValues};
use ir::relative_error::{largest, relative_error};
use ir::{Module, Tensor};
use passes::buckets::Buckets;
use passes::collectives::Collectives;
use passes::{Manager, PassContext, Pipeline};
use std::collections::BTreeMap;
use testing::models::configurations::{Configuration, all, pairwise};
use testing::models::{self, Fixture, adamw, done};
use trainyard::verification::compare::FLOOR;
use trainyard::verification::execute::Tensors;
use trainyard::verification::inputs;

/// Samples of the global batch.
const GLOBAL: u64 = 24;

/// Steps that are compared.
const STEPS: u64 = 3;

/// The allowed difference of loss, gradients and states from those of one device, in f64.
const TOLERANCE: f64 = 1e-10;

/// Configurations with every pair of options; all combinations with `FULL_PRODUCT=1 cargo test --test training sharding`.
fn configurations() -> Vec<Configuration> {
    if std::env::var_os("FULL_PRODUCT").is_some() { all(8) } else { pairwise(8) }
}

#[test]
fn mlp_trains_alike_on_every_mesh() {
    check(&models::MLP_DYNAMO, &configurations());
}

#[test]
#[ignore = "longer"]
fn gpt2_trains_alike_on_every_mesh() {
    check(&models::GPT2_DYNAMO, &configurations());
}

#[test]
#[ignore = "longer"]
fn llama_trains_alike_on_every_mesh() {
    check(&models::LLAMA_DYNAMO, &configurations());
}

#[test]
#[ignore = "longer"]
fn bert_trains_alike_on_every_mesh() {
    check(&models::BERT_DYNAMO, &configurations());
}

/// The outputs of several steps, and the states after them, by name.
struct StepOutcomes {
    outputs: Vec<BTreeMap<String, Tensor>>,
    states: BTreeMap<String, Tensor>,
}

fn run(module: &Module, inputs: &[Vec<Tensors>]) -> StepOutcomes {
    let mut states: StateValues = done(interp::initial_states(module, 0, Missing::Refuse));
    let steps = inputs.iter().map(|inputs| {
        let outputs = done(interp::step(module, Mode::Exact, &mut states, inputs));
        let last = outputs.into_iter().filter_map(|(name, mut values)| Some((name, values.pop()?)));
        last.filter(|(name, _)| name == "loss" || name.starts_with("grad")).collect()
    });
    let outputs = steps.collect();
    let named = |(id, value)| (module.states[id].name.clone(), value);
    StepOutcomes { outputs, states: states.into_iter().map(named).collect() }
}

fn check(fixture: &Fixture, configurations: &[Configuration]) {
    for microbatches in [1, 3] {
        let module = fixture.subject(GLOBAL / microbatches, adamw()).compilation.training;
        let draw = |step| done(inputs::draw(&module, step, microbatches));
        let inputs: Vec<_> = (0..STEPS).map(draw).collect();
        let whole = run(&module, &inputs);
        for configuration in configurations.iter().filter(|c| c.microbatches == microbatches) {
            let mut split = module.clone();
            let mut cx = PassContext::default();
            // Without latency, every collective of activations that can be divided is divided, however small it is.
            let cut = Collectives { latency: 0, ..Collectives::default() };
            let passes = vec![configuration.spmd().into(), cut.into(), Buckets::default().into()];
            let pipeline = Pipeline { passes };
            let ran = Manager::default().run(&pipeline, &mut split, &mut cx, |_, _, _| {});
            ran.unwrap_or_else(|failure| panic!("{} {configuration:?}: {failure}", fixture.file));
            let worst =
                compare(&format!("{} {configuration:?}", fixture.file), &run(&split, &inputs), &whole);
            println!("{} {configuration:?}: {worst:.1e}", fixture.file);
        }
    }
}

/// Returns the largest error, which must be within the tolerance.
fn compare(what: &str, split: &StepOutcomes, whole: &StepOutcomes) -> f64 {
    let mut worst = 0.0f64;
    let mut near = |tensors: &BTreeMap<String, Tensor>, expected: &BTreeMap<String, Tensor>| {
        assert!(tensors.keys().eq(expected.keys()), "{what}: other names");
        let floor = FLOOR * largest(expected.values());
        for (name, expected) in expected {
            let apart = relative_error(&tensors[name], expected, floor);
            assert!(apart <= TOLERANCE, "{what}: `{name}` is {apart:e} off");
            worst = worst.max(apart);
        }
    };
    split.outputs.iter().zip(&whole.outputs).for_each(|(split, whole)| near(split, whole));
    near(&split.states, &whole.states);
    worst
}
