//! The faults of a file. All of them are reported at once, each with its node or tensor.

use std::fmt;
use std::path::PathBuf;

/// A fault of a model, or a warning about it.
pub use ir::Diagnostic as Problem;

/// The error that a file cannot be loaded, with all reasons.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct LoadError {
    /// The file, when the model came from one.
    pub path: Option<PathBuf>,
    /// The reasons, in the order of the file; at least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "cannot load {}", path.display())?,
            None => write!(f, "cannot load the model")?,
        }
        if self.problems.len() > 1 {
            write!(f, ": {} problems", self.problems.len())?;
        }
        self.problems.iter().try_for_each(|problem| write!(f, "\n{problem}"))
    }
}

/// The problems found so far. The list is bounded, because a hostile file could have one for each of its bytes.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    list: Vec<Problem>,
    dropped: usize,
}

impl Problems {
    const LIMIT: usize = 500;

    pub(crate) fn push(&mut self, problem: Problem) {
        if self.list.len() < Self::LIMIT {
            self.list.push(problem);
        } else {
            self.dropped += 1;
        }
    }

    /// Returns the value, or adds the problem and returns `None`.
    pub(crate) fn keep<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.push(problem)).ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn count(&self) -> usize {
        self.list.len() + self.dropped
    }

    pub(crate) fn into_list(mut self) -> Vec<Problem> {
        if self.dropped > 0 {
            self.list.push(Problem::new(format!("and {} more problems", self.dropped)));
        }
        self.list
    }
}

/// Returns a name from the file in quotes. Control characters are escaped, and a very long name is cut short.
pub(crate) fn quoted(name: &str) -> String {
    const LONGEST: usize = 200;
    match name.char_indices().nth(LONGEST) {
        None => format!("{name:?}"),
        Some((end, _)) => format!("{:?}… ({} bytes)", &name[..end], name.len()),
    }
}
