//! A batch of another size, or cut into microbatches, changes no result of a sample.

use ir::Tensor;
use ir::relative_error::{largest, relative_error};
use passes::Manager;
use std::collections::BTreeMap;
use std::time::Instant;
use testing::models::{self, Fixture, adamw, done, path};
use trainyard::compilation::Source;
use trainyard::verification::Mode;
use trainyard::verification::against::{self, file::Numbers};
use trainyard::verification::compare::FLOOR;
use trainyard::verification::execute::{Execution, Tensors};
use trainyard::verification::{Tested, inputs};

/// Samples of the global batch.
const GLOBAL: u64 = 8;

#[test]
fn mlp_of_the_dynamo_exporter_trains_alike_in_microbatches() {
    check_microbatches(&models::MLP_DYNAMO);
}

#[test]
fn mlp_with_dynamic_dims_trains_alike_in_microbatches() {
    check_microbatches(&models::MLP_DYNAMIC);
}

#[test]
fn mlp_of_the_legacy_exporter_trains_alike_in_microbatches() {
    check_microbatches(&models::MLP_LEGACY);
}

#[test]
fn mlp_that_brings_its_loss_trains_alike_in_microbatches() {
    check_microbatches(&models::MLP_LOSS);
}

#[test]
fn gpt2_of_the_dynamo_exporter_trains_alike_in_microbatches() {
    check_microbatches(&models::GPT2_DYNAMO);
}

#[test]
fn gpt2_with_dynamic_dims_trains_alike_in_microbatches() {
    check_microbatches(&models::GPT2_DYNAMIC);
}

#[test]
fn gpt2_of_opset_23_trains_alike_in_microbatches() {
    check_microbatches(&models::GPT2_OPSET23);
}

#[test]
fn gpt2_that_brings_its_loss_trains_alike_in_microbatches() {
    check_microbatches(&models::GPT2_LOSS);
}

#[test]
fn llama_of_the_dynamo_exporter_trains_alike_in_microbatches() {
    check_microbatches(&models::LLAMA_DYNAMO);
}

#[test]
fn llama_of_opset_23_trains_alike_in_microbatches() {
    check_microbatches(&models::LLAMA_OPSET23);
}

#[test]
fn bert_of_the_dynamo_exporter_trains_alike_in_microbatches() {
    check_microbatches(&models::BERT_DYNAMO);
}

/// Checks that loss and gradients are equal within 1e-12, and the states after the step within 1e-10.
fn check_microbatches(fixture: &Fixture) {
    let steps: Vec<Execution> = [1, 2, 4].map(|count| step(fixture, count)).into();
    let (whole, cut) = steps.split_first().expect("there are three");
    assert_eq!(whole.outputs["loss.weight"].len(), 1);
    for (step, count) in cut.iter().zip([2, 4]) {
        let what = format!("{} in {count} microbatches", fixture.file);
        assert_eq!(step.outputs["loss.weight"].len(), count, "{what}");
        let weights: Vec<f64> = step.outputs["loss.weight"].iter().map(Tensor::item).collect();
        assert!(
            weights.iter().any(|weight| *weight != weights[0]),
            "{what}: unequal numbers of labels {weights:?}"
        );
        assert_eq!(weights.iter().sum::<f64>(), whole.outputs["loss.weight"][0].item(), "{what}");
        let loss = (step.loss().unwrap() - whole.loss().unwrap()).abs();
        assert!(loss <= 1e-12, "{what}: losses are {loss:e} apart");
        let is_gradient = |name: &str| name.starts_with("grad");
        let gradients =
            check_tensors(&what, 1e-12, &step.last_outputs(is_gradient), &whole.last_outputs(is_gradient));
        let states = check_tensors(&what, 1e-10, &step.states, &whole.states);
        println!("{what}: loss {loss:.1e}, gradients {gradients:.1e}, states {states:.1e}");
    }
}

/// The largest error of some tensors, in the metric of gradients.
fn check_tensors(what: &str, tolerance: f64, given: &Tensors, expected: &Tensors) -> f64 {
    assert!(given.keys().eq(expected.keys()) && given.len() > 3, "{what}");
    let floor =
        FLOOR * largest(expected.iter().filter(|(name, _)| *name != "grad_norm").map(|(_, tensor)| tensor));
    let mut worst = 0.0f64;
    for (name, expected) in expected {
        let apart = relative_error(&given[name], expected, floor);
        assert!(apart <= tolerance, "{what}: `{name}` is {apart:e} off");
        worst = worst.max(apart);
    }
    worst
}

