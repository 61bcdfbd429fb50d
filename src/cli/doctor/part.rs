//! `doctor --part`: a part of a check, run in this process for the `doctor --check` that started it.

use crate::cli::report::Outcome;
use crate::failure::Failure;
use crate::signals;
use cuda::check::part::CheckPart;
use ir::Diagnostic;
use std::io;

/// Runs a part, and writes its results to standard output, a line of JSON each.
pub(super) fn run(part: &CheckPart) -> Result<Outcome, Failure> {
    signals::end_with_parent();
    match part.run(&mut io::stdout().lock()) {
        Ok(true) => Ok(Outcome::Done),
        Ok(false) => Ok(Outcome::Difference),
        Err(error) => Err(Diagnostic::new(format!("--part {part}: {error}")).into()),
    }
}
