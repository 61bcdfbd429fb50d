//! The ranks of this process. Each has a device of its own (a GPU, or its share of the processor), and runs the same program on its parts
//! of the tensors.
//!
//! [`Ranks::run`] gives every rank a thread until its work is done. If a rank fails, all ranks end, and only the error of that rank is
//! reported. `whole` runs steps with whole tensors, for `verify` and tests.

mod fate;
mod parts;
#[cfg(test)]
mod tests;
mod whole;

use crate::calls::CallClock;
use crate::comm::agreement::Agreement;
use crate::comm::local::Local;
use crate::comm::of_stage::OfStage;
use crate::comm::record::FlightRecord;
use crate::comm::watchdog::Watchdog;
use crate::comm::{CommError, Communicator, check};
use crate::cpu::Cpu;
use crate::device::{Device, DeviceError, ProgramId};
use crate::profile::Profiles;
use crate::program::{Program, StagePrograms};
pub(crate) use fate::Abort;
use fate::{Fate, first_error, one, panicked};
pub use fate::{RankError, rank_at};
pub use parts::Parts;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
pub use whole::{NamedInputs, NamedOutputs};

/// A rank at work, on its own thread.
pub struct Rank<'d> {
    /// The rank's device, which reads and writes the rank's part of every tensor.
    pub device: &'d mut (dyn Device + 'static),
    /// The agreement with all ranks of the run.
    pub agreement: Agreement,
}

/// The ranks of this process.
pub struct Ranks {
    devices: Vec<Box<dyn Device + Send>>,
    ranks: LocalRanks,
    fate: Fate,
    /// The watchdog of the ranks, after [`Ranks::watch`].
    watchdog: Option<Watchdog>,
}

/// The ranks of this process, by the way in which they agree.
enum LocalRanks {
    /// The only rank of this process, which runs on the caller's thread.
    One(Agreement),
    /// Ranks that are threads, with their communicators.
    Threads(Local, Vec<Arc<dyn Communicator>>),
}

/// Makes ranks on the processor for programs of any mesh, with `threads` threads in all, or one for each core. A mesh of one device has one
/// rank with all threads. See [`Cpu::with_file`] and [`Ranks::new`]. Profiles get the times of the first program: on rank 0, or on all
/// ranks of a pipeline.
///
/// # Errors
/// Those of [`Cpu::with_file`] or of [`Ranks::new`].
pub fn on_processor(
    programs: Vec<impl Into<StagePrograms>>,
    threads: Option<usize>,
    profiles: Option<Profiles>,
    folder: Option<&Path>,
) -> Result<Ranks, DeviceError> {
    let programs: Vec<StagePrograms> = programs.into_iter().map(Into::into).collect();
    if programs.iter().all(|program| program.ranks() == 1) {
        let programs = programs.iter().map(|program| program.first().clone()).collect();
        let mut cpu = Cpu::with_file(programs, threads, folder)?;
        profiles.into_iter().for_each(|profiles| cpu.record(profiles.of_rank(0)));
        return Ok(Ranks::alone(Box::new(cpu)));
    }
    Ranks::of_programs(programs, threads, profiles, folder)
}

impl Ranks {
    /// Makes one rank for each device of the programs' mesh. They share `threads` threads, or one for each core; each rank gets at least
    /// one. Every rank has all programs, which share their states if they were lowered so.
    ///
    /// # Errors
    /// No memory, no threads; programs of different meshes; collectives that do not match.
    pub fn new(programs: Vec<impl Into<StagePrograms>>, threads: Option<usize>) -> Result<Self, DeviceError> {
        Self::of_programs(programs.into_iter().map(Into::into).collect(), threads, None, None)
    }

    fn of_programs(
        programs: Vec<StagePrograms>,
        threads: Option<usize>,
        profiles: Option<Profiles>,
        folder: Option<&Path>,
    ) -> Result<Self, DeviceError> {
        let ranks = programs.first().map_or(1, StagePrograms::ranks);
        if let Some(program) = programs.iter().find(|program| program.ranks() != ranks) {
            return Err(DeviceError::devices(program.first(), ranks));
        }
        let of_rank = |rank| programs.iter().map(|program| program.of_rank(rank).clone()).collect();
        Self::with((0..ranks).map(of_rank).collect(), threads, profiles, folder, |communicator| communicator)
    }

