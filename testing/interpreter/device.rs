//! A device that runs programs one instruction after the other.

use super::TARGET;
use super::execution::Execution;
use super::memory::Memory;
use comm::Communicator;
use program::device::{Device, DeviceError, NonFinite, ProgramId};
use program::{Instruction, Kernel, Microbatches, Program, Section, Turn, View};
use ranks::platform::OpenedRank;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// The device of a rank, with programs that share their memory.
pub(super) struct Interpreter {
    programs: Vec<Loaded>,
    memory: Memory,
    communicator: Option<Arc<dyn Communicator>>,
}

/// A program on the device.
pub(super) struct Loaded {
    pub(super) program: Arc<Program>,
    pub(super) constants: Vec<u8>,
    /// In a pipeline, the places of the blocks of the present microbatch.
    pub(super) bases: Vec<u64>,
    /// The number of microbatches that began in this step.
    microbatches: u64,
}

impl Interpreter {
    /// Makes the device of a rank.
    ///
    /// # Errors
    /// A program for another target.
    pub(super) fn new(rank: OpenedRank) -> Result<Self, DeviceError> {
        let OpenedRank { programs, communicator, .. } = rank;
        if let Some(program) = programs.iter().find(|program| program.target != TARGET.name()) {
            return Err(DeviceError::Target { program: program.name.clone() });
        }
        let memory = Memory::new(&programs);
        let rank = communicator.as_ref().map_or(0, |communicator| communicator.rank());
        let load = |program: Arc<Program>| {
            let program = program.on_rank(rank);
            let mut constants = vec![0; program.memory.constants as usize];
            for constant in &program.constants {
                constants[constant.base as usize..][..constant.bytes.len()].copy_from_slice(&constant.bytes);
            }
            Loaded { program, constants, bases: vec![], microbatches: 0 }
        };
        Ok(Self { programs: programs.into_iter().map(load).collect(), memory, communicator })
    }

    fn loaded(&self, id: ProgramId) -> Result<&Loaded, DeviceError> {
        self.programs.get(id.0).ok_or(DeviceError::Unknown { what: "program", index: id.0 })
    }

    fn turn(&self, id: ProgramId, index: usize) -> Result<Turn, DeviceError> {
        let pipeline = self.loaded(id)?.program.pipeline.as_ref();
        let turn = pipeline.and_then(|pipeline| pipeline.turns.get(index));
        turn.cloned().ok_or(DeviceError::Unknown { what: "turn", index })
    }

    fn execution(&mut self, id: ProgramId) -> Result<Execution<'_>, DeviceError> {
        self.loaded(id)?;
        let (loaded, communicator) = (&self.programs[id.0], self.communicator.as_deref());
        Ok(Execution { loaded, memory: &mut self.memory, communicator, first: loaded.microbatches <= 1 })
    }

    /// Runs instructions of a section.
    fn run_some(&mut self, id: ProgramId, section: Section, range: Range<usize>) -> Result<(), DeviceError> {
        let mut execution = self.execution(id)?;
        let unknown = DeviceError::Unknown { what: "instruction", index: range.end };
        let instructions = execution.loaded.program.section(section).get(range).ok_or(unknown)?;
        instructions.iter().try_for_each(|instruction| execution.run(instruction))
    }

    /// Runs instructions as those of a first microbatch, and returns the first one that makes a number that is not finite from better ones.
    /// All run, since other ranks wait for their exchanges.
    fn first_worse<'i>(
        &mut self,
        id: ProgramId,
        instructions: impl Iterator<Item = &'i Instruction>,
    ) -> Result<Option<NonFinite>, DeviceError> {
        let mut execution = Execution { first: true, ..self.execution(id)? };
        let (mut infinity, mut nan) = (None, None);
        for (index, instruction) in instructions.enumerate() {
            let before = worst(&execution, &instruction.operands);
            execution.run(instruction)?;
            let value = worst(&execution, &instruction.results);
            // The numbers of a message come from another rank.
            if badness(value) <= badness(before) || matches!(instruction.kernel, Kernel::Message(_)) {
                continue;
            }
            let found = NonFinite {
                instruction: index,
                operator: instruction.name(),
                origin: instruction.origin.to_string(),
                value,
                rank: None,
                turn: None,
                infinity: infinity.clone().map(Box::new),
            };
            let first = if value.is_nan() { &mut nan } else { &mut infinity };
            first.get_or_insert(found);
        }
        Ok(nan.or(infinity))
    }
}

