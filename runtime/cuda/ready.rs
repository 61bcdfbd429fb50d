//! A program's commands as a driver gets them: with addresses for places.

use super::clock::Clock;
use super::driver::{
    Address, CollectiveTask, Driver, DriverError, LibraryTask, Loaded, MultiplyPlaces, Touches,
};
use super::program::{Argument, Command, CudaProgram, Matrices, Start, Task};
use crate::device::DeviceError;
use crate::program::{Microbatches, Region, Section};

/// A program on a device: where what belongs to it is.
pub(super) struct Ready {
    pub(super) cuda: CudaProgram,
    pub(super) loaded: Loaded,
    pub(super) constants: Address,
    pub(super) tables: Address,
    pub(super) halt: Address,
    pub(super) rank: u64,
    /// Microbatches run in this step.
    pub(super) microbatches: u64,
}

impl Ready {
    pub(super) fn base(&self, arena: Address, region: Region) -> Address {
        match region {
            Region::Arena => arena,
            Region::Constants => self.constants,
        }
    }

    /// An argument as the 8 bytes that a kernel gets.
    pub(super) fn word(&self, arena: Address, argument: &Argument) -> u64 {
        let (mesh, rank) = (&self.cuda.program.mesh, self.rank);
        let address = |region, start| self.base(arena, region).0.wrapping_add_signed(start);
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
        let address = |region, start: i64| Address(self.base(arena, region).0.wrapping_add_signed(start));
        clock.iter().try_for_each(|clock| clock.before(driver, command))?;
        driver.declare(Touches { command, arena, constants: self.constants });
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
            Task::Collective(collective) => {
                let start = |start: Start| address(start.region, start.byte);
                let places = collective.tensors.iter().map(|pieces| [pieces.from, pieces.to].map(start));
                let group = self.cuda.program.mesh.group(self.rank, &collective.axes);
                let places: Vec<[Address; 2]> = places.collect();
                driver.collective(stream, CollectiveTask { collective, group: &group, places: &places })?;
            }
        }
        clock.map_or(Ok(()), |clock| clock.after(driver, section, command))?;
        command.records.map_or(Ok(()), |event| driver.record(stream, event))
    }

    /// Counts microbatches: the first of a step overwrites the sums of the one before.
    pub(super) fn begin(&mut self, section: Section) -> Result<(), DeviceError> {
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
