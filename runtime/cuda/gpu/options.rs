//! How a GPU is used: by default, and as environment variables ask for it.

use super::cudnn::AttentionBy;
use super::matmul::Single;
use crate::cuda::graphs::Pace;
use std::env;
use std::ffi::OsString;

/// How a GPU is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How f32 is multiplied.
    pub single: Single,
    /// How commands reach it.
    pub pace: Pace,
    /// Who computes attention.
    pub attention: AttentionBy,
    /// Whether gradients of weights stay on the main stream.
    pub without_side_stream: bool,
}

/// The environment variable that makes a GPU slow, and its errors exact: each command is waited for.
const SYNCHRONOUS: &str = "TRAINYARD_SYNC";

/// The environment variable that keeps a GPU from capturing graphs.
const GRAPHS: &str = "TRAINYARD_GRAPHS";

/// The environment variable that says who computes attention.
const ATTENTION: &str = "TRAINYARD_ATTENTION";

/// The environment variable that keeps multiplications from having epilogues, to tell a wrong one from a wrong kernel.
const EPILOGUES: &str = "TRAINYARD_EPILOGUES";

/// The environment variable that keeps gradients of weights on the main stream, to time a step without the side stream.
const SIDE_STREAM: &str = "TRAINYARD_SIDE_STREAM";

/// Whether `TRAINYARD_EPILOGUES=0` asks for multiplications without epilogues.
pub fn without_epilogues() -> bool {
    env::var_os(EPILOGUES).is_some_and(|value| value == "0")
}

impl Options {
    /// The usual ones, but that `TRAINYARD_SYNC=1` asks for [`Pace::Synchronous`], `TRAINYARD_GRAPHS=0` for
    /// [`Pace::Commands`], `TRAINYARD_ATTENTION=own` for [`AttentionBy::Own`], and `TRAINYARD_SIDE_STREAM=0` for no side stream.
    pub fn of_process() -> Self {
        Self::of(|name| env::var_os(name))
    }

    /// As [`Self::of_process`], of variables with these values.
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

    /// Those of all ranks where one is watched, whose commands are in no graph then: an exchange has to be in a graph on
    /// every rank or on none.
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
