//! What a user is told when something cannot be done.

use std::fmt;

/// A user's mistake or a limit met: what is wrong, where, and what would work.
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

    /// Adds why, or what to do.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(origin) = &self.origin {
            write!(f, "\n  --> {origin}")?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n  = {note}"))
    }
}

impl std::error::Error for Diagnostic {}

/// An ill-typed node that a pass built: a bug, told as such.
impl From<crate::TypeError> for Diagnostic {
    fn from(error: crate::TypeError) -> Self {
        Self::new(format!("a node that the compiler built is ill-typed: {error}"))
    }
}
