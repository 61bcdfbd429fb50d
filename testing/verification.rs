//! `trainyard verify` as a test calls it.

use crate::testdata;
use std::path::Path;
use trainyard::cli::{Cli, Command, ParseError};
use trainyard::diagnostics::{Severity, render};
use trainyard::failure::Failure;
use trainyard::verification::report::Report;

/// Runs `trainyard verify FILE FLAGS` in this process.
pub fn verify(file: &Path, flags: &str) -> Result<Report, Failure> {
    let file = file.display().to_string();
    let words = ["trainyard", "verify", &file].map(str::to_owned).into_iter();
    let cli = Cli::parse_with_config(words.chain(flags.split_whitespace().map(str::to_owned)));
    let cli = match cli {
        Err(ParseError::Settings(problems) | ParseError::Rules(problems)) => return Err(problems.into()),
        cli => cli.expect("the flags are right"),
    };
    let Command::Verify(verify) = cli.command else { panic!("not a verify") };
    verify.report()
}

/// Runs `trainyard verify FILE FLAGS`; both programs must do the same.
#[track_caller]
pub fn passing(file: &Path, flags: &str) -> Report {
    let what = || format!("{} {flags}", file.display());
    let report = verify(file, flags).unwrap_or_else(|failure| {
        panic!("{}: {}", what(), render(Severity::Error, &failure.diagnostics(), false))
    });
    assert!(report.passed && report.failed() == 0, "{}:\n{report}", what());
    report
}

/// Runs `trainyard verify` on a model of `testdata`; both programs must do the same.
#[track_caller]
pub fn model(name: &str, flags: &str) -> Report {
    passing(&testdata(&format!("{name}.onnx")), flags)
}

/// The loss of a step of 12 samples. The seed draws the same samples with all flags.
#[track_caller]
pub fn loss(name: &str, flags: &str) -> f64 {
    model(name, &format!("--global-batch 12 --tolerance 1e-10 {flags}")).loss.expect("a step has a loss")
}

/// The same samples have the same loss, and the step is that of the untransformed graph.
#[track_caller]
pub fn same_loss(name: &str, expected: f64, flags: &str) {
    let given = loss(name, flags);
    assert!((given - expected).abs() <= 1e-10, "{name} {flags}: {given}, not {expected}");
}
