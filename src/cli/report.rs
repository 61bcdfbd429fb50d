//! What a user is told: diagnostics on the terminal, and the exit code.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;

use ir::{Diagnostic, is_hidden, visible};
use serde::Serialize;

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

/// Writes text for a person to standard output, as [`write_out`] does: whatever hidden characters it has, but its line
/// breaks, are escaped.
pub fn write_text(text: &str) -> Result<(), Failure> {
    write_out(&shown(text))
}

/// The text with every hidden character escaped but its line breaks.
fn shown(text: &str) -> Cow<'_, str> {
    match text.split('\n').all(|line| matches!(visible(line), Cow::Borrowed(_))) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(text.split('\n').map(visible).collect::<Vec<_>>().join("\n")),
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

/// A value as JSON, with a line break at its end. Hidden characters in strings, which JSON allows, are written as JSON's own
/// escapes: the text may be shown on a terminal.
pub(super) fn json(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::Fault(error.into()))?;
    let mut escaped = String::with_capacity(text.len() + 1);
    for character in text.chars() {
        // Line breaks are the layout's: those in strings are escapes already.
        match is_hidden(character) && character != '\n' {
            true => character.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                let _ = write!(escaped, "\\u{unit:04x}");
            }),
            false => escaped.push(character),
        }
    }
    Ok(escaped + "\n")
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
    write_error(&render(severity, diagnostics, coloured));
}

/// Tells a person one thing on a line of standard error; hidden characters in it, which names may have, are escaped.
/// Takes the arguments of `format!`.
macro_rules! tell {
    ($($argument:tt)*) => { $crate::cli::report::tell_line(&format!($($argument)*)) };
}
pub(super) use tell;

/// Writes a line to standard error, its hidden characters escaped.
pub(super) fn tell_line(line: &str) {
    write_error(&format!("{}\n", visible(line)));
}

/// Writes text of several lines to standard error, the hidden characters of each escaped.
pub(super) fn tell_lines(text: &str) {
    write_error(&format!("{}\n", shown(text.trim_end())));
}

/// Writes to standard error. An error stream that is full or closed changes nothing of what the command does, nor its exit
/// code.
fn write_error(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Diagnostics as text, an empty line between two. Every part is one line: hidden characters, which a hostile file's
/// names may have, are escaped.
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
        let _ = writeln!(text, "{gap}{heading} {}", visible(diagnostic.message.trim_end()));
        if let Some(origin) = &diagnostic.origin {
            let _ = writeln!(text, "  {} {}", paint("34", "-->"), visible(origin));
        }
        for note in &diagnostic.notes {
            let _ = writeln!(text, "  {} {}", paint("34", "="), visible(note.trim_end()));
        }
    }
    text
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
        let diagnostic = Diagnostic::new("no operator `\x1b[2J\x07`").note("two\nlines, and \u{202e}back");
        expect![[r"
            warning: no operator `\u{1b}[2J\u{7}`
              = two\nlines, and \u{202e}back
        "]]
        .assert_eq(&render(Severity::Warning, &[diagnostic], false));
    }

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
