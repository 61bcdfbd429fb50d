//! An evaluation that is stopped: nothing that the device was asked for stays there.

use super::*;
use crate::device::{DeviceError, Later, NonFinite};
use crate::program::{Program, Section};
use crate::train::evaluate::evaluate;
use std::borrow::Cow;
use std::ops::Range;

/// A device that counts the outputs that were asked for and not collected; as it is asked for the second time, it stops
/// the run.
struct Counting {
    device: Box<dyn Device>,
    asked: usize,
    open: usize,
    stop: Arc<AtomicBool>,
}

impl Device for Counting {
    fn program(&self, program: ProgramId) -> &Arc<Program> {
        self.device.program(program)
    }

    fn write_state(&mut self, program: ProgramId, state: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write_state(program, state, bytes)
    }

    fn read_state(&self, program: ProgramId, state: usize) -> Result<Cow<'_, [u8]>, DeviceError> {
        self.device.read_state(program, state)
    }

    fn write_input(&mut self, program: ProgramId, input: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write_input(program, input, bytes)
    }

    fn run(&mut self, program: ProgramId, section: Section) -> Result<(), DeviceError> {
        self.device.run(program, section)
    }

    fn run_update(&mut self, program: ProgramId, instructions: Range<usize>) -> Result<(), DeviceError> {
        self.device.run_update(program, instructions)
    }

    fn read_output(&self, program: ProgramId, output: usize) -> Result<Vec<u8>, DeviceError> {
        self.device.read_output(program, output)
    }

    fn read_later(&mut self, program: ProgramId, outputs: Vec<usize>) -> Result<Later, DeviceError> {
        (self.asked, self.open) = (self.asked + 1, self.open + 1);
        self.stop.store(self.asked > 1, Ordering::Relaxed);
        self.device.read_later(program, outputs)
    }

    fn collect(&mut self, later: Later) -> Result<Vec<Vec<u8>>, DeviceError> {
        self.open -= 1;
        self.device.collect(later)
    }

    fn first_non_finite(&mut self, program: ProgramId) -> Result<Option<NonFinite>, DeviceError> {
        self.device.first_non_finite(program)
    }
}

#[test]
fn an_evaluation_that_is_stopped_collects_what_it_asked_for() {
    let run = setup();
    let (module, loader) = (run.train_module(), run.loader());
    assert!(loader.eval_batches().count() > 2);
    let stop = Arc::new(AtomicBool::new(false));
    let mut device = Counting { device: run.device(&module), asked: 0, open: 0, stop: stop.clone() };
    let mut session = Session::new(&mut device, ProgramId(0), Some(ProgramId(1))).unwrap();
    let values = initial_states(&module, 3, Missing::Refuse, StateBytes::new()).unwrap();
    session.write_states(values).unwrap();
    assert!(matches!(evaluate(&mut session, &loader, &stop), Ok(None)));
    assert_eq!((device.asked, device.open), (2, 0));
}
