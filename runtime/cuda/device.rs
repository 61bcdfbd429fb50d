//! A GPU with programs that share one arena, run through a driver: its memory, its clock, and the issue of commands.

use super::clock::Clock;
use super::driver::{Address, Driver, DriverError};
use super::lower::lower;
use super::pace::{Pace, Stretch, StretchState};
use super::program::{CudaProgram, Event, Stream, Task};
use super::ready::{PresentTurn, Ready};
use cpu::{HostMemory, HostProgram};
use program::calls::CallClock;
use program::device::{DeviceError, ProgramId};
use program::profile::DeviceProfiles;
use program::{Part, Program, Section, Turn, View};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A GPU, or its stand-in, with programs that share one arena.
pub struct Cuda<D> {
    pub(super) driver: D,
    pub(super) programs: Vec<Ready>,
    pub(super) arena: Address,
    /// The memory of the host and of a file, which outlive the driver: fields are dropped in their order.
    pub(super) host: HostMemory,
    pub(super) pace: Pace,
    pub(super) known: BTreeMap<Stretch, StretchState>,
    /// The program whose casts of weights are in the arena, made from the present weights.
    pub(super) renewed: Option<ProgramId>,
    /// The clocks of the programs whose profiles are recorded.
    pub(super) clocks: BTreeMap<ProgramId, Clock>,
    /// The clock that runs while a caller waits.
    pub(super) calls: CallClock,
}

impl<D: Driver> Cuda<D> {
    /// Allocates the arena (zeroed) and the constants of `programs`, and makes their kernels ready.
    ///
    /// # Errors
    /// An operator without a kernel; an error of the driver.
    pub fn new(driver: D, programs: Vec<Arc<Program>>) -> Result<Self, DeviceError> {
        let programs = programs.into_iter().map(|program| lower(program).map_err(DeviceError::kernel));
        Self::with(driver, programs.collect::<Result<_, _>>()?)
    }

    /// As [`Self::new`], for programs that are lowered already.
    ///
    /// # Errors
    /// A program for another kind of device, or for several devices; an error of the driver.
    pub fn with(driver: D, programs: Vec<CudaProgram>) -> Result<Self, DeviceError> {
        Self::alone(driver, programs, None)
    }

    /// As [`Self::with`]. Values on the disk lie in a file in `folder`, or, without one, in the system's folder of temporary files.
    ///
    /// # Errors
    /// As of [`Self::with`]; a folder that takes no file of this size.
    pub fn alone(driver: D, programs: Vec<CudaProgram>, folder: Option<&Path>) -> Result<Self, DeviceError> {
        if let Some(cuda) = programs.iter().find(|cuda| cuda.program.mesh.devices() != 1) {
            return Err(DeviceError::devices(&cuda.program, 1));
        }
        Self::of_rank(driver, programs, 0, folder)
    }

    /// As [`Self::alone`], for one of several ranks. Its driver exchanges with the drivers of the other ranks.
    ///
    /// # Errors
    /// A program for another kind of device; an error of the driver; a folder that takes no file of this size.
    pub fn of_rank(
        driver: D,
        programs: Vec<CudaProgram>,
        rank: u64,
        folder: Option<&Path>,
    ) -> Result<Self, DeviceError> {
        if let Some(cuda) = programs.iter().find(|cuda| cuda.program.target != crate::TARGET.name()) {
            return Err(DeviceError::Target { program: cuda.program.name.clone() });
        }
        program::room::check_host(programs.iter().map(|cuda| &*cuda.program), 1)?;
        let host = HostMemory::new(programs.iter().map(|cuda| &*cuda.program), folder)?;
        // The driver is dropped before `host`, also if an error ends this function.
        let mut driver = driver;
        let room = driver.room(&programs).map_err(DeviceError::driver)?;
        super::room::check(&programs, &room).map_err(|error| DeviceError::TooLarge(Box::new(error)))?;
        let bytes = programs.iter().map(|cuda| cuda.program.memory.arena).max().unwrap_or_default();
        let arena = driver.allocate(bytes).map_err(DeviceError::driver)?;
        let halt = driver.allocate(8).map_err(DeviceError::driver)?;
        let lent = host.place().map(|(memory, bytes)| driver.lend(memory, bytes));
        let lent = lent.transpose().map_err(DeviceError::driver)?;
        let load = |driver: &mut D, cuda: CudaProgram, rank: u64, host| -> Result<Ready, DriverError> {
            let constants = driver.allocate(cuda.program.memory.constants)?;
            for constant in &cuda.program.constants {
                driver.write(Address(constants.0 + constant.base), &constant.bytes)?;
            }
            let tables = driver.allocate(8 * cuda.tables.len() as u64)?;
            let loaded = driver.load(&cuda)?;
            let turn = PresentTurn::default();
            let ready = Ready { cuda, loaded, constants, tables, halt, host, rank, microbatches: 0, turn };
            let memories = ready.memories(arena);
            let words = ready.cuda.tables.iter().map(|argument| ready.word(&memories, argument));
            let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            driver.write(tables, &bytes)?;
            Ok(ready)
        };
        let ready = |cuda: CudaProgram| {
            let rank = rank % cuda.program.mesh.devices();
            let of_host = |start| HostProgram::new(&cuda.program, rank).map(|own| (own, host.clone(), start));
            let own = lent.map(of_host).transpose()?;
            load(&mut driver, cuda, rank, own).map_err(DeviceError::driver)
        };
        let programs = programs.into_iter().map(ready).collect::<Result<_, DeviceError>>()?;
        Ok(Self {
            driver,
            programs,
            arena,
            host,
            pace: Pace::default(),
            known: BTreeMap::new(),
            renewed: None,
            clocks: BTreeMap::new(),
            calls: CallClock::default(),
        })
    }

