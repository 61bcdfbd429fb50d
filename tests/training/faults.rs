//! A rank that fails in the middle of a run: the user reads its error, and the last checkpoint is complete.

use crate::TRAINYARD;
use program::device::{Device, DeviceError, NonFinite, ProgramId};
use program::{Program, Section};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use testing::models::done;
use testing::training::train;
use testing::workplace::Workplace;
use trainyard::diagnostics::{Severity, render};
use trainyard::failure::Failure;

/// The device of a rank that fails in a step.
struct Failing {
    device: Box<dyn Device + Send>,
    /// The number of steps before the failure.
    left: usize,
}

impl Device for Failing {
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
        match (program, section) {
            (TRAINING, Section::Prepare) => self.left -= 1,
            (TRAINING, Section::Microbatch) if self.left == 0 => panic!("index out of bounds"),
            _ => {}
        }
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

    fn first_non_finite(&mut self, program: ProgramId) -> Result<Option<NonFinite>, DeviceError> {
        self.device.first_non_finite(program)
    }

    fn allocated(&self) -> u64 {
        self.device.allocated()
    }
}

const TRAINING: ProgramId = ProgramId(0);

const FLAGS: &str = "--microbatch 4 --mesh dp=2,tp=2 --zero 1 --save-every 4 --lr 1e-3";

#[test]
fn a_rank_that_fails_ends_the_run_with_its_error_and_the_last_checkpoint_goes_on() {
    let whole = Workplace::with_text(TRAINYARD, 8_000);
    done(train(&cpu::Processor::PORTABLE, &whole, FLAGS, |_| {}, &|_, device| device));
    let checkpoint = |place: &Workplace, step: u64| place.states("run", step);

    let place = Workplace::with_text(TRAINYARD, 8_000);
    // The failure comes in the eleventh step, between the checkpoints of steps 8 and 12.
    let failing = |rank, device| -> Box<dyn Device + Send> {
        if rank == 3 { Box::new(Failing { device, left: 11 }) } else { device }
    };
    let failure =
        train(&cpu::Processor::PORTABLE, &place, FLAGS, |_| {}, &failing).expect_err("a rank fails");
    assert!(matches!(failure, Failure::Fault(_)) && failure.exit_code() == 1);
    let told = render(Severity::Error, &failure.diagnostics(), false);
    assert!(told.starts_with("error: rank 3: it panicked: index out of bounds\n"), "{told}");
    assert_eq!(place.metrics("run").len(), 10);
    assert_eq!(place.checkpoints("run"), [4, 8]);
    assert!(checkpoint(&place, 8) == checkpoint(&whole, 8), "it is not as it was saved");

    done(train(&cpu::Processor::PORTABLE, &place, &format!("{FLAGS} --resume"), |_| {}, &|_, device| device));
    assert_eq!(place.metrics("run").len(), 16);
    assert!(checkpoint(&place, 16) == checkpoint(&whole, 16), "it went on otherwise");
}
