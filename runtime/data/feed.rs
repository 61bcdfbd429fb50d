//! The source of each input's values, with the reason, for messages.

use std::fmt;
use std::path::PathBuf;

/// The source of one input's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Feed {
    /// The token stream of DATA.
    Tokens,
    /// A key of DATA, or a field of its records.
    Key(String),
    /// Columns of DATA, counted from 0.
    Columns(Vec<usize>),
    /// A file of its own.
    File(PathBuf),
    /// `0, 1, 2, …` along the last dim.
    Positions,
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
    /// Seeded random values.
    Synthetic,
}

/// The source of one input's values, and the reason. Its `Display` is a line for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The input's name.
    pub input: String,
    /// The source of its values.
    pub feed: Feed,
    /// The reason for this source.
    pub reason: &'static str,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "input `{}`: ", self.input)?;
        match &self.feed {
            Feed::Tokens => f.write_str("the tokens")?,
            Feed::Key(key) => write!(f, "key `{key}`")?,
            Feed::Columns(columns) => write!(f, "columns {}", shown(columns))?,
            Feed::File(path) => write!(f, "file `{}`", path.display())?,
            Feed::Positions => f.write_str("positions 0, 1, 2, …")?,
            Feed::Ones => f.write_str("ones")?,
            Feed::Zeros => f.write_str("zeros")?,
            Feed::Synthetic => f.write_str("random values")?,
        }
        write!(f, " ({})", self.reason)
    }
}

/// Formats columns for messages, counted from 1: `1-64, 66`.
pub(super) fn shown(columns: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &column in columns {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == column => *last = column,
            _ => ranges.push((column, column)),
        }
    }
    let range = |(first, last): (usize, usize)| {
        if first == last { (first + 1).to_string() } else { format!("{}-{}", first + 1, last + 1) }
    };
    ranges.into_iter().map(range).collect::<Vec<_>>().join(", ")
}