    pub(super) fn ready(&self, program: ProgramId) -> Result<&Ready, DeviceError> {
        self.programs.get(program.0).ok_or(DeviceError::Unknown { what: "program", index: program.0 })
    }

    /// Returns a turn of a pipeline rank's program.
    pub(super) fn turn(&self, id: ProgramId, turn: usize) -> Result<&Turn, DeviceError> {
        let pipeline = self.ready(id)?.cuda.program.pipeline.as_ref().ok_or(DeviceError::Pipeline)?;
        pipeline.turns.get(turn).ok_or(DeviceError::Unknown { what: "turn", index: turn })
    }

    /// Returns the indices of the messages among some instructions of a part.
    pub(super) fn messages(&self, id: ProgramId, part: Part, instructions: &Range<usize>) -> Vec<usize> {
        let commands = self.programs[id.0].cuda.part(part).iter();
        let messages = commands.filter(|command| matches!(command.task, Task::Message(_)));
        messages
            .map(|command| command.instructions.start)
            .filter(|index| instructions.contains(index))
            .collect()
    }

    /// Returns the turn that was begun.
    pub(super) fn present_turn(&self, id: ProgramId) -> &PresentTurn {
        &self.programs[id.0].turn
    }

    /// Waits until the device has run all commands that it was given.
    ///
    /// # Errors
    /// A command failed.
    pub fn finish(&self) -> Result<(), DeviceError> {
        self.driver.finish().map_err(|error| self.refused(error))?;
        self.host.check()
    }

    /// Returns the program from which the GPU's program was made.
    pub(super) fn lowered(&self, program: ProgramId) -> Result<&Arc<Program>, DeviceError> {
        Ok(&self.ready(program)?.cuda.program)
    }

    /// Whether accumulating instructions add to their results.
    pub(super) fn adds(&self, program: ProgramId) -> bool {
        self.programs[program.0].microbatches > 1
    }

    /// Returns the event that a stream records where a section ends.
    pub(super) fn end_of(&self, program: ProgramId, stream: Stream) -> Event {
        self.programs[program.0].cuda.end_of(stream)
    }

    /// Goes back to the step's first microbatch.
    pub(super) fn begin_again(&mut self, program: ProgramId) {
        self.programs[program.0].microbatches = 1;
    }

    /// Notes that a program is about to run, which may overwrite the casts that another program keeps in the arena.
    pub(super) fn take_arena(&mut self, program: ProgramId) {
        self.renewed = self.renewed.filter(|renewed| *renewed == program);
    }

    /// Returns the elements of a view of a program, in row-major order.
    pub(super) fn read_view(&self, program: ProgramId, view: &View) -> Result<Vec<u8>, DeviceError> {
        self.read(self.ready(program)?, view)
    }

