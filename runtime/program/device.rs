//! The interface of a device that runs programs, and the order of a step, which is the same on all devices.

mod comm_error;
mod error;
mod non_finite;
mod too_large;

use crate::calls::CallClock;
use crate::{OutputSlot, Program, Section};
pub use comm_error::CommError;
pub use error::{DeviceError, rank_at};
pub use non_finite::{FoundIn, NonFinite};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
pub use too_large::TooLarge;

/// A program on a device: its index in the list with which the device was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(pub usize);

/// Runs programs that share one arena. Bytes are little-endian and row-major.
///
/// A step does the following, as [`step`] does. Write the states (once) and run `prepare`. For each microbatch, write the inputs, run
/// `microbatch`, read its outputs, and end it unless it is the last. Run `update` and read its outputs. States stay from step to step;
/// another program may overwrite everything else in the arena.
pub trait Device {
    /// Returns a program of the device.
    fn program(&self, program: ProgramId) -> &Arc<Program>;

    /// Sets a state.
    fn write_state(&mut self, program: ProgramId, state: usize, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Returns the bytes of a state. They are not copied if the device's memory can be read in place.
    fn read_state(&self, program: ProgramId, state: usize) -> Result<Cow<'_, [u8]>, DeviceError>;

    /// Gives the next microbatch one input. An input that no instruction reads is checked and dropped.
    fn write_input(&mut self, program: ProgramId, input: usize, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Runs a section. `Prepare` begins a step, even if it has no instruction: sums over microbatches start anew.
    fn run(&mut self, program: ProgramId, section: Section) -> Result<(), DeviceError>;

    /// In a pipeline, begins a turn ([`crate::RankPipeline::turns`]) of the present step, after its `prepare`: inputs that are
    /// written from now on are those of its microbatch.
    fn begin_turn(&mut self, _program: ProgramId, _turn: usize) -> Result<(), DeviceError> {
        Err(DeviceError::Pipeline)
    }

    /// Runs the instructions of the turn that was begun. Its outputs can be read until the next turn begins.
    fn run_turn(&mut self, _program: ProgramId, _turn: usize) -> Result<(), DeviceError> {
        Err(DeviceError::Pipeline)
    }

    /// Ends a microbatch that is not the last of its step: runs [`Program::rest_of_microbatch`]. In the last microbatch, `update` runs
    /// these instructions.
    fn end_microbatch(&mut self, program: ProgramId) -> Result<(), DeviceError>;

    /// Runs some instructions of `update`. All of them, each once and in order, have the effect of [`Device::run`] with that section.
    /// Between two calls the caller can read finished outputs, and can give up the step. A device may refuse to stop anywhere but after an
    /// instruction that makes an output.
    fn run_update(&mut self, program: ProgramId, instructions: Range<usize>) -> Result<(), DeviceError>;

    /// Returns the bytes of an output, after its section has run.
    fn read_output(&self, program: ProgramId, output: usize) -> Result<Vec<u8>, DeviceError>;

    /// Asks for the present bytes of outputs, as [`Device::read_output`] returns them. On a device that computes asynchronously the caller
    /// goes on at once; what it gives the device next may change the outputs.
    fn read_later(&mut self, program: ProgramId, outputs: Vec<usize>) -> Result<Later, DeviceError> {
        let bytes = outputs.into_iter().map(|output| self.read_output(program, output));
        Ok(Later::Read(bytes.collect::<Result<_, _>>()?))
    }

    /// Returns the bytes of the outputs that were asked for, after waiting for each.
    fn collect(&mut self, later: Later) -> Result<Vec<Vec<u8>>, DeviceError> {
        match later {
            Later::Read(bytes) => Ok(bytes),
            Later::Coming { number, .. } => Err(DeviceError::Unknown { what: "outputs", index: number }),
        }
    }

    /// Lets the caller give the device the next step of this program before it has read the outputs of the step before. From then on no
    /// update changes a state any more, once a loss is not finite, a gradient norm that the program itself does not check is not finite, or
    /// a loss scale can get no smaller. Returns whether the device can do that; if not, nothing changes.
    fn run_ahead(&mut self, _program: ProgramId) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Returns the clock of the device's calls, if a call may never return: a GPU waits for other GPUs.
    fn calls(&self) -> Option<CallClock> {
        None
    }

    /// Returns the bytes of memory that the device has allocated for its programs.
    fn allocated(&self) -> u64;

    /// Does the remaining work that must run on the thread of the device's rank, before that thread ends.
    fn settle(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Runs a microbatch once more, instruction by instruction, and returns the first instruction that makes a number that is not finite
    /// from finite ones. It is called when a loss is not finite, before `update`, with the microbatch's inputs written again. It spoils the
    /// sums over microbatches. All ranks are asked at once, and each searches its own parts.
    fn first_non_finite(&mut self, program: ProgramId) -> Result<Option<NonFinite>, DeviceError>;

    /// Does the same as [`Device::first_non_finite`] for the turn of a pipeline that was begun, in place of [`Device::run_turn`].
    fn first_non_finite_of_turn(
        &mut self,
        _program: ProgramId,
        _turn: usize,
    ) -> Result<Option<NonFinite>, DeviceError> {
        Err(DeviceError::Pipeline)
    }
}

/// Outputs that [`Device::read_later`] asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Later {
    /// The bytes, where the device had them at once.
    Read(Vec<Vec<u8>>),
    /// Outputs that the device is still computing.
    Coming {
        /// The program.
        program: ProgramId,
        /// The outputs, by index.
        outputs: Vec<usize>,
        /// The number by which the device knows the request.
        number: usize,
    },
}

/// The outputs of a step by name: the bytes of every microbatch, or one entry for the step.
pub type StepOutputs = BTreeMap<String, Vec<Vec<u8>>>;

/// Runs one step. `microbatches` has, for each microbatch, the bytes of every input in the program's order.
pub fn step(
    device: &mut dyn Device,
    id: ProgramId,
    microbatches: &[Vec<Vec<u8>>],
) -> Result<StepOutputs, DeviceError> {
    let program = device.program(id).clone();
    let mut outputs = StepOutputs::new();
    let mut report = |device: &dyn Device, section: Section, part| {
        let is_due = |output: &OutputSlot| output.section == section && output.part == part;
        let due = program.outputs.iter().enumerate().filter(|(_, output)| is_due(output));
        for (index, output) in due {
            outputs.entry(output.name.clone()).or_default().push(device.read_output(id, index)?);
        }
        Ok::<_, DeviceError>(())
    };
    device.run(id, Section::Prepare)?;
    report(device, Section::Prepare, None)?;
    if let Some(pipeline) = &program.pipeline {
        let (given, taken) = (microbatches.len(), pipeline.microbatches as usize);
        if given != taken {
            return Err(DeviceError::Microbatches { given, taken });
        }
    }
    // An asynchronous schedule drains after the step.
    let turns = program.pipeline.iter().flat_map(|pipeline| {
        pipeline.turns_of(0, 1).into_iter().map(|index| (index, &pipeline.turns[index]))
    });
    for (index, turn) in turns {
        device.begin_turn(id, index)?;
        let given = &microbatches[turn.task.microbatch as usize];
        for (input, _) in program.inputs.iter().enumerate().filter(|(_, slot)| turn.feeds(slot)) {
            let missing = DeviceError::Inputs { given: given.len(), taken: program.inputs.len() };
            device.write_input(id, input, given.get(input).ok_or(missing)?)?;
        }
        device.run_turn(id, index)?;
        report(device, Section::Microbatch, Some(turn.task.part))?;
    }
    let microbatches = if program.pipeline.is_some() { &[] } else { microbatches };
    for (index, inputs) in microbatches.iter().enumerate() {
        if inputs.len() != program.inputs.len() {
            return Err(DeviceError::Inputs { given: inputs.len(), taken: program.inputs.len() });
        }
        for (input, bytes) in inputs.iter().enumerate() {
            device.write_input(id, input, bytes)?;
        }
        device.run(id, Section::Microbatch)?;
        report(device, Section::Microbatch, None)?;
        if index + 1 < microbatches.len() {
            device.end_microbatch(id)?;
        }
    }
    device.run(id, Section::Update)?;
    report(device, Section::Update, None)?;
    Ok(outputs)
}
