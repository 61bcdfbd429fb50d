//! What is wrong with a file: all of it at once, each problem with the node or tensor it is about.

use std::fmt;
use std::path::PathBuf;

/// One thing that is wrong with a model, or that its user should know.
pub use ir::Diagnostic as Problem;

/// A file that cannot be loaded, with every reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct LoadError {
    /// The file, when the model came from one.
    pub path: Option<PathBuf>,
    /// At least one; in the order of the file.
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

/// The problems found so far. A hostile file could have as many as it has bytes, so the list is bounded.
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

    /// The value, or nothing and one more problem.
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

/// A name from the file in quotes: control characters escaped, and a name of a megabyte cut short.
pub(crate) fn quoted(name: &str) -> String {
    const LONGEST: usize = 200;
    match name.char_indices().nth(LONGEST) {
        None => format!("{name:?}"),
        Some((end, _)) => format!("{:?}… ({} bytes)", &name[..end], name.len()),
    }
}
