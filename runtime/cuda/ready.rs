//! Gives a program's commands to a driver, with addresses in place of regions and offsets.

use super::clock::Clock;
use super::driver::{
    Address, CollectiveTask, CopyTask, Driver, DriverError, HostTask, LibraryTask, Loaded, Memories,
    MessageTask, MultiplyPlaces, Touches,
};
use super::program::{
    Argument, Command, CudaProgram, Matrices, MemoryCopy, PlacedMessage, Task as CommandTask, ValueStart,
};
use cpu::{self, HostMemory, HostProgram};
use ir::timetable::Task;
use program::device::DeviceError;
use program::{Block, Message, Microbatches, RankPipeline, Section, Turn};
use std::sync::Arc;

/// A program that is loaded on a device.
pub(super) struct Ready {
    pub(super) cuda: CudaProgram,
    pub(super) loaded: Loaded,
    pub(super) constants: Address,
    pub(super) tables: Address,
    pub(super) halt: Address,
    /// The part of the program that the host runs, the host's memory, and its address. `None` if nothing lies there.
    pub(super) host: Option<(HostProgram, HostMemory, Address)>,
    /// The rank's place in the mesh, which is the mesh of a stage.
    pub(super) rank: u64,
    /// The number of microbatches of this step that have begun.
    pub(super) microbatches: u64,
    /// In a pipeline, the present turn.
    pub(super) turn: PresentTurn,
}

/// A turn of a pipeline on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PresentTurn {
    /// The starts in the arena of the blocks that the turn touches; empty outside of turns.
    pub(super) blocks: Arc<[u64]>,
    /// Whether the step runs the same part of a later microbatch.
    pub(super) is_repeated: bool,
}

impl PresentTurn {
    /// Returns the present form of a rank's turn.
    pub(super) fn of(pipeline: &RankPipeline, turn: &Turn) -> Self {
        let Task { part, microbatch } = turn.task;
        let own = pipeline.blocks.iter().zip(&turn.bases);
        let base =
            |(block, base): (&Block, &u64)| if block.parts.contains(&part) { *base } else { Turn::NOWHERE };
        // An unbroken stream may end after any step, so nothing is known of a later microbatch.
        let is_repeated = !pipeline.is_asynchronous && microbatch + 1 < pipeline.microbatches;
        Self { blocks: own.map(base).collect(), is_repeated }
    }
}

impl Ready {
    /// Returns the starts of the program's memories.
    pub(super) fn memories(&self, arena: Address) -> Memories {
        let host = self.host.as_ref().map_or(Address(0), |(_, _, start)| *start);
        Memories { arena, constants: self.constants, host, blocks: self.turn.blocks.clone() }
    }

    /// Returns the number of the stage's first rank among the ranks of all stages.
    fn first_of_stage(&self) -> u64 {
        let program = &self.cuda.program;
        program.pipeline.as_ref().map_or(0, |pipeline| u64::from(pipeline.rank) * program.mesh.devices())
    }

    /// Returns an argument as the 8 bytes that a kernel gets.
    pub(super) fn word(&self, memories: &Memories, argument: &Argument) -> u64 {
        let (mesh, rank) = (&self.cuda.program.mesh, self.rank);
        let address = |region, start| memories.of(region).0.wrapping_add_signed(start);
        match *argument {
            Argument::Address(region, start) => address(region, start),
            Argument::AddressByRank(region, ref start) => address(region, start.on(mesh, rank)),
            Argument::Number(number) => number as u64,
            Argument::NumberByRank(ref number) => number.on(mesh, rank) as u64,
            Argument::Halt => self.halt.0,
            Argument::Table(index) => self.tables.0 + 8 * index as u64,
            Argument::Adds => u64::from(self.microbatches > 1),
        }
    }