    /// Makes ranks that have programs of their own. `through` wraps each rank's communicator; the rank's device uses the result.
    ///
    /// # Errors
    /// Programs whose collectives do not match; a device that cannot be opened.
    pub fn with(
        programs: Vec<Vec<Arc<Program>>>,
        threads: Option<usize>,
        profiles: Option<Profiles>,
        folder: Option<&Path>,
        through: impl Fn(Arc<dyn Communicator>) -> Arc<dyn Communicator>,
    ) -> Result<Self, DeviceError> {
        let own = programs.first().cloned().unwrap_or_default();
        for (index, first) in own.iter().enumerate() {
            let all = programs.iter().map(|own| &own[index]);
            match all.clone().all(|program| Arc::ptr_eq(program, first)) {
                true => meet(first)?,
                false if first.pipeline.is_some() => all.into_iter().try_for_each(|program| meet(program))?,
                false => all_meet(&all.map(|program| &**program).collect::<Vec<_>>())?,
            }
        }
        let largest = programs.iter().max_by_key(|own| own.first().map_or(0, |own| own.memory.peak()));
        Cpu::has_room(largest.unwrap_or(&own), programs.len() as u64)?;
        let local = Local::new(programs.len() as u64);
        let cores = || thread::available_parallelism().map_or(1, usize::from);
        let ranks = programs.len().max(1);
        let threads = (threads.unwrap_or_else(cores) / ranks).max(1);
        let is_core_free = threads * ranks < cores();
        let rank = |(rank, programs): (usize, Vec<Arc<Program>>)| {
            let communicator = in_stage(through(local.recorded(rank as u64)), &programs);
            let profile =
                profiles.as_ref().and_then(|profiles| profiles.for_programs(rank as u64, &programs));
            let mut cpu = Cpu::of_rank(programs, threads, communicator, folder)?;
            if !is_core_free {
                cpu.exchange_one_by_one();
            }
            profile.into_iter().for_each(|profile| cpu.record(profile));
            Ok(Box::new(cpu) as Box<dyn Device + Send>)
        };
        let devices = programs.into_iter().enumerate().map(rank).collect::<Result<_, DeviceError>>()?;
        Ok(Self::of(devices, local, Box::new(|_| {})))
    }

    /// Makes one rank on the processor, with `threads` threads, of a run whose other ranks are other processes. Profiles get the times of
    /// the first program: on rank 0, or on all ranks of a pipeline.
    ///
    /// # Errors
    /// No memory, no threads; programs for another number of devices than `ranks`; collectives that do not match.
    pub fn of_process(
        programs: Vec<StagePrograms>,
        threads: usize,
        profiles: Option<Profiles>,
        communicator: &Arc<dyn Communicator>,
        ranks: u64,
        folder: Option<&Path>,
    ) -> Result<Self, DeviceError> {
        if let Some(program) = programs.iter().find(|program| program.ranks() != ranks) {
            return Err(DeviceError::devices(program.first(), ranks));
        }
        let own = |program: &StagePrograms| program.of_rank(communicator.rank()).clone();
        let programs: Vec<Arc<Program>> = programs.iter().map(own).collect();
        programs.iter().try_for_each(|program| meet(program))?;
        Cpu::has_room(&programs, 1)?;
        let communicator_of_stage = in_stage(communicator.clone(), &programs);
        let mut cpu = Cpu::of_rank(programs.clone(), threads, communicator_of_stage, folder)?;
        let profile = profiles.and_then(|profiles| profiles.for_programs(communicator.rank(), &programs));
        profile.into_iter().for_each(|profile| cpu.record(profile));
        Ok(Self::of_one(Box::new(cpu), Agreement::of(communicator.clone(), ranks)))
    }

    /// Makes the only rank of a mesh of one device.
    pub fn alone(device: Box<dyn Device + Send>) -> Self {
        Self::of_one(device, Agreement::alone())
    }

    /// Makes one rank on this device, of a run whose other ranks are other processes.
    pub(crate) fn of_one(device: Box<dyn Device + Send>, agreement: Agreement) -> Self {
        let fate = Fate::new(Box::new(|_| {}));
        Self { devices: vec![device], ranks: LocalRanks::One(agreement), fate, watchdog: None }
    }

    /// Makes ranks with these devices, which agree through `local`. If a rank fails, `abort` ends everything outside of `local` that other
    /// ranks wait for.
    pub(crate) fn of(devices: Vec<Box<dyn Device + Send>>, local: Local, abort: Abort) -> Self {
        let communicators = (0..devices.len() as u64).map(|rank| local.recorded(rank)).collect();
        let ranks = LocalRanks::Threads(local, communicators);
        Self { devices, ranks, fate: Fate::new(abort), watchdog: None }
    }

