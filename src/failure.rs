//! Why a command cannot go on.

use ir::Diagnostic;

/// Why a subcommand could not go on.
#[derive(Debug)]
pub enum Failure {
    /// The user can mend it: exit code 2.
    User(Vec<Diagnostic>),
    /// The user cannot: exit code 1.
    Fault(anyhow::Error),
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
                let causes = error.chain().skip(1);
                let told = causes.fold(Diagnostic::of_lines(error), |told, cause| {
                    let Diagnostic { message, origin, notes } = Diagnostic::of_lines(&cause);
                    let place = origin.map(|origin| format!("at {origin}"));
                    let told = told.note(format!("because {message}"));
                    place.into_iter().chain(notes).fold(told, Diagnostic::note)
                });
                vec![told.note("this is a fault of trainyard or of the machine, not of the model")]
            }
        }
    }

    /// 2 for a user's mistake, 1 for a fault.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::User(_) => 2,
            Self::Fault(_) => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::diagnostics::{Severity, render};

    #[test]
    fn every_line_of_a_fault_is_a_part_of_its_own() {
        let cause = anyhow::anyhow!("no kernel\n  --> node \"/Add\"\n  = a note\nline 1: error");
        let failure = Failure::from(cause.context("cannot compile\n  = another"));
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
        expect![[r"
            error: cannot save checkpoints/step-10
              = because no space left
              = this is a fault of trainyard or of the machine, not of the model
        "]]
        .assert_eq(&render(Severity::Error, &failure.diagnostics(), false));
    }
}
