//! Tests of a stopped evaluation: no requested output stays on the device, and no older loss takes the place of its own.

use super::*;
use crate::evaluate::evaluate;
use cpu::Cpu;
use program::device::{DeviceError, Later, NonFinite};
use program::{Program, Section};
use ranks::Rank;
use std::borrow::Cow;
use std::ops::Range;

/// A device that counts the outputs that were requested and not collected, and stops the run depending on its counts.
struct Counting {
    device: Box<dyn Device + Send>,
    asked: usize,
    open: usize,
    /// The number of evaluations that have begun.
    evaluations: usize,
    stops: fn(&Self) -> bool,
    stop: Arc<AtomicBool>,
}

impl Counting {
    fn of(device: Box<dyn Device + Send>, stop: Arc<AtomicBool>, stops: fn(&Self) -> bool) -> Self {
        Self { device, asked: 0, open: 0, evaluations: 0, stops, stop }
    }
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
        self.evaluations += usize::from(program == ProgramId(1) && section == Section::Prepare);
        self.device.run(program, section)
    }

    fn end_microbatch(&mut self, program: ProgramId) -> Result<(), DeviceError> {
        self.device.end_microbatch(program)
    }

    fn run_update(&mut self, program: ProgramId, instructions: Range<usize>) -> Result<(), DeviceError> {
        self.device.run_update(program, instructions)
    }

    fn read_output(&self, program: ProgramId, output: usize) -> Result<Vec<u8>, DeviceError> {
        self.device.read_output(program, output)
    }

    fn read_later(&mut self, program: ProgramId, outputs: Vec<usize>) -> Result<Later, DeviceError> {
        (self.asked, self.open) = (self.asked + 1, self.open + 1);
        self.stop.fetch_or((self.stops)(self), Ordering::Relaxed);
        self.device.read_later(program, outputs)
    }

    fn collect(&mut self, later: Later) -> Result<Vec<Vec<u8>>, DeviceError> {
        self.open -= 1;
        self.device.collect(later)
    }

    fn allocated(&self) -> u64 {
        self.device.allocated()
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
    let device = Box::new(Cpu::new(run.programs(&module), Some(2)).unwrap());
    let mut device = Counting::of(device, stop.clone(), |device| device.asked > 1);
    let mut session = Session::new(Rank::alone(&mut device), ProgramId(0), Some(ProgramId(1))).unwrap();
    let values = initial_states(&module, 3, Missing::Refuse, StateBytes::new()).unwrap();
    session.write_states(values).unwrap();
    assert!(matches!(evaluate(&mut session, &loader, &stop, None), Ok(None)));
    assert_eq!((device.asked, device.open), (2, 0));
}

#[test]
fn a_run_that_is_stopped_in_its_last_evaluation_has_no_eval_loss_of_its_end() {
    let mut run = setup();
    (run.schedule.steps, run.schedule.eval_every, run.schedule.save_every) = (6, Some(4), None);
    // The evaluations are: before step 0, after 4 steps, and at the end.
    let stops = |device: &Counting| device.evaluations == 3;
    let outcome = run.go_on_device(|device, stop| Box::new(Counting::of(device, stop, stops))).unwrap();
    assert_eq!((outcome.steps, outcome.stopped, outcome.eval_loss), (6, true, None));
    assert_eq!(outcome.lowest.unwrap().steps, 4);
    assert_eq!(outcome.checkpoint, Some(run.checkpoints().path(6)));
    assert_eq!((run.metrics().len(), run.metrics()[5].eval_loss), (6, None));

    // The same command continues with that evaluation, which can be stopped again.
    run.resume = true;
    let again = |device: &Counting| device.evaluations == 1;
    let outcome = run.go_on_device(|device, stop| Box::new(Counting::of(device, stop, again))).unwrap();
    assert_eq!((outcome.steps, outcome.stopped, outcome.eval_loss), (6, true, None));
    let outcome = run.go().unwrap();
    assert!(!outcome.stopped && outcome.eval_loss.is_some_and(f64::is_finite), "{outcome:?}");
}

#[test]
fn a_run_that_is_stopped_between_evaluations_has_no_eval_loss_of_its_end() {
    let mut run = setup();
    run.on_line = OnLine::Stop("step 7/20");
    let outcome = run.go().unwrap();
    assert_eq!((outcome.steps, outcome.stopped, outcome.eval_loss), (7, true, None));
    assert_eq!(outcome.lowest.map(|lowest| lowest.steps), Some(5));
}
