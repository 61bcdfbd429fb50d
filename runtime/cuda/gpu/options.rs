//! The options of a GPU: the defaults, and the values that environment variables ask for.

use super::cudnn::AttentionBy;
use super::matmul::Single;
use crate::pace::Pace;
use std::env;
use std::ffi::OsString;

/// The options of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The precision of f32 multiplications.
    pub single: Single,
    /// The way in which commands reach the GPU.
    pub pace: Pace,
    /// The library that computes attention.
    pub attention: AttentionBy,
    /// Whether gradients of weights stay on the main stream.
    pub without_side_stream: bool,
}

/// The environment variable that lets a GPU wait for each command, which makes it slow and its errors exact.
const SYNCHRONOUS: &str = "TRAINYARD_SYNC";

/// The environment variable that keeps a GPU from capturing graphs.
const GRAPHS: &str = "TRAINYARD_GRAPHS";

/// The environment variable that chooses the library that computes attention.
const ATTENTION: &str = "TRAINYARD_ATTENTION";

/// The environment variable that keeps gradients of weights on the main stream, to time a step without the side stream.
const SIDE_STREAM: &str = "TRAINYARD_SIDE_STREAM";

impl Options {
    /// Returns the defaults, changed by environment variables: `TRAINYARD_SYNC=1` asks for [`Pace::Synchronous`], `TRAINYARD_GRAPHS=0`
    /// for [`Pace::Commands`], `TRAINYARD_ATTENTION=own` for [`AttentionBy::Own`], and `TRAINYARD_SIDE_STREAM=0` for no side stream.
    pub fn of_process() -> Self {
        Self::of(|name| env::var_os(name))
    }

    /// As [`Self::of_process`], for variables with these values.
    fn of(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let is_set = variable(SYNCHRONOUS).is_some_and(|value| !value.is_empty() && value != "0");
        let captures = variable(GRAPHS).is_none_or(|value| value != "0");
        let pace = match (is_set, captures) {
            (true, _) => Pace::Synchronous,
            (false, false) => Pace::Commands,
            (false, true) => Pace::default(),
        };
        let own = variable(ATTENTION).is_some_and(|value| value == "own");
        let attention = if own { AttentionBy::Own } else { AttentionBy::default() };
        let without_side_stream = variable(SIDE_STREAM).is_some_and(|value| value == "0");
        Self { pace, attention, without_side_stream, ..Self::default() }
    }

    /// Returns the options of all ranks if one rank has a profile. Its commands are in no graph then, and a collective has to be in a
    /// graph on every rank or on none.
    pub(super) fn without_graphs(self) -> Self {
        let pace = if self.pace == Pace::Graphs { Pace::Commands } else { self.pace };
        Self { pace, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variable_changes_one_option() {
        let of = |name: &str, value: &str| Options::of(|asked| (asked == name).then(|| value.into()));
        let usual = Options::default();
        assert_eq!(Options::of(|_| None), usual);
        assert_eq!(of(SYNCHRONOUS, "1"), Options { pace: Pace::Synchronous, ..usual });
        assert_eq!(of(GRAPHS, "0"), Options { pace: Pace::Commands, ..usual });
        assert_eq!(of(ATTENTION, "own"), Options { attention: AttentionBy::Own, ..usual });
        assert_eq!(of(SIDE_STREAM, "0"), Options { without_side_stream: true, ..usual });
        assert_eq!(of(SIDE_STREAM, "1"), usual);
    }
}
