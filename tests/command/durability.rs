//! Runs whose disk, files or folder are damaged, removed or used by other processes. Each fault is reported, and nothing is lost.

mod damage;
mod killed;

use crate::TRAINYARD;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use testing::running::Running;
use testing::workplace::Workplace;

/// A run with enough steps that a fault can be planted between them.
const RUN: &str =
    "compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 16 --save-every 5 -o run --steps";

/// A run that has written a checkpoint and is still going on.
fn running() -> (Workplace, Running) {
    let place = Workplace::with_text(TRAINYARD, 200_000);
    let mut running = Running::start(place.command(&format!("{RUN} 2000")));
    running.wait_for_checkpoint(&place.path("run/checkpoints/step-5"));
    (place, running)
}

#[test]
fn a_second_run_in_the_same_folder_is_refused_until_the_first_ends() {
    let (place, running) = running();
    for more in ["", " --resume", " --force"] {
        let second = place.run(&format!("{RUN} 2000{more}"));
        assert_eq!(second.status.code(), Some(75), "{}", second.stderr);
        let first_line = second.stderr.lines().next().unwrap_or_default();
        assert!(first_line.starts_with("error: run is in use by process "), "{}", second.stderr);
        assert!(first_line.ends_with(" UTC"), "{}", second.stderr);
    }
    running.kill();
    // The system releases the lock of a process that was killed.
    let last = *place.checkpoints("run").last().expect("it has saved");
    place.succeed(&format!("{RUN} {} --resume", last + 1));
}

#[test]
fn data_that_are_cut_off_end_the_run_with_their_name() {
    let (place, running) = running();
    OpenOptions::new().write(true).open(place.path("text.txt")).unwrap().set_len(0).unwrap();
    let ended = running.wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    let by_step = "`text.txt` was changed while it was in use: it had 200000 bytes, and it has 0 bytes now";
    let by_signal = "`text.txt` was truncated while it was in use, or it can no longer be read";
    assert!(ended.stderr.contains(by_step) || ended.stderr.contains(by_signal), "{}", ended.stderr);
    assert!(ended.stderr.contains("--resume"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("done:"), "{}", ended.stderr);
    assert!(!place.checkpoints("run").is_empty());
}

#[test]
fn held_out_data_that_are_cut_off_are_named() {
    let place = Workplace::with_text(TRAINYARD, 200_000);
    let flags =
        "compile testdata/gpt2-fresh.onnx --train text.txt --eval held.txt --microbatch 16 --steps 40 -o run";
    place.write("held.txt", &place.read("text.txt"));
    let mut running = Running::start(place.command(flags));
    running.wait_for_line("before step 0");
    OpenOptions::new().write(true).open(place.path("held.txt")).unwrap().set_len(0).unwrap();
    let ended = running.wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("error: `held.txt` was "), "{}", ended.stderr);
}

