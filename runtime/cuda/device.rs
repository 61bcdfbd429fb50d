//! A GPU as a device: programs that share one arena, run through a driver.

use super::driver::{Address, Driver, DriverError, LibraryTask, Loaded, MultiplyPlaces};
use super::lower::lower;
use super::program::{Argument, Command, CudaProgram, Matrices, Start, Stream, Task};
use crate::device::{Device, DeviceError, NonFinite, ProgramId};
use crate::program::{Microbatches, Program, Region, Section, Target, View};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// A GPU, or its stand-in, with programs that share one arena.
pub struct Cuda<D> {
    driver: D,
    programs: Vec<Ready>,
    arena: Address,
}

struct Ready {
    cuda: CudaProgram,
    loaded: Loaded,
    constants: Address,
    tables: Address,
    /// Microbatches run in this step.
    microbatches: u64,
}

impl<D: Driver> Cuda<D> {
    /// Allocates the arena (zeroed) and the constants of `programs`, and makes their kernels ready.
    ///
    /// # Errors
    /// What has no kernel; what the driver refuses.
    pub fn new(driver: D, programs: Vec<Arc<Program>>) -> Result<Self, DeviceError> {
        let programs = programs.into_iter().map(|program| lower(program).map_err(DeviceError::kernel));
        Self::with(driver, programs.collect::<Result<_, _>>()?)
    }

    /// As [`Self::new`], of programs that are lowered already.
    ///
    /// # Errors
    /// A program for another kind of device; what the driver refuses.
    pub fn with(mut driver: D, programs: Vec<CudaProgram>) -> Result<Self, DeviceError> {
        if let Some(cuda) = programs.iter().find(|cuda| cuda.program.target != Target::Cuda) {
            return Err(DeviceError::Target { program: cuda.program.name.clone() });
        }
        let bytes = programs.iter().map(|cuda| cuda.program.memory.arena).max().unwrap_or_default();
        let arena = driver.allocate(bytes).map_err(refused)?;
        let ready = |cuda: CudaProgram| {
            let constants = driver.allocate(cuda.program.memory.constants)?;
            for constant in &cuda.program.constants {
                driver.write(Address(constants.0 + constant.base), &constant.bytes)?;
            }
            let tables = driver.allocate(8 * cuda.tables.len() as u64)?;
            let loaded = driver.load(&cuda)?;
            let ready = Ready { cuda, loaded, constants, tables, microbatches: 0 };
            let words = ready.cuda.tables.iter().map(|argument| ready.word(arena, argument));
            let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            driver.write(tables, &bytes)?;
            Ok(ready)
        };
        let programs = programs.into_iter().map(ready).collect::<Result<_, _>>().map_err(refused)?;
        Ok(Self { driver, programs, arena })
    }

    fn ready(&self, program: ProgramId) -> Result<&Ready, DeviceError> {
        self.programs.get(program.0).ok_or(DeviceError::Unknown { what: "program", index: program.0 })
    }

    /// Waits until the device has done all that it was given.
    ///
    /// # Errors
    /// What went wrong in it.
    pub fn finish(&self) -> Result<(), DeviceError> {
        self.driver.finish().map_err(refused)
    }

    /// What a program was made from.
    pub(super) fn lowered(&self, program: ProgramId) -> Result<&Arc<Program>, DeviceError> {
        Ok(&self.ready(program)?.cuda.program)
    }

    /// Goes back to before the step's first microbatch.
    pub(super) fn begin_again(&mut self, program: ProgramId) {
        self.programs[program.0].microbatches = 1;
    }

    /// The elements of a view of a program, in row-major order.
    pub(super) fn read_view(&self, program: ProgramId, view: &View) -> Result<Vec<u8>, DeviceError> {
        self.read(self.ready(program)?, view)
    }

    /// Runs some instructions of a section.
    pub(super) fn execute(
        &mut self,
        id: ProgramId,
        section: Section,
        instructions: Range<usize>,
    ) -> Result<(), DeviceError> {
        self.ready(id)?;
        let (ready, arena) = (&self.programs[id.0], self.arena);
        if instructions.end > ready.cuda.program.section(section).len() {
            return Err(DeviceError::Unknown { what: "instruction", index: instructions.end });
        }
        let commands = ready.cuda.of_instructions(section, &instructions);
        for command in commands.ok_or(DeviceError::Apart { instructions: instructions.clone() })? {
            ready.issue(&mut self.driver, arena, section, command).map_err(|error| {
                let instruction = &ready.cuda.program.section(section)[command.instructions.start];
                DeviceError::Driver {
                    operator: instruction.name(),
                    origin: instruction.origin.clone(),
                    error,
                }
            })?;
        }
        Ok(())
    }

    /// Lets every stream wait for all others.
    fn join(&mut self, id: ProgramId) -> Result<(), DriverError> {
        let (driver, cuda) = (&mut self.driver, &self.programs[id.0].cuda);
        for stream in Stream::ALL {
            driver.record(stream, cuda.end_of(stream))?;
        }
        for (stream, other) in [(Stream::Main, Stream::Side), (Stream::Side, Stream::Main)] {
            driver.wait(stream, cuda.end_of(other))?;
        }
        Ok(())
    }

    fn read(&self, ready: &Ready, view: &View) -> Result<Vec<u8>, DeviceError> {
        let span = view.bytes();
        let mut bytes = vec![0; (span.end - span.start) as usize];
        let base = ready.base(self.arena, view.region);
        self.driver.read(Address(base.0 + span.start), &mut bytes).map_err(refused)?;
        if view.layout.is_dense() {
            return Ok(bytes);
        }
        let mut dense = vec![0; view.layout.len() * view.dtype.bytes() as usize];
        crate::cpu::gather(&bytes, view, &mut dense);
        Ok(dense)
    }
}

