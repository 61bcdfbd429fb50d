//! The message that a user gets when the program cannot do what was asked.

use crate::visible;
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// A user's mistake or a limit: the fault, its place, and a remedy.
///
/// Each part is shown as one line. Hidden characters, which the names in a hostile file may contain, are escaped when it is shown
/// (see [`visible()`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// The fault, with the numbers.
    pub message: String,
    /// The place of the fault: file, node with its operator and opset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Reasons and remedies, one in each note.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Whether the fault may disappear without a change of the command, such as a full disk or a lost process.
    #[serde(skip)]
    pub is_passing: bool,
}

impl Diagnostic {
    /// Makes a diagnostic without origin or notes.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    /// Sets whether the fault may disappear without a change of the command.
    pub fn passing_if(mut self, is_passing: bool) -> Self {
        self.is_passing = is_passing;
        self
    }

    /// Sets the place of the fault.
    pub fn at(mut self, origin: impl Into<String>) -> Self {
        self.origin = Some(origin.into());
        self
    }

    /// Puts a file before the place of the fault.
    pub fn in_file(self, file: &Path) -> Self {
        let place = self.origin.as_ref().map(|place| format!(", {place}")).unwrap_or_default();
        self.at(format!("{}{place}", file.display()))
    }

    /// Makes a diagnostic of several lines of text, such as a compiler's: the first line is the message, each other line a note.
    pub fn of_lines(text: &str) -> Self {
        let (first, others) = text.split_once('\n').unwrap_or((text, ""));
        Self::new(first).note_lines(others)
    }

    /// Adds every line of a longer text, such as a compiler's, as a note of its own.
    pub fn note_lines(self, text: &str) -> Self {
        text.trim_end().lines().fold(self, Self::note)
    }

    /// Adds a reason or a remedy.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&visible(self.message.trim_end()))?;
        if let Some(origin) = &self.origin {
            write!(f, "\n  --> {}", visible(origin))?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n  = {}", visible(note.trim_end())))
    }
}

impl std::error::Error for Diagnostic {}

/// An ill-typed node that a pass built is reported as a bug of the compiler.
impl From<crate::TypeError> for Diagnostic {
    fn from(error: crate::TypeError) -> Self {
        Self::new(format!("a node that the compiler built is ill-typed: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_adds_no_line() {
        let diagnostic =
            Diagnostic::new("no tensor `a\n  = all is well`").at("x.onnx\r").note("near `\u{202e}b`");
        assert_eq!(
            diagnostic.to_string(),
            "no tensor `a\\n  = all is well`\n  --> x.onnx\\r\n  = near `\\u{202e}b`"
        );
    }

    #[test]
    fn the_first_line_of_a_text_is_the_message() {
        let diagnostic = Diagnostic::of_lines("failed\na.cu:1: error\n  here\n");
        assert_eq!(diagnostic.to_string(), "failed\n  = a.cu:1: error\n  =   here");
        assert_eq!(Diagnostic::of_lines("failed"), Diagnostic::new("failed"));
    }

    #[test]
    fn lines_become_notes() {
        let diagnostic = Diagnostic::new("m").note_lines("one\ntwo\n");
        assert_eq!(diagnostic.notes, ["one", "two"]);
    }
}
