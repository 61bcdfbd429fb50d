//! Several ranks on this machine as one device: each a thread with a device of its own, a share of the processor or a GPU,
//! all running the same program on their parts of the tensors.
//!
//! What goes in and comes out is whole, so that nothing that works with a [`Device`] needs to know of ranks. A section
//! is run by all ranks at once and ends when all have. A rank that fails ends all, and what is reported is its error,
//! not what became of the others.

mod fate;
mod parts;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use crate::comm::local::Local;
use crate::comm::{CommError, Communicator, check};
use crate::cpu::Cpu;
use crate::device::{Device, DeviceError, Later, NonFinite, ProgramId};
use crate::profile::Profile;
use crate::program::{Program, Section};
pub(crate) use fate::Abort;
use fate::{Fate, first_error, one, panicked};
use parts::Parts;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::thread;

/// A device that can be one of several ranks: it is given, and gives, its part of every tensor.
pub trait Rank: Device + Send {
    /// As [`Device::first_non_finite`], with the place of its instruction among those of the microbatch. All ranks are
    /// asked at once.
    fn first_non_finite_at(&mut self, id: ProgramId) -> Result<Option<(usize, NonFinite)>, DeviceError>;

    /// Does what needs the rank's thread, which is about to end.
    fn settle(&mut self) -> Result<(), DeviceError>;
}

/// The ranks of a mesh.
pub struct Ranks<D = Cpu> {
    devices: Vec<D>,
    programs: Vec<Arc<Program>>,
    local: Local,
    fate: Fate,
    /// Outputs that were asked for, of each rank, by number; and how often some were.
    coming: BTreeMap<usize, Vec<Later>>,
    asked: usize,
}

/// A device for programs of any mesh, with `threads` threads in all, or as many as there are cores: one CPU for a mesh
/// of one device, else local ranks. See [`Cpu::new`] and [`Ranks::new`]. A profile gets the times of the first program,
/// on the first rank.
///
/// # Errors
/// Those of either.
pub fn device(
    programs: Vec<Arc<Program>>,
    threads: Option<usize>,
    profile: Option<Profile>,
) -> Result<Box<dyn Device + Send>, DeviceError> {
    if programs.iter().all(|program| program.mesh.devices() == 1) {
        let mut cpu = Cpu::new(programs, threads)?;
        profile.into_iter().for_each(|profile| cpu.record(profile));
        return Ok(Box::new(cpu));
    }
    let mut ranks = Ranks::new(programs, threads)?;
    ranks.devices.iter_mut().zip(profile).for_each(|(cpu, profile)| cpu.record(profile));
    Ok(Box::new(ranks))
}

impl Ranks<Cpu> {
    /// As many ranks as the programs' mesh has devices, which share `threads` threads, or as many as there are cores;
    /// each gets at least one. Every rank has all programs; they share their states if they were lowered so.
    ///
    /// # Errors
    /// No memory, no threads; programs of different meshes; collectives that would not meet.
    pub fn new(programs: Vec<Arc<Program>>, threads: Option<usize>) -> Result<Self, DeviceError> {
        let devices = programs.first().map_or(1, |program| program.mesh.devices());
        if let Some(program) = programs.iter().find(|program| program.mesh.devices() != devices) {
            return Err(DeviceError::devices(program, devices));
        }
        Self::with(vec![programs; devices as usize], threads, |communicator| communicator)
    }

    /// Ranks of which each has programs of its own; `through` is what each communicates through, given its
    /// communicator.
    pub(crate) fn with(
        programs: Vec<Vec<Arc<Program>>>,
        threads: Option<usize>,
        through: impl Fn(Arc<dyn Communicator>) -> Arc<dyn Communicator>,
    ) -> Result<Self, DeviceError> {
        let own = programs.first().cloned().unwrap_or_default();
        for index in 0..own.len() {
            let all: Vec<&Program> = programs.iter().map(|own| &*own[index]).collect();
            meet(&all)?;
        }
        Cpu::has_room(&own, programs.len() as u64)?;
        let local = Local::new(programs.len() as u64);
        let cores = || thread::available_parallelism().map_or(1, usize::from);
        let threads = (threads.unwrap_or_else(cores) / programs.len().max(1)).max(1);
        let rank = |(rank, programs)| {
            Cpu::of_rank(programs, threads, through(Arc::new(local.communicator(rank as u64))))
        };
        let devices = programs.into_iter().enumerate().map(rank).collect::<Result<_, _>>()?;
        Ok(Self::of(devices, own, local, Box::new(|_| {})))
    }

