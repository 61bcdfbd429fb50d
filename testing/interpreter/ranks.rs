//! The ranks of this process on interpreters.

use super::TARGET;
use super::device::Interpreter;
use ir::Diagnostic;
use ir::machine::DeviceKind;
use program::device::{Device, DeviceError};
use program::{Multiprocessors, StagePrograms, Target};
use ranks::platform::{self, Found, Wanted};
use ranks::{Opening, Platform, Ranks};

/// The interpreter, which opens ranks. Nobody asks for its speed: it uses one thread a rank, and keeps no profile.
pub struct Interpreters;

impl Platform for Interpreters {
    fn target(&self) -> Target {
        TARGET
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn help(&self) -> &'static str {
        "The interpreter"
    }

    fn find(&self, _: &Wanted) -> Result<Found, Diagnostic> {
        let multiprocessors = Multiprocessors::default();
        Ok(Found { multiprocessors, described: TARGET.name().into(), preset: None })
    }

    fn open(&self, programs: Vec<StagePrograms>, opening: Opening) -> Result<Ranks, DeviceError> {
        platform::open(&programs, opening.process, |rank| {
            Ok(Box::new(Interpreter::new(rank)?) as Box<dyn Device + Send>)
        })
    }

    fn rehearsal_help(&self) -> &'static str {
        "The interpreter, instruction by instruction"
    }
}
