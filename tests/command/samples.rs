//! Data whose number of samples is not a multiple of the batch: the samples that are trained on, and the evaluation of all samples.

use crate::TRAINYARD;
use passes::Manager;
use std::collections::BTreeMap;
use testing::workplace::{Ended, Workplace};
use trainyard::compilation::Source;
use trainyard::feed;
use trainyard::pipeline::CompilationPlan;

/// Three epochs of 22 samples in batches of four.
const RUN: &str = "--train testdata/short-batch.npz --eval testdata/short-batch.npz --microbatch 4 --lr 0.02 --seed 5 \
                   --optimizer momentum:momentum=0.9 --epochs 3";

/// PyTorch's numbers: `testdata/scripts/make_short_batch.py`.
fn reference(place: &Workplace) -> serde_json::Value {
    serde_json::from_slice(&place.read("testdata/short-batch.json")).expect("it is JSON")
}

fn number(value: &serde_json::Value) -> f64 {
    value.as_f64().expect("it is a number")
}

/// The eval loss that a run prints before its first step.
#[track_caller]
fn before_step_0(ended: &Ended) -> f64 {
    let line = ended.stderr.lines().find_map(|line| line.strip_prefix("before step 0: eval loss "));
    line.and_then(|loss| loss.parse().ok()).unwrap_or_else(|| panic!("{}", ended.stderr))
}

/// Asserts that the losses of a run, and the eval loss at its end, equal PyTorch's.
#[track_caller]
fn assert_losses(place: &Workplace, losses: &serde_json::Value, eval: &serde_json::Value) {
    let (found, expected) = (place.metrics("run"), losses.as_array().expect("a list"));
    assert_eq!(found.len(), expected.len());
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        let (found, expected) = (number(&found["loss"]), number(expected));
        assert!((found - expected).abs() <= 2e-5, "step {step}: {found}, not {expected}");
    }
    let (found, expected) = (number(&found[found.len() - 1]["eval_loss"]), number(eval));
    assert!((found - expected).abs() <= 2e-5, "evaluation: {found}, not {expected}");
}

#[test]
fn batch_norms_leave_a_short_last_batch_out_as_pytorch_does_with_drop_last() {
    let place = Workplace::new(TRAINYARD);
    let expected = reference(&place);
    let ended = place.succeed(&format!("compile testdata/short-batch.onnx {RUN} -o run"));
    let said = "note: the last 2 of 22 samples of each epoch's order are left out: they do not fill a global batch of 4, and \
                batch norms compute their statistics over all samples of the batch";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    assert_losses(&place, &expected["losses"], &expected["eval"]);
}

#[test]
fn float_targets_are_all_evaluated_by_a_program_for_the_short_batch() {
    let place = Workplace::new(TRAINYARD);
    let expected = reference(&place);
    let ended = place.succeed(&format!("compile testdata/short-batch-mse.onnx {RUN} -o run"));
    let before = number(&expected["mse_eval_before"]);
    assert!((before_step_0(&ended) - before).abs() <= 2e-6, "{before}: {}", ended.stderr);
    assert!(!ended.stderr.contains("the evaluation leaves out"), "{}", ended.stderr);
    assert_losses(&place, &expected["mse_losses"], &expected["mse_eval"]);
    assert!(place.metrics("run")[0]["samples_per_s"].is_number());
}

#[test]
fn stages_evaluate_a_short_batch_too() {
    let place = Workplace::new(TRAINYARD);
    let before = number(&reference(&place)["mse_eval_before"]);
    for mesh in ["pp=2", "pp=2,dp=2"] {
        let flags = RUN.replace("--epochs 3", "--steps 0");
        let flags = format!("{flags} --global-batch 16 --mesh {mesh} -o {mesh}");
        let ended = place.succeed(&format!("compile testdata/short-batch-mse.onnx {flags}"));
        assert!((before_step_0(&ended) - before).abs() <= 2e-6, "{before}: {}", ended.stderr);
        assert!(!ended.stderr.contains("the evaluation leaves out"), "{}", ended.stderr);
    }
}

