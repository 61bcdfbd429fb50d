//! The reasons why a command cannot go on.

use checkpoint::CheckpointError;
use ir::Diagnostic;
use program::device::DeviceError;
use std::error::Error;
use train::TrainError;

/// The reason why a subcommand could not go on.
#[derive(Debug)]
pub enum Failure {
    /// A mistake that the user can correct: exit code 2, or [`PASSING`] if the same command may succeed later.
    User(Vec<Diagnostic>),
    /// A fault that the user cannot correct: exit code 1, or [`PASSING`] if a fault of the machine may pass.
    Fault(anyhow::Error),
}

/// The exit code of a fault that may pass: a scheduler can start the same command again. It is EX_TEMPFAIL of sysexits.h.
pub const PASSING: u8 = 75;

/// Whether an error is a fault of the machine that may pass.
fn is_passing(error: &(dyn Error + 'static)) -> bool {
    let of_system = error.downcast_ref::<std::io::Error>().is_some_and(files::disk::is_passing);
    of_system || diagnostic(error).is_passing
}

impl From<Diagnostic> for Failure {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::User(vec![diagnostic])
    }
}

impl From<Vec<Diagnostic>> for Failure {
    fn from(diagnostics: Vec<Diagnostic>) -> Self {
        Self::User(diagnostics)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Fault(error)
    }
}

impl Failure {
    /// The diagnostics to show.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        match self {
            Self::User(diagnostics) => diagnostics.clone(),
            Self::Fault(error) => {
                let mut errors = error.chain().map(diagnostic);
                let told = errors.next().unwrap_or_default();
                let told = errors.fold(told, |told, Diagnostic { message, origin, notes, .. }| {
                    let place = origin.map(|origin| format!("at {origin}"));
                    let told = told.note(format!("because {message}"));
                    place.into_iter().chain(notes).fold(told, Diagnostic::note)
                });
                vec![told.note("this is a fault of trainyard or of the machine, not of the model")]
            }
        }
    }

    /// Adds a note to mistakes of the user.
    pub fn note(self, note: &str) -> Self {
        match self {
            Self::User(diagnostics) => {
                Self::User(diagnostics.into_iter().map(|diagnostic| diagnostic.note(note)).collect())
            }
            fault => fault,
        }
    }

    /// 2 for a user's mistake, 1 for a fault, 75 for a fault of the machine that may pass.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::User(diagnostics) if diagnostics.iter().any(|diagnostic| diagnostic.is_passing) => PASSING,
            Self::User(_) => 2,
            Self::Fault(error) if error.chain().any(is_passing) => PASSING,
            Self::Fault(_) => 1,
        }
    }
}

/// The diagnostic of an error. Errors of this program have notes. Of other errors, each line of the text after the first becomes a note.
fn diagnostic(error: &(dyn Error + 'static)) -> Diagnostic {
    let told = error.downcast_ref().cloned();
    let told = told.or_else(|| error.downcast_ref::<passes::Failure>().map(Diagnostic::from));
    let told = told.or_else(|| error.downcast_ref::<TrainError>().map(Diagnostic::from));
    let told = told.or_else(|| error.downcast_ref::<CheckpointError>().map(Diagnostic::from));
    let told = told.or_else(|| error.downcast_ref::<DeviceError>().map(Diagnostic::from));
    told.unwrap_or_else(|| Diagnostic::of_lines(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::diagnostics::{Severity, render};

    #[test]
    fn every_line_of_a_fault_is_a_part_of_its_own() {
        let cause =
            Diagnostic::new("no kernel").at("node \"/Add\"").note("a note").note_lines("line 1: error\n");
        let failure = Failure::from(anyhow::Error::new(cause).context("cannot compile\nanother"));
        expect![[r#"
            error: cannot compile
              = another
              = because no kernel
              = at node "/Add"
              = a note
              = line 1: error
              = this is a fault of trainyard or of the machine, not of the model
        "#]]
        .assert_eq(&render(Severity::Error, &failure.diagnostics(), false));
    }

    #[test]
    fn a_fault_shows_its_causes_and_exits_with_1() {
        let error = anyhow::anyhow!("no space left").context("cannot save checkpoints/step-10");
        let failure = Failure::from(error);
        assert_eq!(failure.exit_code(), 1);
        let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert_eq!(Failure::from(anyhow::Error::new(full()).context("cannot save")).exit_code(), PASSING);
        let late = TrainError::from(DeviceError::Disk(full()));
        assert_eq!(Failure::from(anyhow::Error::new(late)).exit_code(), PASSING);
        assert_eq!(Failure::from(Diagnostic::new("a mistake")).exit_code(), 2);
        assert_eq!(Failure::from(Diagnostic::new("a disk").passing_if(true)).exit_code(), PASSING);
        expect![[r"
            error: cannot save checkpoints/step-10
              = because no space left
              = this is a fault of trainyard or of the machine, not of the model
        "]]
        .assert_eq(&render(Severity::Error, &failure.diagnostics(), false));
    }
}
