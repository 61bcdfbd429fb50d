//! The ranks of this process on interpreters.

use super::TARGET;
use super::device::Interpreter;
use ir::machine::DeviceKind;
use program::device::{Device, DeviceError};
use program::{StagePrograms, Target};
use ranks::{Opening, RankOpener, Ranks, opening};

/// The interpreter, which opens ranks. Nobody asks for its speed: it uses one thread a rank, and keeps no profile.
pub struct Interpreters;

impl RankOpener for Interpreters {
    fn target(&self) -> Target {
        TARGET
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn open(&self, programs: Vec<StagePrograms>, opening: Opening) -> Result<Ranks, DeviceError> {
        opening::open(&programs, opening.process, |rank| {
            Ok(Box::new(Interpreter::new(rank)?) as Box<dyn Device + Send>)
        })
    }
}
