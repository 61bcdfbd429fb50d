//! A GPU as a device: programs that share one arena, run through a driver.

use super::clock::Clock;
use super::driver::{Address, Driver, DriverError, Fetched};
use super::graphs::{Pace, Stretch, StretchState};
use super::lower::lower;
use super::program::{CudaProgram, Event, Stream, Task};
use super::ready::{PresentTurn, Ready};
use cpu::{HostMemory, HostProgram};
use program::calls::CallClock;
use program::device::{Device, DeviceError, Later, NonFinite, ProgramId};
use program::{Part, Program, Region, Section, Turn, View};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A GPU, or its stand-in, with programs that share one arena.
pub struct Cuda<D> {
    pub(super) driver: D,
    programs: Vec<Ready>,
    arena: Address,
    /// The memory of the host and of a file, which outlive the driver: fields are dropped in their order.
    pub(super) host: HostMemory,
    pub(super) pace: Pace,
    pub(super) known: BTreeMap<Stretch, StretchState>,
    /// The program whose casts of weights are in the arena, made from the present weights.
    renewed: Option<ProgramId>,
    /// The clock, if a profile is recorded.
    pub(super) clock: Option<Clock>,
    /// The clock that runs while a caller waits.
    calls: CallClock,
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
            clock: None,
            calls: CallClock::default(),
        })
    }

    fn ready(&self, program: ProgramId) -> Result<&Ready, DeviceError> {
        self.programs.get(program.0).ok_or(DeviceError::Unknown { what: "program", index: program.0 })
    }

    /// Returns a turn of a pipeline rank's program.
    fn turn(&self, id: ProgramId, turn: usize) -> Result<&Turn, DeviceError> {
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
    fn take_arena(&mut self, program: ProgramId) {
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
        let mut clock = self.clock.as_mut().filter(|_| id == ProgramId::default());
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

    /// Returns the views of a program's outputs with these numbers.
    fn outputs(&self, program: ProgramId, outputs: &[usize]) -> Result<Vec<&View>, DeviceError> {
        let all = &self.ready(program)?.cuda.program.outputs;
        let view = |&output: &usize| {
            let slot = all.get(output).ok_or(DeviceError::Unknown { what: "output", index: output })?;
            Ok(&slot.view)
        };
        outputs.iter().map(view).collect()
    }

    fn read(&self, ready: &Ready, view: &View) -> Result<Vec<u8>, DeviceError> {
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
fn dense(view: &View, bytes: Vec<u8>) -> Vec<u8> {
    if view.layout.is_dense() {
        return bytes;
    }
    let mut dense = vec![0; view.layout.len() * view.dtype.bytes() as usize];
    cpu::gather(&bytes, view, &mut dense);
    dense
}

impl<D: Driver> Device for Cuda<D> {
    fn program(&self, program: ProgramId) -> &Arc<Program> {
        &self.programs[program.0].cuda.program
    }

    fn write_state(&mut self, program: ProgramId, state: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let _call = self.calls.begin();
        let ready = self.ready(program)?;
        let states = &ready.cuda.program.states;
        let slot = states.get(state).ok_or(DeviceError::Unknown { what: "state", index: state })?;
        DeviceError::check_size(&slot.name, &slot.ty, &ready.cuda.program.mesh, bytes)?;
        let view = slot.view.clone();
        self.renewed = None;
        if view.region.is_beside_device() {
            self.finish()?;
            return self.host.write_dense(&view, bytes);
        }
        let at = Address(self.arena.0 + view.bytes().start);
        self.driver.write(at, bytes).map_err(|error| self.refused(error))
    }

    fn read_state(&self, program: ProgramId, state: usize) -> Result<Cow<'_, [u8]>, DeviceError> {
        let _call = self.calls.begin();
        let ready = self.ready(program)?;
        let states = &ready.cuda.program.states;
        let slot = states.get(state).ok_or(DeviceError::Unknown { what: "state", index: state })?;
        self.read(ready, &slot.view).map(Cow::Owned)
    }

    fn write_input(&mut self, program: ProgramId, input: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let _call = self.calls.begin();
        let ready = self.ready(program)?;
        let inputs = &ready.cuda.program.inputs;
        let slot = inputs.get(input).ok_or(DeviceError::Unknown { what: "input", index: input })?;
        DeviceError::check_size(&slot.name, &slot.ty, &ready.cuda.program.mesh, bytes)?;
        let Some(view) = &slot.view else { return Ok(()) };
        let at = Address(ready.memories(self.arena).of(view.region).0 + view.bytes().start);
        self.take_arena(program);
        self.driver.feed(at, bytes).map_err(|error| self.refused(error))
    }

    fn run(&mut self, id: ProgramId, section: Section) -> Result<(), DeviceError> {
        let _call = self.calls.begin();
        let program = self.ready(id)?.cuda.program.clone();
        self.programs[id.0].begin(section)?;
        self.begin_clock(id, section)?;
        self.take_arena(id);
        let mut instructions = 0..program.section(section).len();
        if section == Section::Prepare && program.renewed > 0 {
            if self.renewed.is_none() {
                self.perform(id, section.into(), 0..program.renewed)?;
            }
            self.renewed = Some(id);
            instructions.start = program.renewed;
        }
        self.perform(id, section.into(), instructions)?;
        self.read_clock()
    }

    fn end_microbatch(&mut self, id: ProgramId) -> Result<(), DeviceError> {
        let _call = self.calls.begin();
        let program = self.ready(id)?.cuda.program.clone();
        if program.rest_of_microbatch().next().is_none() {
            return Ok(());
        }
        self.take_arena(id);
        self.perform(id, Part::RestOfMicrobatch, 0..program.section(Section::Update).len())?;
        self.read_clock()
    }

    fn begin_turn(&mut self, id: ProgramId, turn: usize) -> Result<(), DeviceError> {
        let begun = self.turn(id, turn)?.clone();
        self.programs[id.0].begin_turn(&begun);
        Ok(())
    }

    fn run_turn(&mut self, id: ProgramId, turn: usize) -> Result<(), DeviceError> {
        let _call = self.calls.begin();
        let instructions = self.turn(id, turn)?.instructions.clone();
        self.take_arena(id);
        self.perform(id, Part::Microbatch, instructions)?;
        self.read_clock()
    }

    fn run_update(&mut self, id: ProgramId, instructions: Range<usize>) -> Result<(), DeviceError> {
        let _call = self.calls.begin();
        self.ready(id)?;
        self.programs[id.0].turn = PresentTurn::default();
        self.take_arena(id);
        self.perform(id, Part::Update, instructions)?;
        self.read_clock()
    }

    fn read_output(&self, program: ProgramId, output: usize) -> Result<Vec<u8>, DeviceError> {
        let _call = self.calls.begin();
        self.read(self.ready(program)?, self.outputs(program, &[output])?[0])
    }

    fn read_later(&mut self, program: ProgramId, outputs: Vec<usize>) -> Result<Later, DeviceError> {
        let _call = self.calls.begin();
        let ready = self.ready(program)?;
        let views = self.outputs(program, &outputs)?;
        if views.iter().any(|view| view.region == Region::Disk) {
            let read = views.into_iter().map(|view| self.read(ready, view));
            return Ok(Later::Read(read.collect::<Result<_, _>>()?));
        }
        let memories = ready.memories(self.arena);
        let place = |view: &&View| {
            let span = view.bytes();
            let at = Address(memories.of(view.region).0 + span.start);
            (at, (span.end - span.start) as usize)
        };
        let places: Vec<_> = views.iter().map(place).collect();
        let Fetched(number) = self.driver.fetch(&places).map_err(|error| self.refused(error))?;
        Ok(Later::Coming { program, outputs, number })
    }

    fn collect(&mut self, later: Later) -> Result<Vec<Vec<u8>>, DeviceError> {
        let _call = self.calls.begin();
        let (program, outputs, number) = match later {
            Later::Read(bytes) => return Ok(bytes),
            Later::Coming { program, outputs, number } => (program, outputs, number),
        };
        let bytes = self.driver.collect(Fetched(number)).map_err(|error| self.refused(error))?;
        self.host.check()?;
        let mut rest = &bytes[..];
        let mut take = |view: &View| {
            let span = view.bytes();
            let (own, others) = rest.split_at((span.end - span.start) as usize);
            rest = others;
            dense(view, own.to_vec())
        };
        Ok(self.outputs(program, &outputs)?.into_iter().map(&mut take).collect())
    }

    fn run_ahead(&mut self, program: ProgramId) -> Result<bool, DeviceError> {
        let _call = self.calls.begin();
        let ready = self.ready(program)?;
        // The ranks of a pipeline check a loss together before they update.
        let (halts, at) = (ready.cuda.halts && ready.cuda.program.pipeline.is_none(), ready.halt);
        if halts {
            let words = [1u32.to_le_bytes(), 0u32.to_le_bytes()].concat();
            self.driver.write(at, &words).map_err(|error| self.refused(error))?;
        }
        Ok(halts)
    }

    fn calls(&self) -> Option<CallClock> {
        Some(self.calls.clone())
    }

    /// Counts the arena, all constants, the tables of combined launches, and memory of the host.
    fn allocated(&self) -> u64 {
        let programs = || self.programs.iter().map(|ready| &ready.cuda);
        let arena = programs().map(|cuda| cuda.program.memory.arena).max().unwrap_or_default();
        let host = self.host.place().map_or(0, |(_, bytes)| bytes as u64);
        arena
            + host
            + programs().map(|cuda| cuda.program.memory.constants + 8 * cuda.tables.len() as u64).sum::<u64>()
    }

    fn settle(&mut self) -> Result<(), DeviceError> {
        let _call = self.calls.begin();
        self.driver.settle().map_err(|error| self.refused(error))?;
        self.host.check()
    }

    fn first_non_finite(&mut self, id: ProgramId) -> Result<Option<NonFinite>, DeviceError> {
        let _call = self.calls.begin();
        super::non_finite::first(self, id)
    }

    fn first_non_finite_of_turn(
        &mut self,
        id: ProgramId,
        turn: usize,
    ) -> Result<Option<NonFinite>, DeviceError> {
        let _call = self.calls.begin();
        let turn = self.turn(id, turn)?.clone();
        super::non_finite::first_of_turn(self, id, &turn)
    }
}