    /// Starts a watchdog over the ranks of this process. It calls `give_up` once, with the last exchanges of the ranks that are threads, if
    /// other ranks have waited for a thread for `timeout`, or a GPU has not answered for as long. `give_up` is to end the process. If ranks
    /// are processes, the communicator watches exchanges on the processor instead.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn watch(
        &mut self,
        timeout: Duration,
        give_up: impl FnOnce(&CommError, &[FlightRecord]) + Send + 'static,
    ) -> Result<(), DeviceError> {
        let (first, local) = match &self.ranks {
            LocalRanks::One(agreement) => (agreement.rank(), None),
            LocalRanks::Threads(local, _) => (0, Some(local.clone())),
        };
        let calls: Vec<(u64, CallClock)> = (first..).zip(self.clocks()).collect();
        // A single GPU waits for no other rank.
        let is_alone = matches!(&self.ranks, LocalRanks::One(agreement) if agreement.is_alone());
        if is_alone || calls.is_empty() && local.is_none() {
            return Ok(());
        }
        let records = local.as_ref().map_or(vec![], |local| local.records().to_vec());
        let seconds = timeout.as_secs();
        let look = move |time| {
            // Every clock is asked, so that its time counts. If a rank and a GPU are late, only the rank is reported.
            let late = local.as_ref().and_then(|local| local.late(time, timeout));
            let stalled = calls.iter().filter(|(_, clock)| clock.is_late(time, timeout));
            let stalled: Vec<u64> = stalled.map(|(rank, _)| *rank).collect();
            late.or_else(|| Some(CommError::Stalled { rank: *stalled.first()?, seconds }))
        };
        let watchdog = Watchdog::start(timeout, look, Box::new(move |late| give_up(late, &records)));
        let error = |error: std::io::Error| DeviceError::Threads { threads: 1, message: error.to_string() };
        self.watchdog = Some(watchdog.map_err(error)?);
        Ok(())
    }

    /// Returns the clocks of the devices. The devices are of one kind, so all have a clock or none has.
    pub(crate) fn clocks(&self) -> Vec<CallClock> {
        self.devices.iter().filter_map(|device| device.calls()).collect()
    }

    /// The number of ranks of this process.
    pub fn count(&self) -> usize {
        self.devices.len()
    }

    /// Returns whether rank 0, which leads the run, is a rank of this process.
    pub fn leads(&self) -> bool {
        match &self.ranks {
            LocalRanks::One(agreement) => agreement.is_first(),
            LocalRanks::Threads(..) => true,
        }
    }

    /// Returns the bytes that all ranks together have allocated.
    pub fn allocated(&self) -> u64 {
        self.devices.iter().map(|device| device.allocated()).sum()
    }

    /// Replaces the device of each rank with one made from it.
    pub fn exchange(mut self, other: impl Fn(u64, Box<dyn Device + Send>) -> Box<dyn Device + Send>) -> Self {
        let devices = self.devices.into_iter();
        self.devices = (0..).zip(devices).map(|(rank, device)| other(rank, device)).collect();
        self
    }

    /// Runs `work` for every rank on a thread of its own, with the rank's value of `given`. Returns the results of all ranks.
    ///
    /// # Errors
    /// The error of the rank that failed first; [`DeviceError::Ended`] if ranks failed in an earlier call.
    ///
    /// # Panics
    /// Panics if there are more or fewer values than ranks.
    pub fn run<T: Send, R: Send, E: RankError>(
        &mut self,
        given: Vec<T>,
        work: impl Fn(Rank<'_>, T) -> Result<R, E> + Sync,
    ) -> Result<Vec<R>, E> {
        self.on_threads(|rank| thread::Builder::new().name(format!("rank-{rank}")), given, work)
    }

    /// Does the same as [`Self::run`]; `thread` makes the thread of a rank.
    fn on_threads<T: Send, R: Send, E: RankError>(
        &mut self,
        thread: impl Fn(u64) -> thread::Builder,
        given: Vec<T>,
        work: impl Fn(Rank<'_>, T) -> Result<R, E> + Sync,
    ) -> Result<Vec<R>, E> {
        assert_eq!(given.len(), self.devices.len(), "a value for each rank");
        self.fate.alive()?;
        let (local, communicators) = match &self.ranks {
            LocalRanks::Threads(local, communicators) => (local, communicators),
            LocalRanks::One(agreement) => {
                let ranks = self.devices.iter_mut().zip(given);
                let run = |(device, given): (&mut Box<dyn Device + Send>, T)| {
                    work(Rank { device: &mut **device, agreement: agreement.clone() }, given)
                };
                return ranks.map(run).collect();
            }
        };
        let (fate, count) = (&self.fate, self.devices.len() as u64);
        let work = &|device: &mut (dyn Device + 'static), communicator: &Arc<dyn Communicator>, given| {
            let agreement = Agreement::of(communicator.clone(), count);
            let result = work(Rank { device, agreement }, given)?;
            device.settle()?;
            Ok(result)
        };
        let mut absent = None;
        let at_work = local.begin();
        let results: Vec<Result<R, E>> = thread::scope(|scope| {
            let mut threads = vec![];
            for (((at_work, device), communicator), given) in
                at_work.into_iter().zip(&mut self.devices).zip(communicators).zip(given)
            {
                let rank = at_work.rank();
                let own = move || one(at_work, fate, || work(&mut **device, communicator, given));
                threads.push(thread(rank).spawn_scoped(scope, own).map_err(|error| {
                    // The ranks that have begun wait for this one.
                    fate.end(rank);
                    absent.get_or_insert(CommError::Ended { rank });
                    DeviceError::Threads { threads: 1, message: error.to_string() }
                }));
            }
            let end = |thread: Result<thread::ScopedJoinHandle<'_, Result<R, E>>, DeviceError>| {
                thread?.join().unwrap_or_else(|panic| Err(panicked(panic).into()))
            };
            threads.into_iter().map(end).collect()
        });
        let task = |rank: usize| local.records().get(rank).and_then(FlightRecord::task);
        first_error(results, absent.or_else(|| local.ended()), task)
    }
}

