//! Models that draw random numbers of their own: stochastic depth and dropout that are spelled out as nodes, and normal noise. They draw
//! the same numbers on every mesh and in any microbatches, and an evaluation draws none.

use crate::TRAINYARD;
use testing::testdata;
use testing::verification::{self, loss, same_loss};
use testing::workplace::Workplace;

/// Each model, as both of PyTorch's exporters write it.
const MODELS: [&str; 4] =
    ["random/depth.legacy", "random/depth.dynamo", "random/noise.legacy", "random/noise.dynamo"];

#[test]
fn microbatches_draw_what_one_large_batch_draws() {
    for model in MODELS {
        let whole = loss(model, "--microbatch 12");
        for microbatch in [1, 4, 6] {
            same_loss(model, whole, &format!("--microbatch {microbatch}"));
        }
        let other = loss(model, "--microbatch 12 --dropout off");
        assert!((whole - other).abs() > 1e-4, "{model}: {whole} and {other}");
    }
}

#[test]
fn meshes_draw_what_one_device_draws() {
    for model in MODELS {
        let whole = loss(model, "--microbatch 12");
        for flags in [
            "--microbatch 6 --mesh dp=2",
            "--microbatch 1 --mesh dp=4",
            "--microbatch 12 --mesh tp=2",
            "--microbatch 2 --mesh dp=2,tp=2 --zero 3",
        ] {
            same_loss(model, whole, flags);
        }
    }
}

#[test]
fn kernels_draw_what_the_interpreter_draws() {
    for model in MODELS {
        let exact = loss(model, "--microbatch 4");
        for flags in ["", "--mesh dp=2"] {
            let report =
                verification::model(model, &format!("--mode cpu --microbatch 2 --global-batch 12 {flags}"));
            let given = report.loss.expect("a step has a loss");
            assert!((given - exact).abs() < 1e-5 * exact, "{model} {flags}: {given}, not {exact}");
        }
        verification::model(model, "--mode cpu --bf16 --microbatch 4");
    }
}

#[test]
fn a_dropout_by_hand_takes_the_share_of_the_flag() {
    for model in ["random/depth.legacy", "random/depth.dynamo"] {
        let own = loss(model, "--microbatch 12");
        same_loss(model, own, "--microbatch 12 --dropout 0.25");
        let other = loss(model, "--microbatch 12 --dropout 0.5");
        assert!((own - other).abs() > 1e-4, "{model}: {own} and {other}");
    }
}

#[test]
fn without_masks_outputs_and_gradients_are_those_of_pytorch_in_eval_mode() {
    let numbers = testdata("random/depth.io.npz");
    for model in ["random/depth.legacy", "random/depth.dynamo"] {
        let flags = format!("--microbatch 4 --dropout off --tolerance 1e-5 --against {}", numbers.display());
        let report = verification::model(model, &flags);
        assert!(report.differences.len() >= 11, "{model}: {:?}", report.differences);
    }
}

/// The losses of two steps at a learning rate of 0, and the eval loss, of a model on rows of numbers.
fn losses(model: &str, flags: &str) -> (Vec<f64>, f64) {
    let place = Workplace::new(TRAINYARD);
    let run = format!(
        "compile testdata/{model}.onnx --train synthetic --steps 2 --lr 0 --microbatch 4 --seed 3 -o out {flags}"
    );
    let ended = place.succeed(&run);
    let told = "a random tensor is neither dropout nor stochastic depth";
    let warns = model.starts_with("random/noise") && !flags.contains("off");
    assert_eq!(ended.stderr.contains(told), warns, "{model} {flags}: {}", ended.stderr);
    let lines = place.metrics("out");
    let number = |line: &serde_json::Value, field: &str| line[field].as_f64().unwrap_or(f64::NAN);
    let losses = lines.iter().map(|line| number(line, "loss")).collect();
    (losses, number(lines.last().expect("there are steps"), "eval_loss"))
}

#[test]
#[ignore = "longer"]
fn an_evaluation_draws_nothing() {
    for model in MODELS {
        let [(own, own_eval), (off, off_eval)] =
            ["", "--dropout off"].map(|flags| losses(model, &format!("--eval synthetic {flags}")));
        assert!(own_eval == off_eval && own_eval.is_finite(), "{model}: {own_eval} {off_eval}");
        assert!(own.iter().zip(&off).all(|(own, off)| own != off), "{model}: {own:?} {off:?}");
    }
}
