//! Messages to the user: diagnostics on the terminal, and the exit code.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ir::timetable::Task;
use ir::{Diagnostic, is_hidden, visible};
use program::device::rank_at;
use serde::Serialize;

use super::ParseError;
use crate::diagnostics::{Severity, render};
use crate::failure::Failure;
use crate::log;

/// The end of a subcommand without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command did its work: exit code 0.
    Done,
    /// `verify` found a difference above the tolerance, or `doctor` a GPU that does not pass: exit code 3.
    Difference,
    /// `compile` was asked to stop before the last step, by Ctrl-C or SIGTERM, and saved: exit code 130, as a shell gives a
    /// program that Ctrl-C ended.
    Stopped,
}

/// Prints the failure of a subcommand to standard error, and returns the exit code.
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

/// Prints the reason why a command line was refused, or to standard output the help that it asked for, and returns the exit code. Rank 0
/// alone tells errors that all processes of a run find.
pub fn finish_parse_error(error: ParseError, is_first: bool) -> ExitCode {
    match error {
        ParseError::Usage(error) => {
            // If the terminal is gone, the error cannot be shown.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { 2 } else { 0 })
        }
        ParseError::Rules(_) if !is_first => {
            // A launcher ends all processes when the first one ends, and rank 0 has to tell the user before.
            thread::sleep(Duration::from_millis(500));
            ExitCode::from(2)
        }
        ParseError::Settings(diagnostics) | ParseError::Rules(diagnostics) => {
            finish(Err(Failure::User(diagnostics)))
        }
    }
}

/// Writes text for a person to standard output, as [`write_out`] does. Hidden characters are escaped, except line breaks.
pub fn write_text(text: &str) -> Result<(), Failure> {
    write_out(&shown(text))
}

/// Escapes every hidden character of a text, except line breaks.
fn shown(text: &str) -> Cow<'_, str> {
    if text.split('\n').all(|line| matches!(visible(line), Cow::Borrowed(_))) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.split('\n').map(visible).collect::<Vec<_>>().join("\n"))
    }
}

/// Writes the result of a command to standard output. A reader that has gone away, as `head` does, is no failure.
pub fn write_out(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Returns the outcome of writing to standard output. A reader that has gone away, as `head` does, is no failure.
pub(super) fn written(outcome: std::io::Result<()>) -> Result<(), Failure> {
    match outcome {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Fault(anyhow::Error::new(error).context("cannot write to standard output")))
        }
        _ => Ok(()),
    }
}

/// Returns a value as JSON, with a line break at its end. Hidden characters in strings, which JSON allows, are escaped, because the text may be
/// shown on a terminal.
pub(super) fn json(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::Fault(error.into()))?;
    let mut escaped = String::with_capacity(text.len() + 1);
    for character in text.chars() {
        // Line breaks outside of strings are layout. Those in strings are already escaped.
        if is_hidden(character) && character != '\n' {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(character);
        }
    }
    Ok(escaped + "\n")
}

/// Prints diagnostics to standard error, in colour when it is a terminal and `NO_COLOR` is not set.
pub fn print(severity: Severity, diagnostics: &[Diagnostic]) {
    let coloured = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let plain = render(severity, diagnostics, false);
    log::write(&plain);
    write_error(&if coloured { render(severity, diagnostics, true) } else { plain });
}

/// Prints one line for the user on standard error, and takes the arguments of `format!`. Hidden characters, which names may have, are escaped.
macro_rules! tell {
    ($($argument:tt)*) => { $crate::cli::report::tell_line(&format!($($argument)*)) };
}
pub(super) use tell;

/// Writes a line to standard error, its hidden characters escaped.
pub(super) fn tell_line(line: &str) {
    tell_text(&format!("{}\n", visible(line)));
}

/// Writes text of several lines to standard error, the hidden characters of each escaped.
pub(super) fn tell_lines(text: &str) {
    tell_text(&format!("{}\n", shown(text.trim_end())));
}

/// Writes text to standard error and to the log.
fn tell_text(text: &str) {
    log::write(text);
    write_error(text);
}

/// Whether another process prints messages for the user, and this process prints none.
static IS_MUTE: AtomicBool = AtomicBool::new(false);

/// Leaves the messages for the user to rank 0.
pub(super) fn mute() {
    IS_MUTE.store(true, Ordering::Relaxed);
}

/// Lets this process print messages for the user too.
pub(super) fn unmute() {
    IS_MUTE.store(false, Ordering::Relaxed);
}

/// Prints the failure of a rank, with its number and its task in a pipeline. The number of rank 0 is left out if it has no task.
pub(super) fn print_of_rank(rank: u64, task: Option<Task>, failure: &Failure) {
    unmute();
    let mut diagnostics = failure.diagnostics();
    if let Some(first) = diagnostics.first_mut().filter(|_| rank > 0 || task.is_some()) {
        first.message = format!("{}: {}", rank_at(rank, task), first.message);
    }
    print(Severity::Error, &diagnostics);
}

/// Writes to standard error. If the error stream is full or closed, neither the work of the command nor its exit code changes.
fn write_error(text: &str) {
    if IS_MUTE.load(Ordering::Relaxed) {
        return;
    }
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