/// Returns the communicator of a rank among the ranks of its stage, if its programs are of a pipeline.
fn in_stage(communicator: Arc<dyn Communicator>, programs: &[Arc<Program>]) -> Arc<dyn Communicator> {
    let Some(program) = programs.first().filter(|program| program.pipeline.is_some()) else {
        return communicator;
    };
    let devices = program.mesh.devices();
    let first = communicator.rank() / devices * devices;
    Arc::new(OfStage::new(communicator, first))
}

/// Refuses programs, one for each rank, whose collectives do not match.
fn all_meet(programs: &[&Program]) -> Result<(), DeviceError> {
    check::check(programs).map_err(|diagnostic| DeviceError::Collectives(Box::new(diagnostic)))
}

/// Refuses a program that all ranks run if its collectives do not match.
pub(crate) fn meet(program: &Program) -> Result<(), DeviceError> {
    check::check_along(&[program], &[]).map_err(|diagnostic| DeviceError::Collectives(Box::new(diagnostic)))
}

impl<'d> Rank<'d> {
    /// Makes the only rank of a run.
    pub fn alone(device: &'d mut (dyn Device + 'static)) -> Self {
        Self { device, agreement: Agreement::alone() }
    }

    /// Returns the place of the rank in the mesh of its program. In a pipeline, that is the mesh of one stage.
    pub fn place(&self, program: &Program) -> u64 {
        self.agreement.rank() % program.mesh.devices()
    }

    /// Sets the rank's part of a state, given the whole state.
    ///
    /// # Errors
    /// The number of bytes is not that of the whole state; errors of the device.
    pub fn write_whole_state(
        &mut self,
        id: ProgramId,
        state: usize,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let program = self.device.program(id).clone();
        let slot = program.states.get(state).ok_or(DeviceError::Unknown { what: "state", index: state })?;
        let parts = Parts::of(&slot.name, &slot.ty, &program.mesh)?;
        parts.check(bytes)?;
        let rank = self.place(&program);
        self.device.write_state(id, state, &parts.cut(rank, bytes))
    }

    /// Gives the device the rank's part of an input, given these rows of the whole input: all of its rows, or those that hold the part.
    ///
    /// # Errors
    /// The number of bytes is not that of the rows; errors of the device.
    pub fn write_rows(
        &mut self,
        id: ProgramId,
        input: usize,
        bytes: &[u8],
        rows: Range<u64>,
    ) -> Result<(), DeviceError> {
        let program = self.device.program(id).clone();
        let slot = program.inputs.get(input).ok_or(DeviceError::Unknown { what: "input", index: input })?;
        let parts = Parts::of(&slot.name, &slot.ty, &program.mesh)?;
        let rank = self.place(&program);
        let own = match slot.batched {
            true => parts.cut_of_rows(rank, bytes, rows)?,
            false => {
                parts.check(bytes)?;
                parts.cut(rank, bytes)
            }
        };
        self.device.write_input(id, input, &own)
    }
}
