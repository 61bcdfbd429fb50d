//! Runs in folders that an older version wrote. `testdata/format-1-run` is one: its checkpoint has format 1, without
//! checksums and with a fingerprint of samples of the data.

use crate::TRAINYARD;
use std::fs;

use expect_test::expect;

use super::refused;
use testing::workplace::Workplace;

/// The command of the older run, without its steps.
const RUN: &str = "compile testdata/short-batch.onnx --train data.npz --microbatch 4 --threads 1";
const CHECKPOINT: &str = "run/checkpoints/step-4/checkpoint.json";
const STATES: &str = "run/checkpoints/step-4/state.safetensors";

/// A copy of the older run after its 4 steps.
fn older() -> Workplace {
    let place = Workplace::new(TRAINYARD);
    place.write("data.npz", &place.read("testdata/short-batch.npz"));
    fs::create_dir_all(place.path(CHECKPOINT).parent().expect("it is in a folder")).expect("it can be made");
    for file in [CHECKPOINT, STATES, "run/config.toml", "run/metrics.jsonl"] {
        place.write(file, &place.read(&file.replacen("run", "testdata/format-1-run", 1)));
    }
    place
}

/// Replaces each `from` in a file by `to`, which is as long.
fn replace(place: &Workplace, file: &str, from: &str, to: &str) {
    let mut bytes = place.read(file);
    let starts: Vec<usize> =
        (0..bytes.len()).filter(|&at| bytes[at..].starts_with(from.as_bytes())).collect();
    assert!(!starts.is_empty(), "{file} has no {from}");
    starts.into_iter().for_each(|at| bytes[at..at + to.len()].copy_from_slice(to.as_bytes()));
    place.write(file, &bytes);
}

#[test]
fn a_run_of_format_1_goes_on_and_is_written_in_the_format_of_today() {
    let place = older();
    place.succeed(&format!("{RUN} --steps 8 --save-every 6 -o run --resume"));
    place.succeed(&format!("{RUN} --steps 8 -o whole"));
    let (resumed, whole) = (place.metrics("run"), place.metrics("whole"));
    assert_eq!(resumed.len(), 8);
    for (resumed, whole) in resumed.iter().zip(&whole) {
        let [a, b] = [resumed, whole].map(|line| line["loss"].as_f64().expect("every step has a loss"));
        // The older steps were computed on another processor.
        assert!((a - b).abs() < 1e-5 * b, "{a} and {b}");
    }
    // The new checkpoints have checksums.
    replace(&place, &STATES.replace("step-4", "step-6"), "conv.weight", "conv.weighs");
    fs::remove_dir_all(place.path("run/checkpoints/step-8")).expect("it is there");
    let ended = place.run(&format!("{RUN} --steps 8 -o run --resume=@6"));
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
}

#[test]
fn other_data_than_those_of_a_run_of_format_1_are_refused() {
    let place = older();
    let mut other = place.read("testdata/short-batch.npz");
    // The time of an archive entry, which no checksum of the file covers.
    other[10] ^= 1;
    place.write("data.npz", &other);
    let ended = place.run(&format!("{RUN} --steps 8 -o run --resume"));
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("`run/checkpoints/step-4` belongs to a run with other data"),
        "{}",
        ended.stderr
    );
}

#[test]
fn parameters_with_other_names_than_in_a_run_of_format_1_are_named() {
    let place = older();
    replace(&place, CHECKPOINT, "conv.weight", "stem.weight");
    replace(&place, STATES, "conv.weight", "stem.weight");
    refused(
        &place.run(&format!("{RUN} --steps 8 -o run --resume")),
        expect![[r#"
            error: `run/checkpoints/step-4` is a checkpoint of another program (`main_graph`):
              = missing in the checkpoint: `adam.m(conv.weight)` f32[4, 1, 3, 3], `adam.v(conv.weight)` f32[4, 1, 3, 3], `conv.weight` f32[4, 1, 3, 3]
              = not in this program: `adam.m(stem.weight)` f32[4, 1, 3, 3], `adam.v(stem.weight)` f32[4, 1, 3, 3], `stem.weight` f32[4, 1, 3, 3]
              = resume with the model and the flags of the first run; or load only the weights, with --weights run/checkpoints/step-4
        "#]],
    );
}