    /// Gives the driver the commands of some instructions of a part. They wait only for commands of the same call, so the caller joins
    /// the streams before ([`Self::join`]).
    pub(super) fn execute(
        &mut self,
        id: ProgramId,
        part: Part,
        instructions: Range<usize>,
    ) -> Result<(), DeviceError> {
        self.ready(id)?;
        let (ready, arena, section) = (&self.programs[id.0], self.arena, part.section());
        if instructions.end > ready.cuda.program.section(section).len() {
            return Err(DeviceError::Unknown { what: "instruction", index: instructions.end });
        }
        let commands = ready.cuda.of_instructions(part, &instructions);
        let mut clock = self.clocks.get_mut(&id);
        let mut recorded = BTreeSet::new();
        for command in commands.ok_or(DeviceError::Apart { instructions: instructions.clone() })? {
            let mut waits = command.waits.iter().filter(|event| recorded.contains(*event));
            let done = waits.try_for_each(|&event| self.driver.wait(command.stream, event));
            let mut done = done
                .and_then(|()| ready.issue(&mut self.driver, arena, section, command, clock.as_deref_mut()));
            recorded.extend(command.records);
            if self.pace == Pace::Synchronous {
                done = done.and_then(|()| self.driver.finish());
            }
            done.map_err(|error| {
                let instruction = &ready.cuda.program.section(section)[command.instructions.start];
                let (operator, origin) = (instruction.name(), instruction.origin.clone());
                DeviceError::Driver { operator, origin, message: error.to_string(), late: false }
            })?;
        }
        Ok(())
    }

    /// Reports to the profiles of programs when their commands run, from now on.
    pub fn record(&mut self, profiles: DeviceProfiles) {
        self.clocks = profiles.into_iter().map(|(program, profile)| (program, Clock::new(profile))).collect();
    }

    /// Lets the clock know that a section begins.
    pub(super) fn begin_clock(&mut self, program: ProgramId, section: Section) -> Result<(), DeviceError> {
        match self.clocks.get_mut(&program) {
            Some(clock) if section == Section::Prepare => {
                clock.begin(&mut self.driver).map_err(DeviceError::driver)
            }
            _ => Ok(()),
        }
    }

    /// Reports the stamped commands, if there are any.
    pub(super) fn read_clock(&mut self) -> Result<(), DeviceError> {
        self.clocks.values_mut().try_for_each(|clock| clock.tell(&self.driver)).map_err(DeviceError::driver)
    }

    /// Returns the error of a call that belongs to no instruction.
    pub(super) fn refused(&self, error: DriverError) -> DeviceError {
        self.blamed(DeviceError::driver(error))
    }

    /// Returns the error. If the device has failed, it says that an earlier command may be at fault.
    pub(super) fn blamed(&self, mut error: DeviceError) -> DeviceError {
        if let DeviceError::Driver { late, .. } = &mut error {
            *late = self.pace != Pace::Synchronous && self.driver.has_failed();
        }
        error
    }

    /// Returns the views of a program's outputs with these numbers.
    pub(super) fn outputs(&self, program: ProgramId, outputs: &[usize]) -> Result<Vec<&View>, DeviceError> {
        let all = &self.ready(program)?.cuda.program.outputs;
        let view = |&output: &usize| {
            let slot = all.get(output).ok_or(DeviceError::Unknown { what: "output", index: output })?;
            Ok(&slot.view)
        };
        outputs.iter().map(view).collect()
    }

    pub(super) fn read(&self, ready: &Ready, view: &View) -> Result<Vec<u8>, DeviceError> {
        if view.region.is_beside_device() {
            self.finish()?;
            return self.host.read(view, &ready.turn.blocks);
        }
        let span = view.bytes();
        let mut bytes = vec![0; (span.end - span.start) as usize];
        let base = ready.memories(self.arena).of(view.region);
        let read = self.driver.read(Address(base.0 + span.start), &mut bytes);
        read.map_err(|error| self.refused(error))?;
        self.host.check()?;
        Ok(dense(view, bytes))
    }
}

/// Returns the elements of a view in row-major order, from all bytes that the view spans.
pub(super) fn dense(view: &View, bytes: Vec<u8>) -> Vec<u8> {
    if view.layout.is_dense() {
        return bytes;
    }
    let mut dense = vec![0; view.layout.len() * view.dtype.bytes() as usize];
    cpu::gather(&bytes, view, &mut dense);
    dense
}
