//! The ranks of this process: each has a device of its own, the processor's share of it or a GPU, and runs the same program
//! on its parts of the tensors. Backends open them.
//!
//! [`Ranks::run`] gives every rank a thread, which the rank keeps until its work is done. A rank that fails ends all ranks. Its error is
//! reported; the errors of the ranks that ended with it are not. `platform` has the interface of backends to their callers. `whole` runs
//! steps with whole tensors, for comparisons of programs.

mod fate;
mod parts;
pub mod platform;
mod whole;

use comm::agreement::Agreement;
use comm::local::Local;
use comm::record::FlightRecord;
use comm::watchdog::Watchdog;
use comm::{CommError, Communicator};
pub use fate::Abort;
pub use fate::RankError;
use fate::{Fate, first_error, one, panicked};
pub use parts::Parts;
pub use platform::{Opening, Platform, RankProcess, meet};
use program::Program;
use program::calls::CallClock;
use program::device::{Device, DeviceError, ProgramId};
use std::ops::Range;
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

impl Ranks {
    /// Makes the only rank of a mesh of one device.
    pub fn alone(device: Box<dyn Device + Send>) -> Self {
        Self::of_one(device, Agreement::alone())
    }

    /// Makes one rank on this device, of a run whose other ranks are other processes.
    pub fn of_one(device: Box<dyn Device + Send>, agreement: Agreement) -> Self {
        let fate = Fate::new(Box::new(|_| {}));
        Self { devices: vec![device], ranks: LocalRanks::One(agreement), fate, watchdog: None }
    }

    /// Makes ranks with these devices, which agree through `local`. If a rank fails, `abort` ends everything outside of `local` that other
    /// ranks wait for.
    pub fn of(devices: Vec<Box<dyn Device + Send>>, local: Local, abort: Abort) -> Self {
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
    pub fn clocks(&self) -> Vec<CallClock> {
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
    ///
    /// # Errors
    /// As of [`Self::run`]; a thread that cannot be started.
    ///
    /// # Panics
    /// Panics if there are not as many values as ranks.
    pub fn on_threads<T: Send, R: Send, E: RankError>(
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
        let own = if slot.batched {
            parts.cut_of_rows(rank, bytes, rows)?
        } else {
            parts.check(bytes)?;
            parts.cut(rank, bytes)
        };
        self.device.write_input(id, input, &own)
    }
}