#[test]
fn samples_that_data_ranks_cannot_share_are_left_out_with_a_note() {
    let place = Workplace::new(TRAINYARD);
    let flags =
        RUN.replace("--microbatch 4", "--microbatch 3 --mesh dp=3").replace("--epochs 3", "--steps 0");
    let ended = place.succeed(&format!("compile testdata/short-batch-mse.onnx {flags} -o run"));
    let said = "note: the evaluation leaves out the last 1 of the 22 samples of `testdata/short-batch.npz`: 3 data ranks must share a batch equally";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    // 18 samples fill batches of nine; of the other four, three are a batch for three ranks.
    let whole = flags.replace("--microbatch 3 --mesh dp=3", "--microbatch 22");
    let whole = place.succeed(&format!("compile testdata/short-batch-mse.onnx {whole} -o one"));
    let [some, all] = [&ended, &whole].map(before_step_0);
    let last = 22.0 * all - 21.0 * some;
    let expected = number(&reference(&place)["mse_last_sample"]);
    assert!(
        (last - expected).abs() <= 1e-4,
        "the sample that is left out has a loss of {last}, not {expected}"
    );
}

/// Converts the samples of a file of arrays to records.
fn records(place: &Workplace, file: &str, fields: &[&str]) -> String {
    let table = data::Table::open(&place.path(file)).expect("the file can be read");
    let columns: Vec<(&str, usize, Vec<f64>)> = fields
        .iter()
        .map(|field| {
            let array = table.array(field).expect("the array is whole").expect("the file has the array");
            (*field, array.dims[1..].iter().product::<u64>() as usize, array.to_f64s())
        })
        .collect();
    let samples = columns[0].2.len() / columns[0].1;
    let record = |sample: usize| {
        let fields = columns.iter().map(|(field, size, numbers)| {
            let values = numbers[sample * size..(sample + 1) * size].to_vec();
            ((*field).to_owned(), serde_json::Value::from(values))
        });
        serde_json::Value::Object(fields.collect()).to_string() + "\n"
    };
    (0..samples).map(record).collect()
}

#[test]
fn records_of_json_lines_train_as_the_arrays_do() {
    let place = Workplace::new(TRAINYARD);
    place.write("data.jsonl", records(&place, "testdata/short-batch.npz", &["x", "target"]).as_bytes());
    place.succeed(&format!("compile testdata/short-batch-mse.onnx {RUN} -o run"));
    let flags = RUN.replace("testdata/short-batch.npz", "data.jsonl");
    place.succeed(&format!("compile testdata/short-batch-mse.onnx {flags} -o json"));
    let losses =
        |run: &str| -> Vec<f64> { place.metrics(run).iter().map(|line| number(&line["loss"])).collect() };
    assert_eq!(losses("run"), losses("json"));
}

/// Returns the messages about a short batch of a model of `testdata` that cannot be filled up.
fn unfillable(file: &str) -> data::Unfillable {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(file);
    let source = Source::load(&path, &BTreeMap::new()).unwrap_or_else(|error| panic!("{file}: {error:?}"));
    let forward = source.forward(&CompilationPlan::default(), &Manager::default(), |_, _, _| {});
    let forward = forward.unwrap_or_else(|error| panic!("{file}: {error:?}"));
    let spec = feed::model_spec(&forward.module).unwrap_or_else(|error| panic!("{file}: {error:?}"));
    let labels = spec.label.expect("the model takes labels").name;
    feed::unfillable(&forward.module, &labels).expect("the program evaluates")
}

#[test]
fn a_short_batch_of_samples_that_do_not_meet_is_filled_up() {
    for file in [
        "gpt2-fresh.onnx",
        "dropout.onnx",
        "recurrent.onnx",
        "models/bert.dynamo.onnx",
        "models/gpt2.dynamo.onnx",
        "models/gpt2.legacy-mask.onnx",
        "models/gpt2-loss.dynamo.onnx",
        "models/gpt2-dropout.legacy.onnx",
        "models/llama.dynamo.onnx",
        "models/mixtral.dynamo.onnx",
        "models/mlp.dynamo.onnx",
        "models/mlp-loss.dynamo.onnx",
        "models/resnet.dynamo.onnx",
        "models/t5.dynamo.onnx",
    ] {
        assert_eq!(unfillable(file), data::Unfillable::default(), "{file}");
    }
    for file in ["short-batch.onnx", "models/resnet.legacy-trainmode.onnx"] {
        let found = unfillable(file);
        assert!(found.training.is_some_and(|reason| reason.starts_with("batch norms")), "{file}");
        assert_eq!(found.evaluation, None, "{file}");
    }
}
