//! How a GPU is used: by default, and as environment variables ask for it.

use super::cudnn::AttentionBy;
use super::matmul::Single;
use crate::cuda::graphs::Pace;
use std::env;

/// How a GPU is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How f32 is multiplied.
    pub single: Single,
    /// How commands reach it.
    pub pace: Pace,
    /// Who computes attention.
    pub attention: AttentionBy,
}

/// The environment variable that makes a GPU slow, and its errors exact: each command is waited for.
const SYNCHRONOUS: &str = "TRAINYARD_SYNC";

/// The environment variable that keeps a GPU from capturing graphs.
const GRAPHS: &str = "TRAINYARD_GRAPHS";

/// The environment variable that says who computes attention.
const ATTENTION: &str = "TRAINYARD_ATTENTION";

/// The environment variable that keeps multiplications from having epilogues, to tell a wrong one from a wrong kernel.
const EPILOGUES: &str = "TRAINYARD_EPILOGUES";

/// Whether `TRAINYARD_EPILOGUES=0` asks for multiplications without epilogues.
pub fn without_epilogues() -> bool {
    env::var_os(EPILOGUES).is_some_and(|value| value == "0")
}

impl Options {
    /// The usual ones, but that `TRAINYARD_SYNC=1` asks for [`Pace::Synchronous`], `TRAINYARD_GRAPHS=0` for
    /// [`Pace::Commands`], `TRAINYARD_ATTENTION=own` for [`AttentionBy::Own`].
    pub fn of_process() -> Self {
        let is_set = env::var_os(SYNCHRONOUS).is_some_and(|value| !value.is_empty() && value != "0");
        let captures = env::var_os(GRAPHS).is_none_or(|value| value != "0");
        let pace = match (is_set, captures) {
            (true, _) => Pace::Synchronous,
            (false, false) => Pace::Commands,
            (false, true) => Pace::default(),
        };
        let own = env::var_os(ATTENTION).is_some_and(|value| value == "own");
        let attention = if own { AttentionBy::Own } else { AttentionBy::default() };
        Self { pace, attention, ..Self::default() }
    }

    /// Those of all ranks where one is watched, whose commands are in no graph then: an exchange has to be in a graph on
    /// every rank or on none.
    pub(super) fn without_graphs(self) -> Self {
        let pace = if self.pace == Pace::Graphs { Pace::Commands } else { self.pace };
        Self { pace, ..self }
    }
}
