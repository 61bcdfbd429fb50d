//! Standard streams that are full or closed. The error stream is for people, so its state changes neither the work nor the exit code.

use crate::TRAINYARD;
use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use testing::workplace::{Ended, Workplace};

/// Commands that print to standard error, with their exit codes.
const COMMANDS: [(&str, i32); 5] = [
    ("compile testdata/gpt2-fresh.onnx --microbatch 2 --print-after fold -o plan", 0),
    (
        "compile testdata/gpt2-fresh.onnx --microbatch 2 --train text.txt --steps 3 --profile --force -o run",
        0,
    ),
    ("verify testdata/models/mlp.dynamo.onnx", 0),
    ("verify testdata/models/mlp.dynamo.onnx --mode cpu --tolerance 1e-300", 3),
    ("compile nothing.onnx", 2),
];

fn place() -> Workplace {
    Workplace::with_text(TRAINYARD, 10_000)
}

/// Opening a pipe blocks until another process writes to it.
#[test]
fn a_pipe_as_a_program_is_refused() {
    let place = place();
    let made = place.command_of(Path::new("mkfifo"), "program.ir").status();
    assert!(made.expect("mkfifo can be started").success());
    let text = super::refused(&place.run("opt program.ir --pipeline fold"));
    assert!(
        text.starts_with("error: cannot read the program: it is a pipe, and a regular file is needed"),
        "{text}"
    );
}

#[test]
fn a_full_error_stream_changes_no_exit_code() {
    let place = place();
    for (arguments, code) in COMMANDS {
        let full = File::options().write(true).open("/dev/full").expect("Linux has /dev/full");
        let status = place.command(arguments).stdout(Stdio::null()).stderr(full).status();
        assert_eq!(status.expect("it can be started").code(), Some(code), "{arguments}");
    }
    assert_eq!(place.metrics("run").len(), 3);
}

/// Runs through a shell, with a redirection behind the arguments.
fn redirected(place: &Workplace, arguments: &str, redirection: &str) -> ExitStatus {
    let script = format!("exec \"$0\" \"$@\" {redirection}");
    let mut command = place.command_of(Path::new("sh"), "-c");
    command.arg(script).arg(TRAINYARD).args(arguments.split_whitespace());
    command.status().expect("sh can be started")
}

#[test]
fn a_closed_error_stream_changes_no_exit_code() {
    let place = place();
    for (arguments, code) in COMMANDS {
        assert_eq!(redirected(&place, arguments, ">/dev/null 2>&-").code(), Some(code), "{arguments}");
    }
}

/// Runs with a reader that closes the stream before the first byte.
fn unread(mut command: Command) -> Ended {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started");
    drop(child.stdout.take());
    Ended::of(child.wait_with_output().expect("it ends"))
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let place = place();
    for arguments in [
        "inspect testdata/models/gpt2.dynamo.onnx",
        "inspect testdata/models/gpt2.dynamo.onnx --format json",
        "verify testdata/models/mlp.dynamo.onnx",
        "doctor",
        "completions bash",
        "--help",
        "--version",
    ] {
        let ended = unread(place.command(arguments));
        assert_eq!(ended.status.code(), Some(0), "{arguments}: {}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{arguments}: {}", ended.stderr);
    }
}

#[test]
fn output_that_cannot_be_written_is_told() {
    let place = place();
    let full = File::options().write(true).open("/dev/full").expect("Linux has /dev/full");
    let output = place.command("inspect testdata/models/mlp.dynamo.onnx").stdout(full).output();
    let ended = Ended::of(output.expect("it can be started"));
    assert_eq!(ended.status.code(), Some(75), "{}", ended.stderr);
    assert!(
        ended.errors().starts_with("error: cannot write to standard output\n  = because No space"),
        "{}",
        ended.stderr
    );
}