impl Ready {
    fn base(&self, arena: Address, region: Region) -> Address {
        match region {
            Region::Arena => arena,
            Region::Constants => self.constants,
        }
    }

    /// An argument as the 8 bytes that a kernel gets.
    fn word(&self, arena: Address, argument: &Argument) -> u64 {
        match *argument {
            Argument::Address(region, start) => self.base(arena, region).0.wrapping_add_signed(start),
            Argument::Number(number) => number as u64,
            Argument::Table(index) => self.tables.0 + 8 * index as u64,
            Argument::Adds => u64::from(self.microbatches > 1),
        }
    }

    /// Gives the driver a command.
    fn issue(
        &self,
        driver: &mut impl Driver,
        arena: Address,
        section: Section,
        command: &Command,
    ) -> Result<(), DriverError> {
        let stream = command.stream;
        let later = self.microbatches > 1;
        let address = |region, start: i64| Address(self.base(arena, region).0.wrapping_add_signed(start));
        command.waits.iter().try_for_each(|&event| driver.wait(stream, event))?;
        match &command.task {
            Task::Launch(launch) => {
                let words: Vec<u64> =
                    launch.arguments.iter().map(|argument| self.word(arena, argument)).collect();
                driver.launch(stream, self.loaded, launch, &words)?;
            }
            Task::Multiply(multiply) => {
                let begin = |matrices: &Matrices| address(matrices.region, matrices.start);
                let start = |start: Start| address(start.region, start.byte);
                let epilogue = &multiply.epilogue;
                let places = MultiplyPlaces {
                    lhs: begin(&multiply.lhs),
                    rhs: begin(&multiply.rhs),
                    out: begin(&multiply.out),
                    bias: epilogue.bias.map(start),
                    addend: epilogue.addend.as_ref().map(begin),
                    aux: epilogue.aux.as_ref().map(begin),
                    sums: epilogue.sums.map(|(_, place)| start(place)),
                };
                driver.multiply(stream, multiply, places, multiply.accumulates && later)?;
            }
            Task::Library => {
                let instruction = &self.cuda.program.section(section)[command.instructions.start];
                let add = instruction.accumulates && later;
                driver.library(stream, LibraryTask { instruction, arena, constants: self.constants, add })?;
            }
        }
        command.records.map_or(Ok(()), |event| driver.record(stream, event))
    }

    /// Counts microbatches: the first of a step overwrites the sums of the one before.
    fn begin(&mut self, section: Section) -> Result<(), DeviceError> {
        match section {
            Section::Prepare => self.microbatches = 0,
            Section::Microbatch
                if self.microbatches >= 1 && self.cuda.program.microbatches == Microbatches::One =>
            {
                return Err(DeviceError::OneMicrobatch);
            }
            Section::Microbatch => self.microbatches += 1,
            Section::Update => {}
        }
        Ok(())
    }
}

fn refused(error: DriverError) -> DeviceError {
    DeviceError::Driver { operator: String::new(), origin: "".into(), error }
}

impl<D: Driver> Device for Cuda<D> {
    fn program(&self, program: ProgramId) -> &Arc<Program> {
        &self.programs[program.0].cuda.program
    }

    fn write_state(&mut self, program: ProgramId, state: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let ready = self.ready(program)?;
        let states = &ready.cuda.program.states;
        let slot = states.get(state).ok_or(DeviceError::Unknown { what: "state", index: state })?;
        DeviceError::check_size(&slot.name, &slot.ty, &ready.cuda.program.mesh, bytes)?;
        let at = Address(self.arena.0 + slot.view.bytes().start);
        self.driver.write(at, bytes).map_err(refused)
    }

    fn read_state(&self, program: ProgramId, state: usize) -> Result<Cow<'_, [u8]>, DeviceError> {
        let ready = self.ready(program)?;
        let states = &ready.cuda.program.states;
        let slot = states.get(state).ok_or(DeviceError::Unknown { what: "state", index: state })?;
        self.read(ready, &slot.view).map(Cow::Owned)
    }

    fn write_input(&mut self, program: ProgramId, input: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let ready = self.ready(program)?;
        let inputs = &ready.cuda.program.inputs;
        let slot = inputs.get(input).ok_or(DeviceError::Unknown { what: "input", index: input })?;
        DeviceError::check_size(&slot.name, &slot.ty, &ready.cuda.program.mesh, bytes)?;
        let Some(view) = &slot.view else { return Ok(()) };
        let at = Address(self.arena.0 + view.bytes().start);
        self.driver.write(at, bytes).map_err(refused)
    }

    fn run(&mut self, id: ProgramId, section: Section) -> Result<(), DeviceError> {
        let count = self.ready(id)?.cuda.program.section(section).len();
        self.programs[id.0].begin(section)?;
        self.execute(id, section, 0..count)?;
        self.join(id).map_err(refused)
    }

    fn run_update(&mut self, id: ProgramId, instructions: Range<usize>) -> Result<(), DeviceError> {
        self.execute(id, Section::Update, instructions)
    }

    fn read_output(&self, program: ProgramId, output: usize) -> Result<Vec<u8>, DeviceError> {
        let ready = self.ready(program)?;
        let outputs = &ready.cuda.program.outputs;
        let slot = outputs.get(output).ok_or(DeviceError::Unknown { what: "output", index: output })?;
        self.read(ready, &slot.view)
    }

    fn first_non_finite(&mut self, id: ProgramId) -> Result<Option<NonFinite>, DeviceError> {
        super::non_finite::first(self, id)
    }
}
