//! `trainyard verify` as a test calls it.

use std::path::{Path, PathBuf};
use trainyard::cli::report::{Failure, Severity, render};
use trainyard::cli::{Cli, Command};
use trainyard::verification::report::Report;

/// What `trainyard verify FILE FLAGS` finds.
pub(crate) fn verify(file: &Path, flags: &str) -> Result<Report, Failure> {
    let file = file.display().to_string();
    let words = ["trainyard", "verify", &file].map(str::to_owned).into_iter();
    let cli = Cli::parse_with_config(words.chain(flags.split_whitespace().map(str::to_owned)));
    let Command::Verify(verify) = cli.expect("the flags are right").command else { panic!("not a verify") };
    verify.report()
}

/// The same, which is that both programs do the same.
#[track_caller]
pub(crate) fn passing(file: &Path, flags: &str) -> Report {
    let what = || format!("{} {flags}", file.display());
    let report = verify(file, flags).unwrap_or_else(|failure| {
        panic!("{}: {}", what(), render(Severity::Error, &failure.diagnostics(), false))
    });
    assert!(report.passed && report.failed() == 0, "{}:\n{report}", what());
    report
}

/// A file of `testdata`.
pub(crate) fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}
