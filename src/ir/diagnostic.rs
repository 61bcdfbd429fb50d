//! What a user is told when something cannot be done.

use crate::visible;
use std::fmt;

/// A user's mistake or a limit met: what is wrong, where, and what would work.
///
/// Each part is one line where it is shown: hidden characters, of which the names of a hostile file may be full, are
/// escaped there (see [`visible()`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostic {
    /// What is wrong, with the numbers.
    pub message: String,
    /// Where: file, node with its operator and opset.
    pub origin: Option<String>,
    /// Why, and what to do about it; one thought each.
    pub notes: Vec<String>,
}

impl Diagnostic {
    /// A diagnostic without origin or notes.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    /// Says where.
    pub fn at(mut self, origin: impl Into<String>) -> Self {
        self.origin = Some(origin.into());
        self
    }

    /// The diagnostic that an error's text is laid out as: a message, and parts on lines of their own, each behind
    /// `  --> ` or `  = `. Other line breaks belong to their part.
    pub fn of_error(error: &impl fmt::Display) -> Self {
        let text = error.to_string();
        let mut notes = text.split("\n  = ");
        let head = notes.next().unwrap_or_default();
        let diagnostic = match head.split_once("\n  --> ") {
            Some((message, origin)) => Self::new(message).at(origin),
            None => Self::new(head),
        };
        notes.fold(diagnostic, Self::note)
    }

    /// As [`Self::of_error`], of a text that has a compiler's lines: each line after the first of a part is a note. Names in
    /// such a text must be escaped already.
    pub fn of_lines(error: &impl fmt::Display) -> Self {
        let Self { message, origin, notes } = Self::of_error(error);
        let (first, others) = message.split_once('\n').unwrap_or((&message, ""));
        let told = Self { origin, ..Self::new(first) }.note_lines(others);
        notes.iter().fold(told, |told, note| told.note_lines(note))
    }

    /// Adds every line of a longer text, such as a compiler's, as a note of its own.
    pub fn note_lines(self, text: &str) -> Self {
        text.trim_end().lines().fold(self, Self::note)
    }

    /// Adds why, or what to do.
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

/// An ill-typed node that a pass built: a bug, told as such.
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
    fn an_errors_text_becomes_its_parts_again() {
        let diagnostic = Diagnostic::new("m").at("o").note("one").note("two");
        assert_eq!(Diagnostic::of_error(&diagnostic), diagnostic);
        assert_eq!(Diagnostic::of_error(&"m\nmore"), Diagnostic::new("m\nmore"));
    }

    #[test]
    fn a_compilers_lines_become_notes_beside_the_parts() {
        let diagnostic = Diagnostic::of_lines(&"failed\na.cu:1: error\n  here\n  --> node\n  = try\nmore\n");
        assert_eq!(
            diagnostic.to_string(),
            "failed\n  --> node\n  = a.cu:1: error\n  =   here\n  = try\n  = more"
        );
    }

    #[test]
    fn lines_become_notes() {
        let diagnostic = Diagnostic::new("m").note_lines("one\ntwo\n");
        assert_eq!(diagnostic.notes, ["one", "two"]);
    }
}
