//! A GPU as a device of the runtime: its states, inputs and outputs, and the sections of a step.

use super::device::{Cuda, dense};
use super::driver::{Address, Driver, Fetched};
use super::non_finite;
use super::ready::PresentTurn;
use program::calls::CallClock;
use program::device::{Device, DeviceError, Later, NonFinite, ProgramId};
use program::{Part, Program, Region, Section, View};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

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
        non_finite::first(self, id)
    }

    fn first_non_finite_of_turn(
        &mut self,
        id: ProgramId,
        turn: usize,
    ) -> Result<Option<NonFinite>, DeviceError> {
        let _call = self.calls.begin();
        let turn = self.turn(id, turn)?.clone();
        non_finite::first_of_turn(self, id, &turn)
    }
}