/// A step of the global batch in `count` microbatches, with a seed.
fn step(fixture: &Fixture, count: u64) -> Execution {
    let subject = fixture.subject(GLOBAL / count, adamw());
    let module = &subject.compilation.training;
    let microbatches = done(inputs::draw(module, 11, count));
    done(subject.run(Tested { module, cut: true }, Mode::Exact, &microbatches))
}

#[test]
fn a_global_batch_is_the_same_samples_in_any_microbatches() {
    let whole = models::BERT_DYNAMO.subject(8, adamw());
    let parts = models::BERT_DYNAMO.subject(2, adamw());
    let whole_inputs = done(inputs::draw(&whole.compilation.training, 3, 1));
    let part_inputs = done(inputs::draw(&parts.compilation.training, 3, 4));
    assert_eq!(done(inputs::regroup(&parts.compilation.training, &whole_inputs, 4)), part_inputs);
    assert_ne!(part_inputs[0], part_inputs[1]);
    let labels = part_inputs.iter().map(|inputs| inputs["labels"].ints().iter().filter(|&&l| l < 0).count());
    assert_eq!(labels.collect::<Vec<_>>(), [5, 23, 41, 27], "ignored labels of 64");
    let masked = part_inputs[1]["attention_mask"].ints().iter().filter(|&&kept| kept == 0).count();
    assert!(masked > 0 && part_inputs[1]["attention_mask"].ints()[0] == 1);
}

#[test]
fn gpt2_bound_to_other_batches_gives_each_sample_the_outputs_it_had() {
    check_samples(&models::GPT2_DYNAMO);
}

#[test]
fn bert_bound_to_other_batches_gives_each_sample_the_outputs_it_had() {
    check_samples(&models::BERT_DYNAMO);
}

/// Checks batches of 1 and 6 of PyTorch's two samples, in another order.
fn check_samples(fixture: &Fixture) {
    let original = logits(fixture, &[0, 1]);
    for samples in [&[1][..], &[0], &[1, 0, 0, 1, 1, 0]] {
        for (logits, &sample) in logits(fixture, samples).iter().zip(samples) {
            let apart = relative_error(logits, &original[sample], 0.0);
            assert!(apart <= 1e-12, "{}: sample {sample} of {samples:?} is {apart:e} off", fixture.file);
        }
    }
}

/// The logits of each sample in a batch of these samples.
fn logits(fixture: &Fixture, samples: &[usize]) -> Vec<Tensor> {
    let subject = fixture.subject(samples.len() as u64, adamw());
    let module = &subject.compilation.training;
    let numbers = done(Numbers::read(&path(&format!("{}.io.npz", fixture.model)), module, Some("labels")));
    let pick = |whole: &Tensor| {
        let rows = inputs::split(whole, fixture.batch as usize).expect("two samples");
        inputs::concatenate(&samples.iter().map(|&sample| &rows[sample]).collect::<Vec<_>>())
    };
    let picked: Tensors = numbers.inputs.iter().map(|(name, whole)| (name.clone(), pick(whole))).collect();
    let picked = Numbers { inputs: picked, labels: true, ..Numbers::default() };
    let microbatches = done(against::microbatches(module, &picked, Some("labels")));
    let execution = done(subject.run(Tested { module, cut: true }, Mode::Exact, &microbatches));
    inputs::split(&execution.outputs["logits"][0], samples.len()).expect("a batch of logits")
}

#[test]
fn gpt3_without_weights_binds_to_a_batch_of_16() {
    let gpt3 = Fixture { file: "gpt3-175b-noweights", model: "gpt3", ..models::GPT2_DYNAMO };
    let start = Instant::now();
    let (source, plan) = gpt3.source(16, adamw());
    let compilation = done(source.compile(&plan, &Manager::default(), |_, _, _| {}));
    println!("compiled in {:?}", start.elapsed());
    let module = &compilation.training;
    for input in module.inputs.iter().filter(|input| input.batched) {
        assert_eq!(module.ty(input.value).dims[0].size(), Some(16), "{}", input.name);
    }
    let trained: u64 = module
        .states
        .values()
        .filter(|state| state.role == ir::Role::Parameter)
        .map(|state| state.ty.numel().expect("bound"))
        .sum();
    assert!((174_000_000_000..176_000_000_000).contains(&trained), "{trained} parameters");
}

#[test]
fn a_batch_that_contradicts_the_file_is_refused_with_the_node() {
    let (sizes, path) = (BTreeMap::from([("seq".to_owned(), 48)]), path("gpt2.dynamo.onnx"));
    let failure = Source::load(&path, &sizes).expect_err("the file has no `seq`");
    let text = failure.diagnostics()[0].to_string();
    assert!(text.contains("--bind seq: the model has no named dims"), "{text}");
}
