//! What a user is told: diagnostics on the terminal, and the exit code.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;

use ir::Diagnostic;

use super::ParseError;

/// How a subcommand ended when nothing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it was asked: exit code 0.
    Done,
    /// `verify` found a difference above the tolerance, or `doctor` a GPU that does not pass: exit code 3.
    Difference,
    /// `compile` was asked to stop before the last step, by Ctrl-C or SIGTERM, and saved: exit code 130, as a shell gives a
    /// program that Ctrl-C ended.
    Stopped,
}

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
                let causes = error.chain().skip(1).map(|cause| format!("because {cause}"));
                let notes =
                    causes.chain(["this is a fault of trainyard or of the machine, not of the model".into()]);
                vec![Diagnostic { message: error.to_string(), origin: None, notes: notes.collect() }]
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

/// Prints how a subcommand ended, to standard error, and gives the exit code.
pub fn finish(result: Result<Outcome, Failure>) -> ExitCode {
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Difference) => ExitCode::from(3),
        Ok(Outcome::Stopped) => ExitCode::from(130),
        Err(failure) => {
            print(Severity::Error, &failure.diagnostics());
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Prints why a command line was refused (to standard output when it asked for help), and gives the exit code.
pub fn finish_parse_error(error: ParseError) -> ExitCode {
    match error {
        ParseError::Usage(error) => {
            // Nothing is left to do when the terminal is gone.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { 2 } else { 0 })
        }
        ParseError::Settings(diagnostics) => finish(Err(Failure::User(diagnostics))),
    }
}

/// Writes what was asked for to standard output. A reader that has gone away, as `head` does, is no failure.
pub fn write_out(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Fault(anyhow::Error::new(error).context("cannot write to standard output")))
        }
        _ => Ok(()),
    }
}

/// What stands before a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// It stops here.
    Error,
    /// It goes on.
    Warning,
}

/// Prints diagnostics to standard error, in colour when it is a terminal and `NO_COLOR` is not set.
pub fn print(severity: Severity, diagnostics: &[Diagnostic]) {
    let coloured = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    eprint!("{}", render(severity, diagnostics, coloured));
}

/// Diagnostics as text, an empty line between two. Control characters, which a hostile file's names may carry,
/// are written as escapes.
pub fn render(severity: Severity, diagnostics: &[Diagnostic], coloured: bool) -> String {
    let paint = |code: &str, text: &str| match coloured {
        true => format!("\x1b[{code}m{text}\x1b[0m"),
        false => text.to_owned(),
    };
    let heading = match severity {
        Severity::Error => paint("1;31", "error:"),
        Severity::Warning => paint("1;33", "warning:"),
    };
    let mut text = String::new();
    for (index, diagnostic) in diagnostics.iter().enumerate() {
        let gap = if index > 0 { "\n" } else { "" };
        let _ = writeln!(text, "{gap}{heading} {}", visible(&diagnostic.message));
        if let Some(origin) = &diagnostic.origin {
            let _ = writeln!(text, "  {} {}", paint("34", "-->"), visible(origin));
        }
        for note in &diagnostic.notes {
            let _ = writeln!(text, "  {} {}", paint("34", "="), visible(note));
        }
    }
    text
}

/// Text with its control characters escaped, and its later lines indented.
fn visible(text: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    for character in text.trim_end().chars() {
        match character {
            '\n' => visible.push_str("\n    "),
            c if c.is_control() => visible.extend(c.escape_default()),
            c => visible.push(c),
        }
    }
    visible
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_diagnostic_says_what_where_and_what_to_do() {
        let diagnostic = Diagnostic::new("cannot bind dim `batch` to 3")
            .at("gpt2.onnx, node \"/h.0/attn\" (Reshape, opset 20)")
            .note("it is 2 in the file");
        expect![[r#"
            error: cannot bind dim `batch` to 3
              --> gpt2.onnx, node "/h.0/attn" (Reshape, opset 20)
              = it is 2 in the file

            error: another
        "#]]
        .assert_eq(&render(Severity::Error, &[diagnostic, Diagnostic::new("another")], false));
    }

    #[test]
    fn a_hostile_name_cannot_steer_the_terminal() {
        let diagnostic = Diagnostic::new("no operator `\x1b[2J\x07`").note("two\nlines");
        expect![[r"
            warning: no operator `\u{1b}[2J\u{7}`
              = two
                lines
        "]]
        .assert_eq(&render(Severity::Warning, &[diagnostic], false));
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
