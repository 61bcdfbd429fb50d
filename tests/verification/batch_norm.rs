//! Models with batch norms: training uses the statistics of the batch, however it is split; evaluations and checkpoints use the running
//! statistics. Also models whose batch norms the exporter folded away.

use crate::TRAINYARD;
use checkpoint::Checkpoint;
use testing::testdata;
use testing::verification;
use testing::workplace::Workplace;
use trainyard::verification::report::Report;

/// Runs `trainyard verify` on a model of `testdata/models`. Both programs must compute the same.
#[track_caller]
fn verify(model: &str, flags: &str) -> Report {
    verification::passing(&testdata(&format!("models/{model}.onnx")), flags)
}

const TRAINED: &str = "resnet.legacy-trainmode";

#[test]
fn devices_that_share_a_batch_have_its_statistics() {
    let whole = verify(TRAINED, "--microbatch 4").loss.expect("a step has a loss");
    for flags in [
        "--microbatch 2 --mesh dp=2",
        "--microbatch 1 --mesh dp=4 --zero 3",
        "--microbatch 4 --mesh tp=2",
        "--microbatch 2 --mesh dp=2,tp=2 --zero 1",
    ] {
        let loss = verify(TRAINED, flags).loss.expect("a step has a loss");
        assert!((loss - whole).abs() <= 1e-10, "{flags}: {loss}, not {whole}");
    }
    // Each microbatch has its own statistics.
    let apart = verify(TRAINED, "--microbatch 2 --global-batch 4").loss.expect("a step has a loss");
    assert!((apart - whole).abs() > 1e-3, "{apart} {whole}");
}

#[test]
fn kernels_normalise_as_the_interpreter_does() {
    for flags in ["", "--mesh dp=2 --microbatch 2", "--microbatch 2 --global-batch 6"] {
        verify(TRAINED, &format!("--mode cpu --tolerance 1e-4 {flags}"));
    }
    verify(TRAINED, "--bf16");
    verify("resnet.dynamo", "--mode cpu --mesh dp=2 --microbatch 2");
    verify("resnet.dynamo", "--mesh tp=2");
}

/// A run on the images for which PyTorch's numbers were computed.
const RUN: &str = "compile testdata/models/resnet.legacy-trainmode.onnx --train testdata/models/resnet.io.npz \
                   --eval testdata/models/resnet.io.npz --optimizer momentum --lr 0.05 --seed 3";

/// The eval loss that a run prints before its first step.
#[track_caller]
fn before_step_0(place: &Workplace, flags: &str) -> f64 {
    let said = place.succeed(&format!("{RUN} {flags}")).stderr;
    let line = said.lines().find_map(|line| line.strip_prefix("before step 0: eval loss "));
    line.and_then(|loss| loss.parse().ok()).unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn an_evaluation_uses_the_running_statistics() {
    let place = Workplace::new(TRAINYARD);
    // The loss from onnx's reference evaluator, which ran the file with training_mode 0, through a cross-entropy: 3.128801312.
    for (flags, output) in
        [("--microbatch 4", "four"), ("--microbatch 1", "one"), ("--microbatch 2 --mesh dp=2", "shared")]
    {
        let loss = before_step_0(&place, &format!("{flags} --steps 1 -o {output}"));
        assert!((loss - 3.128_801).abs() <= 2e-6, "{flags}: {loss}");
    }
}

/// The values of a running mean in a run's checkpoint.
fn running_mean(place: &Workplace, run: &str, step: u64) -> Vec<f32> {
    let states = Checkpoint::tensors(&place.path(&format!("{run}/checkpoints/step-{step}")));
    let states = states.expect("there is such a checkpoint");
    let numbers = states.read("m.resnet.embedder.embedder.normalization.running_mean");
    let numbers = numbers.expect("it can be read").expect("the checkpoint has the running statistics");
    numbers.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes"))).collect()
}

#[test]
fn checkpoints_and_the_trained_model_carry_running_statistics() {
    let place = Workplace::new(TRAINYARD);
    place.succeed(&format!("{RUN} --microbatch 4 --steps 6 --save-every 3 -o whole"));
    place.succeed(&format!("{RUN} --microbatch 4 --steps 3 -o parts"));
    place.succeed(&format!("{RUN} --microbatch 4 --steps 6 -o parts --resume"));
    for file in ["checkpoints/step-6/state.safetensors", "model.onnx", "model-training.onnx"] {
        let [whole, parts] = ["whole", "parts"].map(|run| place.read(&format!("{run}/{file}")));
        assert!(whole == parts, "{file} differs");
    }
    let [early, late] = [3, 6].map(|step| running_mean(&place, "whole", step));
    assert!(early.len() == 8 && early.iter().zip(&late).all(|(early, late)| early != late));
    // The trained model starts with the run's final loss: in training form for more training, in inference form for use.
    let ended = place.metrics("whole")[5]["eval_loss"].as_f64().expect("the last step is evaluated");
    for (file, in_inference_form) in [("model-training.onnx", false), ("model.onnx", true)] {
        let run = RUN.replace("testdata/models/resnet.legacy-trainmode.onnx", &format!("whole/{file}"));
        let said = place.succeed(&format!("{run} --microbatch 4 --steps 1 -o again --force")).stderr;
        assert!(said.contains(&format!("before step 0: eval loss {ended:.6}")), "{ended}: {said}");
        assert_eq!(said.contains("20 batch norms are in inference form"), in_inference_form, "{said}");
    }
}

#[test]
fn a_mesh_trains_as_one_device_does() {
    let place = Workplace::new(TRAINYARD);
    // At the third step, the input of one ReLU is so near zero that rounding changes its sign.
    place.succeed(&format!("{RUN} --microbatch 4 --steps 2 -o one"));
    place.succeed(&format!("{RUN} --microbatch 2 --mesh dp=2 --zero 1 --steps 2 -o two"));
    let losses = |run: &str| -> Vec<f64> {
        let number = |value: &serde_json::Value| value.as_f64().expect("it is a number");
        place.metrics(run).iter().map(|line| number(&line["loss"])).collect()
    };
    for (one, two) in losses("one").iter().zip(losses("two")) {
        assert!((one - two).abs() <= 1e-5, "{:?} {:?}", losses("one"), losses("two"));
    }
    let [one, two] = ["one", "two"].map(|run| running_mean(&place, run, 2));
    assert!(one.iter().zip(&two).all(|(one, two)| (one - two).abs() <= 1e-5), "{one:?} {two:?}");
}

#[test]
fn batch_norms_that_the_exporter_folded_are_told_of() {
    let place = Workplace::new(TRAINYARD);
    let ended = place.succeed("compile testdata/models/resnet.dynamo.onnx -o folded");
    let told =
        "warning: the exporter folded batch norms into 20 layers; each trains as a layer without batch norm";
    assert!(ended.stderr.contains(told), "{}", ended.stderr);
    let ended = place.succeed("compile testdata/models/resnet.legacy-trainmode.onnx -o kept");
    assert!(!ended.stderr.contains("layer without batch norm"), "{}", ended.stderr);
}