    /// Bytes allocated by all ranks together.
    pub fn allocated(&self) -> u64 {
        self.devices.iter().map(Cpu::allocated).sum()
    }
}

/// Refuses programs, one for each rank, whose collectives would not meet.
pub(crate) fn meet(programs: &[&Program]) -> Result<(), DeviceError> {
    check::check(programs).map_err(|diagnostic| DeviceError::Collectives(Box::new(diagnostic)))
}

impl<D: Rank> Ranks<D> {
    /// Ranks that have these devices, each all of these programs, and communicate among them or through `local`.
    pub(crate) fn of(devices: Vec<D>, programs: Vec<Arc<Program>>, local: Local, abort: Abort) -> Self {
        Self { devices, programs, local, fate: Fate::new(abort), coming: BTreeMap::new(), asked: 0 }
    }

    /// How many ranks there are.
    pub fn count(&self) -> usize {
        self.devices.len()
    }

    /// Lets every rank do the same, each on a thread; gives what each returned.
    fn on_each<R: Send>(
        &mut self,
        run: impl Fn(&mut D) -> Result<R, DeviceError> + Sync,
    ) -> Result<Vec<R>, DeviceError> {
        self.on_threads(|rank| thread::Builder::new().name(format!("rank-{rank}")), run)
    }

    /// The same; `thread` is what a rank's thread is started as.
    fn on_threads<R: Send>(
        &mut self,
        thread: impl Fn(u64) -> thread::Builder,
        run: impl Fn(&mut D) -> Result<R, DeviceError> + Sync,
    ) -> Result<Vec<R>, DeviceError> {
        self.fate.alive()?;
        let work = self.local.begin();
        let fate = &self.fate;
        let run = &|device: &mut D| {
            let result = run(device)?;
            device.settle()?;
            Ok(result)
        };
        let mut absent = None;
        let results: Vec<Result<R, DeviceError>> = thread::scope(|scope| {
            let start = |((rank, device), at_work)| {
                let started = thread(rank).spawn_scoped(scope, move || one(device, at_work, run, fate));
                started.map_err(|error| {
                    // The others have begun, and wait for this one.
                    fate.end(rank);
                    absent.get_or_insert(CommError::Ended { rank });
                    DeviceError::Threads { threads: 1, message: error.to_string() }
                })
            };
            let threads: Vec<_> = (0..).zip(&mut self.devices).zip(work).map(start).collect();
            let end = |thread: Result<thread::ScopedJoinHandle<'_, _>, _>| {
                thread.and_then(|thread| thread.join().unwrap_or_else(|panic| Err(panicked(panic))))
            };
            threads.into_iter().map(end).collect()
        });
        first_error(results, absent.or_else(|| self.local.ended()))
    }

    /// A program, if there is one.
    fn programs_of(&self, id: ProgramId) -> Result<Arc<Program>, DeviceError> {
        let unknown = DeviceError::Unknown { what: "program", index: id.0 };
        self.programs.get(id.0).cloned().ok_or(unknown)
    }
}

impl<D: Rank> Device for Ranks<D> {
    fn program(&self, program: ProgramId) -> &Arc<Program> {
        &self.programs[program.0]
    }

    fn write_state(&mut self, id: ProgramId, state: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let program = self.programs_of(id)?;
        let slot = program.states.get(state).ok_or(DeviceError::Unknown { what: "state", index: state })?;
        let parts = Parts::of(&slot.name, &slot.ty, &program.mesh)?;
        parts.check(bytes)?;
        let mut ranks = self.devices.iter_mut().enumerate();
        let write = |rank, device: &mut D| device.write_state(id, state, &parts.cut(rank, bytes));
        ranks.try_for_each(|(rank, device)| self.fate.of_rank(rank, write(rank, device)))
    }