/// Returns the worst number in some views: a NaN, or else an infinity.
fn worst(execution: &Execution, views: &[View]) -> f64 {
    let floats = views.iter().filter(|view| view.dtype.is_float());
    let numbers = floats.flat_map(|view| execution.tensor(view).numbers());
    numbers.fold(0.0, |worst, number| if badness(number) > badness(worst) { number } else { worst })
}

fn badness(number: f64) -> u8 {
    u8::from(!number.is_finite()) + u8::from(number.is_nan())
}

impl Device for Interpreter {
    fn program(&self, program: ProgramId) -> &Arc<Program> {
        &self.programs[program.0].program
    }

    fn write_state(&mut self, program: ProgramId, state: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let program = self.loaded(program)?.program.clone();
        let slot = program.states.get(state).ok_or(DeviceError::Unknown { what: "state", index: state })?;
        DeviceError::check_size(&slot.name, &slot.ty, &program.mesh, bytes)?;
        self.memory.write(&slot.view, &[], bytes);
        Ok(())
    }

    fn read_state(&self, program: ProgramId, state: usize) -> Result<Cow<'_, [u8]>, DeviceError> {
        let program = &self.loaded(program)?.program;
        let slot = program.states.get(state).ok_or(DeviceError::Unknown { what: "state", index: state })?;
        Ok(self.memory.read(&[], &slot.view, &[]).into())
    }

    fn write_input(&mut self, program: ProgramId, input: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.loaded(program)?;
        let Loaded { program, bases, .. } = &self.programs[program.0];
        let slot = program.inputs.get(input).ok_or(DeviceError::Unknown { what: "input", index: input })?;
        DeviceError::check_size(&slot.name, &slot.ty, &program.mesh, bytes)?;
        if let Some(view) = &slot.view {
            self.memory.write(view, bases, bytes);
        }
        Ok(())
    }

    fn run(&mut self, id: ProgramId, section: Section) -> Result<(), DeviceError> {
        let count = self.loaded(id)?.program.section(section).len();
        let loaded = &mut self.programs[id.0];
        match section {
            Section::Prepare => loaded.microbatches = 0,
            Section::Microbatch
                if loaded.microbatches > 0 && loaded.program.microbatches == Microbatches::One =>
            {
                return Err(DeviceError::OneMicrobatch);
            }
            Section::Microbatch => loaded.microbatches += 1,
            Section::Update => {}
        }
        self.run_some(id, section, 0..count)
    }

    fn begin_turn(&mut self, id: ProgramId, turn: usize) -> Result<(), DeviceError> {
        let turn = self.turn(id, turn)?;
        let loaded = &mut self.programs[id.0];
        (loaded.bases, loaded.microbatches) = (turn.bases, u64::from(turn.task.microbatch) + 1);
        Ok(())
    }

    fn run_turn(&mut self, id: ProgramId, turn: usize) -> Result<(), DeviceError> {
        let instructions = self.turn(id, turn)?.instructions;
        self.run_some(id, Section::Microbatch, instructions)
    }

    fn end_microbatch(&mut self, id: ProgramId) -> Result<(), DeviceError> {
        let mut execution = self.execution(id)?;
        let mut rest = execution.loaded.program.rest_of_microbatch();
        rest.try_for_each(|(_, instruction)| execution.run(instruction))
    }

    fn run_update(&mut self, id: ProgramId, instructions: Range<usize>) -> Result<(), DeviceError> {
        self.run_some(id, Section::Update, instructions)
    }

    fn read_output(&self, program: ProgramId, output: usize) -> Result<Vec<u8>, DeviceError> {
        let Loaded { program, constants, bases, .. } = self.loaded(program)?;
        let slot =
            program.outputs.get(output).ok_or(DeviceError::Unknown { what: "output", index: output })?;
        Ok(self.memory.read(constants, &slot.view, bases))
    }

    fn allocated(&self) -> u64 {
        let constants: usize = self.programs.iter().map(|loaded| loaded.constants.len()).sum();
        self.memory.len() + constants as u64
    }

    fn first_non_finite(&mut self, id: ProgramId) -> Result<Option<NonFinite>, DeviceError> {
        let program = self.loaded(id)?.program.clone();
        self.first_worse(id, program.microbatch().map(|(_, _, instruction)| instruction))
    }

    fn first_non_finite_of_turn(
        &mut self,
        id: ProgramId,
        turn: usize,
    ) -> Result<Option<NonFinite>, DeviceError> {
        let (program, turn) = (self.loaded(id)?.program.clone(), self.turn(id, turn)?);
        let instructions = &program.section(Section::Microbatch)[turn.instructions];
        let found = self.first_worse(id, instructions.iter())?;
        Ok(found.map(|found| NonFinite { turn: Some(turn.task.into()), ..found }))
    }
}