#[test]
fn data_that_are_overwritten_in_place_end_the_run() {
    let (place, running) = running();
    OpenOptions::new()
        .write(true)
        .open(place.path("text.txt"))
        .unwrap()
        .write_at(b"other words", 100)
        .unwrap();
    let ended = running.wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("`text.txt` was changed while it was in use: a program wrote to the file"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_run_goes_on_after_changes_of_its_data_that_leave_the_mapped_bytes() {
    let place = Workplace::with_text(TRAINYARD, 200_000);
    let text = place.path("text.txt");
    // The data lie in the folder of the model, where the model's own files must not change. They are given by their full path.
    place.write("model.onnx", &place.read("testdata/gpt2-fresh.onnx"));
    let run = RUN.replace("text.txt", &text.display().to_string()).replace("testdata/gpt2-fresh", "model");
    let mut running = Running::start(place.command(&format!("{run} 2000")));
    running.wait_for_checkpoint(&place.path("run/checkpoints/step-5"));
    let note = |change: &str| {
        format!("note: `{}` was changed while it was in use: {change}; the run continues", text.display())
    };
    let later = SystemTime::now() + Duration::from_secs(10);
    fs::File::options().write(true).open(&text).unwrap().set_modified(later).unwrap();
    running.wait_for_line(&note("a program wrote to the file"));
    OpenOptions::new().append(true).open(&text).unwrap().write_all(b"more text").unwrap();
    running.wait_for_line(&note("a program wrote to the file"));
    place.write("other.txt", &place.read("testdata/kjv.txt")[300_000..500_000]);
    fs::rename(place.path("other.txt"), &text).unwrap();
    running.wait_for_line(&note("the file was replaced or removed"));
    running.kill();
    let resumed = place.run(&format!("{run} 2000 --resume"));
    assert_eq!(resumed.status.code(), Some(2), "{}", resumed.stderr);
    assert!(resumed.stderr.contains("other data"), "{}", resumed.stderr);
}

#[test]
fn a_folder_that_is_moved_or_removed_ends_the_run_with_an_error() {
    for removed in [false, true] {
        let (place, running) = running();
        if removed {
            // The run may write a file while the folder is being removed.
            while place.path("run").exists() && fs::remove_dir_all(place.path("run")).is_err() {}
        } else {
            fs::rename(place.path("run"), place.path("elsewhere")).unwrap()
        }
        let ended = running.wait();
        assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
        let is_gone = ended.stderr.contains("the folder `run` was moved or removed");
        // The lock may be removed before the folder.
        let is_open = removed && ended.stderr.contains("the file `.lock` of the folder `run` was removed");
        assert!(is_gone || is_open, "{}", ended.stderr);
        assert!(!ended.stderr.contains("done:"), "{}", ended.stderr);
        if !removed {
            assert!(!place.path("run").exists(), "it was made anew");
        }
    }
}

#[test]
fn lines_of_metrics_that_are_missing_are_told() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let flags = "compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 64 -o run";
    place.succeed(&format!("{flags} --steps 4"));
    let metrics = String::from_utf8(place.read("run/metrics.jsonl")).unwrap();
    let lines: Vec<&str> = metrics.lines().collect();
    place.write("run/metrics.jsonl", format!("{}\n{}\n{}\n", lines[0], lines[1], lines[4]).as_bytes());
    let resumed = place.succeed(&format!("{flags} --steps 5 --resume"));
    let note = "note: run/metrics.jsonl lacks 2 of the 4 completed steps";
    assert!(resumed.stderr.contains(note), "{}", resumed.stderr);
}

#[test]
fn a_damaged_tensor_of_an_export_is_refused_as_a_model_and_as_weights() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let flags = "compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 64 --steps";
    place.succeed(&format!("{flags} 1 -o run"));
    for (file, arguments) in [
        ("run/model.onnx", "inspect run/model.onnx".to_owned()),
        ("run/model.safetensors", format!("{flags} 1 -o other --weights run/model.safetensors")),
        ("run/checkpoints/step-1/state.safetensors", format!("{flags} 2 -o run --resume")),
    ] {
        let bytes = place.read(file);
        let mut damaged = bytes.clone();
        // The middle of the file lies in its largest tensors, which are most of it.
        damaged[bytes.len() / 2] ^= 0x10;
        place.write(file, &damaged);
        let ended = place.run(&arguments);
        assert_eq!(ended.status.code(), Some(2), "{arguments}\n{}", ended.stderr);
        assert!(ended.stderr.contains("do not match"), "{}", ended.stderr);
        place.write(file, &bytes);
    }
}

#[test]
fn a_lock_that_somebody_left_half_written_is_taken() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    fs::create_dir(place.path("run")).unwrap();
    fs::File::create(place.path("run/.lock")).unwrap().write_all(b"proc").unwrap();
    place.succeed("compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 64 --steps 1 -o run");
    assert!(place.path("run/model.onnx").exists());
}