    fn read_state(&self, id: ProgramId, state: usize) -> Result<Cow<'_, [u8]>, DeviceError> {
        self.fate.alive()?;
        let program = self.programs_of(id)?;
        let slot = program.states.get(state).ok_or(DeviceError::Unknown { what: "state", index: state })?;
        let parts = Parts::of(&slot.name, &slot.ty, &program.mesh)?;
        let ranks = self.devices.iter().enumerate();
        parts.together(ranks.map(|(rank, device)| self.fate.of_rank(rank, device.read_state(id, state))))
    }

    fn write_input(&mut self, id: ProgramId, input: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let program = self.programs_of(id)?;
        let slot = program.inputs.get(input).ok_or(DeviceError::Unknown { what: "input", index: input })?;
        let parts = Parts::of(&slot.name, &slot.ty, &program.mesh)?;
        parts.check(bytes)?;
        let mut ranks = self.devices.iter_mut().enumerate();
        let write = |rank, device: &mut D| device.write_input(id, input, &parts.cut(rank, bytes));
        ranks.try_for_each(|(rank, device)| self.fate.of_rank(rank, write(rank, device)))
    }

    fn run(&mut self, program: ProgramId, section: Section) -> Result<(), DeviceError> {
        self.on_each(|cpu| cpu.run(program, section)).map(drop)
    }

    fn run_update(&mut self, program: ProgramId, instructions: Range<usize>) -> Result<(), DeviceError> {
        self.on_each(|cpu| cpu.run_update(program, instructions.clone())).map(drop)
    }

    fn read_output(&self, id: ProgramId, output: usize) -> Result<Vec<u8>, DeviceError> {
        self.fate.alive()?;
        let program = self.programs_of(id)?;
        let unknown = DeviceError::Unknown { what: "output", index: output };
        let slot = program.outputs.get(output).ok_or(unknown)?;
        let parts = Parts::of(&slot.name, &slot.ty, &program.mesh)?;
        let ranks = self.devices.iter().enumerate();
        let read = ranks.map(|(rank, device)| self.fate.of_rank(rank, device.read_output(id, output)));
        Ok(parts.together(read.map(|bytes| bytes.map(Cow::Owned)))?.into_owned())
    }

    fn read_later(&mut self, id: ProgramId, outputs: Vec<usize>) -> Result<Later, DeviceError> {
        self.fate.alive()?;
        let count = self.programs_of(id)?.outputs.len();
        if let Some(&index) = outputs.iter().find(|output| **output >= count) {
            return Err(DeviceError::Unknown { what: "output", index });
        }
        let ranks = self.devices.iter_mut().enumerate();
        let ask =
            |(rank, device): (_, &mut D)| self.fate.of_rank(rank, device.read_later(id, outputs.clone()));
        let parts = ranks.map(ask).collect::<Result<Vec<_>, _>>()?;
        let number = self.asked;
        self.asked += 1;
        self.coming.insert(number, parts);
        Ok(Later::Coming { program: id, outputs, number })
    }

    fn collect(&mut self, later: Later) -> Result<Vec<Vec<u8>>, DeviceError> {
        self.fate.alive()?;
        let (id, outputs, number) = match later {
            Later::Read(bytes) => return Ok(bytes),
            Later::Coming { program, outputs, number } => (program, outputs, number),
        };
        let coming = self.coming.remove(&number);
        let coming = coming.ok_or(DeviceError::Unknown { what: "outputs", index: number })?;
        let ranks = self.devices.iter_mut().zip(coming).enumerate();
        let collect =
            |(rank, (device, later)): (_, (&mut D, _))| self.fate.of_rank(rank, device.collect(later));
        let ranks = ranks.map(collect).collect::<Result<Vec<Vec<Vec<u8>>>, _>>()?;
        let program = self.programs_of(id)?;
        let together = |(place, output): (usize, &usize)| {
            let slot = &program.outputs[*output];
            let parts = Parts::of(&slot.name, &slot.ty, &program.mesh)?;
            let of_rank = |outputs: &Vec<Vec<u8>>| Ok(Cow::Owned(outputs[place].clone()));
            Ok(parts.together(ranks.iter().map(of_rank))?.into_owned())
        };
        outputs.iter().enumerate().map(together).collect()
    }

    /// All ranks see the same outputs, and so give a step up together.
    fn run_ahead(&mut self, id: ProgramId) -> Result<bool, DeviceError> {
        let ranks = self.devices.iter_mut().enumerate();
        let ahead = ranks.map(|(rank, device)| self.fate.of_rank(rank, device.run_ahead(id)));
        Ok(ahead.collect::<Result<Vec<bool>, _>>()?.into_iter().all(|ahead| ahead))
    }

    /// The first instruction that any rank sees make such a number, and on which rank.
    fn first_non_finite(&mut self, program: ProgramId) -> Result<Option<NonFinite>, DeviceError> {
        let found = self.on_each(|cpu| cpu.first_non_finite_at(program))?;
        let ranks = found.into_iter().enumerate();
        let found = ranks.filter_map(|(rank, found)| found.map(|(index, found)| (rank, index, found)));
        let first = found.min_by_key(|(rank, index, found)| (!found.value.is_nan(), *index, *rank));
        Ok(first.map(|(rank, _, found)| NonFinite { rank: Some(rank as u64), ..found }))
    }
}
