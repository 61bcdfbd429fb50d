//! Models exported with dropout. The same elements are dropped on every mesh and in any microbatches, and the mean is right. A resumed run
//! continues as if it had not stopped. An evaluation drops nothing.
//!
//! `dropout.onnx` has dropout in every possible place; `gpt2-dropout.legacy.onnx` is a PyTorch export.

mod means;

use crate::TRAINYARD;
use testing::verification::{self, loss, same_loss};
use testing::workplace::Workplace;

const MODELS: [&str; 2] = ["dropout", "models/gpt2-dropout.legacy"];

#[test]
fn microbatches_drop_what_one_large_batch_drops() {
    for model in MODELS {
        let whole = loss(model, "--microbatch 12");
        for microbatch in [1, 4, 6] {
            same_loss(model, whole, &format!("--microbatch {microbatch}"));
        }
    }
}

#[test]
fn data_ranks_and_tensor_ranks_drop_what_one_device_drops() {
    for model in MODELS {
        let whole = loss(model, "--microbatch 12");
        for flags in [
            "--microbatch 6 --mesh dp=2",
            "--microbatch 1 --mesh dp=4",
            "--microbatch 12 --mesh tp=2",
            "--microbatch 4 --mesh tp=4",
            "--microbatch 2 --mesh dp=2,tp=2",
            "--microbatch 1 --mesh dp.outer=2,dp.inner=2,tp=2",
        ] {
            same_loss(model, whole, flags);
        }
    }
}

#[test]
fn a_split_sequence_drops_what_a_whole_one_drops() {
    for model in MODELS {
        let whole = loss(model, "--microbatch 12");
        same_loss(model, whole, "--microbatch 4 --mesh tp=2 --sequence-parallel");
        same_loss(model, whole, "--microbatch 2 --mesh dp=2,tp=2 --sequence-parallel --zero 1");
    }
}

#[test]
fn every_stage_of_zero_drops_the_same() {
    for model in MODELS {
        let whole = loss(model, "--microbatch 12");
        for zero in 0..=3 {
            same_loss(model, whole, &format!("--microbatch 2 --mesh dp=2 --zero {zero}"));
        }
        same_loss(model, whole, "--microbatch 1 --mesh dp=2,tp=2 --zero 3");
    }
}

#[test]
fn kernels_drop_what_the_interpreter_drops() {
    for model in MODELS {
        let exact = loss(model, "--microbatch 4");
        for flags in ["", "--mesh dp=2", "--mesh dp=2,tp=2 --sequence-parallel --zero 2"] {
            let report =
                verification::model(model, &format!("--mode cpu --microbatch 2 --global-batch 12 {flags}"));
            let given = report.loss.expect("a step has a loss");
            assert!((given - exact).abs() < 1e-5 * exact, "{model} {flags}: {given}, not {exact}");
        }
        verification::model(model, "--mode cpu --bf16 --global-batch 4");
        verification::model(model, "--fp16 --global-batch 4 --tolerance 1e-10");
    }
}

#[test]
fn the_flag_sets_the_share_or_takes_dropout_out() {
    for model in MODELS {
        let [own, off, zero, half, other] =
            ["", "--dropout off", "--dropout 0", "--dropout 0.5", "--dropout 0.51"]
                .map(|flags| loss(model, &format!("--microbatch 12 {flags}")));
        assert_eq!(off, zero);
        assert!(
            [own, half, other].iter().all(|loss| (loss - off).abs() > 1e-4),
            "{own} {half} {other} {off}"
        );
        assert!((half - other).abs() > 1e-6 && (half - own).abs() > 1e-4);
        same_loss(model, off, "--dropout off --microbatch 2 --mesh dp=2,tp=2");
        same_loss(model, half, "--dropout 0.5 --microbatch 2 --mesh dp=2,tp=2");
    }
}

#[test]
fn the_count_of_samples_is_compared_with_the_other_states() {
    let mut report = verification::model("dropout", "--microbatch 4 --mesh dp=2");
    report.differences.retain(|difference| difference.name == "dropout.samples");
    assert_eq!(report.differences.len(), 1);
}

/// A run of 6 steps of 12 samples.
const RUN: &str = "compile testdata/models/gpt2-dropout.legacy.onnx --train text.txt --tokenizer bytes --global-batch 12 \
                   --input attention_mask=ones --steps 6 --seed 3";

fn losses(place: &Workplace, run: &str, field: &str) -> Vec<f64> {
    place.metrics(run).iter().map(|line| line[field].as_f64().unwrap_or(f64::NAN)).collect()
}

#[test]
fn a_run_goes_on_bit_for_bit_and_on_another_mesh() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    place.succeed(&format!("{RUN} --microbatch 4 -o whole"));
    place.succeed(&format!("{} --microbatch 4 -o parts", RUN.replace("--steps 6", "--steps 3")));
    place.succeed(&format!("{RUN} --microbatch 4 -o parts --resume"));
    for file in ["checkpoints/step-6/state.safetensors", "model.onnx", "model-training.onnx"] {
        let [whole, parts] = ["whole", "parts"].map(|run| place.read(&format!("{run}/{file}")));
        assert!(whole == parts, "{file} differs");
    }
    let whole = losses(&place, "whole", "loss");
    place.succeed(
        &format!("{RUN} --microbatch 2 --mesh dp=2,tp=2 --zero 1 -o mesh --resume=parts")
            .replace("--steps 6", "--steps 8"),
    );
    place.succeed(&format!("{RUN} --microbatch 4 -o whole --resume").replace("--steps 6", "--steps 8"));
    let (mesh, more) = (losses(&place, "mesh", "loss"), losses(&place, "whole", "loss"));
    assert_eq!((whole.len(), more.len(), mesh.len()), (6, 8, 2));
    for (given, expected) in mesh.iter().zip(&more[6..]) {
        assert!((given - expected).abs() < 1e-5, "{mesh:?}, not {:?}", &more[6..]);
    }
}

#[test]
fn an_evaluation_drops_nothing() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let run = RUN.replace("--steps 6", "--steps 1 --lr 0");
    for (dropout, folder) in [("", "own"), ("--dropout off", "off"), ("--dropout 0.9", "much")] {
        place.succeed(&format!("{run} --microbatch 4 {dropout} -o {folder}"));
    }
    let [own, off, much] = ["own", "off", "much"].map(|run| losses(&place, run, "eval_loss"));
    assert!(own == off && off == much && own[0].is_finite(), "{own:?} {off:?} {much:?}");
    let [own, off, much] = ["own", "off", "much"].map(|run| losses(&place, run, "loss"));
    assert!(own != off && off != much && own != much, "{own:?} {off:?} {much:?}");
}

#[test]
fn dropouts_that_the_file_has_off_are_told_of() {
    let place = Workplace::new(TRAINYARD);
    let ended = place.succeed("compile testdata/models/gpt2-dropout.legacy.onnx -o out");
    let told = "warning: 2 of the model's 7 dropouts are off in the file";
    assert!(ended.stderr.contains(told), "{}", ended.stderr);
}
