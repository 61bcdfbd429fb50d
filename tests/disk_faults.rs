//! A whole run with a fault at each of its disk operations in turn, as in SQLite's tests. After each fault, the same command with
//! `--resume` ends with the states, the metrics and the exports of a run without a fault.
//!
//! This test has its own process: in a shared one, a child process of another test would hold the lock of a folder for a moment.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use files::fault::{Fault, count, inject};
use trainyard::cli::report::Outcome;
use trainyard::cli::{Cli, ParseError};
use trainyard::failure::Failure;

/// Three epochs of a model with batch norms, which is exported in both forms; a checkpoint every two steps.
const RUN: &str = "compile testdata/short-batch.onnx --train testdata/short-batch.npz --microbatch 4 --steps 4 \
                   --save-every 2 --threads 1";

/// The kinds of fault. Kinds that equal another kind at the next operation are left out.
const FAULTS: [Fault; 4] = [Fault::Full, Fault::Failed, Fault::KilledAfter, Fault::PowerLostAfter];

/// Runs the command in this process.
fn run(folder: &Path, more: &[&str]) -> Result<Outcome, Failure> {
    let output = folder.to_str().expect("temporary folders have plain names");
    let arguments = ["trainyard"].into_iter().chain(RUN.split_whitespace()).chain(["-o", output]);
    let arguments = arguments.chain(more.iter().copied()).map(OsString::from);
    match Cli::parse_with_config(arguments) {
        Ok(cli) => cli.command.run(),
        Err(ParseError::Usage(error)) => panic!("{error}"),
        Err(ParseError::Settings(errors) | ParseError::Rules(errors)) => panic!("{errors:?}"),
    }
}

/// The files that a run produces. Times are left out, because they differ between runs.
fn results(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let files = [
        "checkpoints/step-2/state.safetensors",
        "checkpoints/step-4/state.safetensors",
        "checkpoints/step-4/checkpoint.json",
        "model.onnx",
        "model-training.onnx",
        "model.safetensors",
    ];
    let read = |name: &str| fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut results: Vec<_> = files.map(|name| (name.to_owned(), read(name))).into();
    for line in String::from_utf8(read("metrics.jsonl")).unwrap().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let step = line["step"].as_u64().unwrap();
        results.push((format!("step {step}"), line["loss"].to_string().into_bytes()));
    }
    results
}

#[test]
fn a_run_survives_every_fault_at_every_operation() {
    let parent = tempfile::tempdir().unwrap();
    let whole = parent.path().join("whole");
    let (done, operations) = count(|| run(&whole, &[]));
    assert_eq!(done.unwrap(), Outcome::Done);
    let expected = results(&whole);
    println!("a run of 4 steps and 2 checkpoints: {operations} operations on the disk");
    assert!(operations > 50);
    for at in 0..operations {
        for fault in FAULTS {
            let folder = parent.path().join(format!("{at}-{fault:?}"));
            let failed = inject(at, fault, || run(&folder, &[]));
            if !matches!(failed, Err(Failure::User(_))) {
                // The run may succeed if a file cannot be removed after its work is done.
                assert!(matches!(fault, Fault::Full | Fault::Failed), "{fault:?} at {at}: {failed:?}");
            }
            // A folder without a command's settings holds no run yet. Otherwise the command is repeated with `--resume`.
            let begun = folder.join("config.toml").exists();
            let more: &[&str] = if begun { &["--resume"] } else { &["--force"] };
            let resumed = run(&folder, more);
            assert!(matches!(resumed, Ok(Outcome::Done)), "{fault:?} at {at}: {resumed:?}");
            assert!(results(&folder) == expected, "{fault:?} at {at}: other results");
            let half = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
            let half: Vec<_> = half.filter(|name| name.to_string_lossy().ends_with(".partial")).collect();
            assert!(half.is_empty(), "{fault:?} at {at}: {half:?}");
            fs::remove_dir_all(&folder).unwrap();
        }
    }
}