    /// Gives the driver a command. The caller has already given the waits of its stream.
    pub(super) fn issue(
        &self,
        driver: &mut impl Driver,
        arena: Address,
        section: Section,
        command: &Command,
        clock: Option<&mut Clock>,
    ) -> Result<(), DriverError> {
        let stream = command.stream;
        let later = self.microbatches > 1;
        let memories = &self.memories(arena);
        let address = |region, start: i64| Address(memories.of(region).0.wrapping_add_signed(start));
        if let Some(clock) = &clock {
            clock.before(driver, command)?;
        }
        driver.declare(Touches { command, memories });
        match &command.task {
            CommandTask::Launch(launch) => {
                let words: Vec<u64> =
                    launch.arguments.iter().map(|argument| self.word(memories, argument)).collect();
                driver.launch(stream, self.loaded, launch, &words)?;
            }
            CommandTask::Multiply(multiply) => {
                let begin = |matrices: &Matrices| address(matrices.region, matrices.start);
                let start = |start: ValueStart| address(start.region, start.byte);
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
            CommandTask::Library => {
                let instruction = &self.cuda.program.section(section)[command.instructions.start];
                driver.library(stream, LibraryTask { instruction, memories })?;
            }
            CommandTask::Collective(collective) => {
                let start = |start: ValueStart| address(start.region, start.byte);
                let places = collective.tensors.iter().map(|pieces| [pieces.from, pieces.to].map(start));
                let mut group = self.cuda.program.mesh.group(self.rank, &collective.axes);
                group.iter_mut().for_each(|rank| *rank += self.first_of_stage());
                let places: Vec<[Address; 2]> = places.collect();
                driver.collective(stream, CollectiveTask { collective, group: &group, places: &places })?;
            }
            CommandTask::Message(PlacedMessage { message: Message { from, to, channel }, at, bytes }) => {
                let rank_on = |stage: u32| u64::from(stage) * self.cuda.program.mesh.devices() + self.rank;
                let sends = rank_on(*from) == self.first_of_stage() + self.rank;
                let other = rank_on(if sends { *to } else { *from });
                let at = address(at.region, at.byte);
                let message = MessageTask { channel: *channel, other, at, bytes: *bytes };
                if sends { driver.send(message)? } else { driver.receive(message, self.turn.is_repeated)? }
            }
            CommandTask::Copy(MemoryCopy { from, to, bytes }) => {
                let [from, to] = [from, to].map(|start| address(start.region, start.byte));
                driver.copy(stream, CopyTask { from, to, bytes: *bytes })?;
            }
            CommandTask::Host | CommandTask::Disk => {
                driver.on_host(stream, self.host_task(section, command)?)?;
            }
        }
        clock.map_or(Ok(()), |clock| clock.after(driver, section, command))?;
        command.records.map_or(Ok(()), |event| driver.record(stream, event))
    }

    /// Returns the task of a command that the host runs: an instruction, or a copy between the host's memory and a file.
    fn host_task(&self, section: Section, command: &Command) -> Result<HostTask, DriverError> {
        let without = || DriverError("an instruction of the host in a program without memory there".into());
        let (program, memory, _) = self.host.as_ref().ok_or_else(without)?;
        let index = command.instructions.start;
        let adds = self.cuda.program.section(section)[index].accumulates && self.microbatches > 1;
        let (memory, program, blocks) = (memory.clone(), program.clone(), self.turn.blocks.clone());
        let task = cpu::HostTask { memory, program, section, index, blocks, adds };
        Ok(Arc::new(move || task.run()))
    }

    /// Begins a turn of a pipeline.
    pub(super) fn begin_turn(&mut self, turn: &Turn) {
        let pipeline = self.cuda.program.pipeline.as_ref();
        self.turn = pipeline.map(|pipeline| PresentTurn::of(pipeline, turn)).unwrap_or_default();
        self.microbatches = u64::from(turn.task.microbatch) + 1;
    }

    /// Begins a section and counts microbatches: the first one of a step overwrites the sums of the step before.
    pub(super) fn begin(&mut self, section: Section) -> Result<(), DeviceError> {
        self.turn = PresentTurn::default();
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
