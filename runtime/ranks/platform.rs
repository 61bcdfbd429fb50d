//! A backend as its callers have it: it finds devices, and opens ranks on them. The opening of ranks on the processor is here, since
//! several backends share it.

use crate::Ranks;
use comm::agreement::Agreement;
use comm::local::Local;
use comm::of_stage::OfStage;
use comm::{Communicator, check};
use ir::machine::{DeviceKind, Preset};
use ir::{DType, Diagnostic};
use program::device::{Device, DeviceError};
use program::profile::Profiles;
use program::{Multiprocessors, Program, StagePrograms, Target, room};
use std::path::Path;
use std::sync::Arc;

/// A backend: the target that programs are lowered for, the devices of this machine, and the ranks that run the programs on them.
pub trait Platform: Sync {
    /// Returns the target of the programs that the ranks run.
    fn target(&self) -> Target;

    /// Returns the kind of the devices, as descriptions of machines have it.
    fn kind(&self) -> DeviceKind;

    /// Returns a description of the devices for the help of flags.
    fn help(&self) -> &'static str;

    /// Finds devices of this machine for a run.
    ///
    /// # Errors
    /// The reason why there is none.
    fn find(&self, wanted: &Wanted) -> Result<Found, Diagnostic>;

    /// Describes a device of this machine to a user who asked for none, and whose step computes in this type. `None` if there is none to be
    /// told of.
    fn offer(&self, _dtype: DType) -> Option<String> {
        None
    }

    /// Opens the ranks of this process on their devices. All programs have the same number of ranks, and share their states if they were
    /// lowered so.
    ///
    /// # Errors
    /// A device that cannot be used, or has no room; programs whose collectives would not meet.
    fn open(&self, programs: Vec<StagePrograms>, opening: Opening) -> Result<Ranks, DeviceError>;

    /// Opens ranks on this machine's processor, in place of devices that the machine may not have.
    ///
    /// # Errors
    /// As of [`Platform::open`].
    fn rehearse(&self, programs: StagePrograms) -> Result<Ranks, DeviceError> {
        self.open(vec![programs], Opening::default())
    }

    /// Returns a description of [`Platform::rehearse`] for the help of flags.
    fn rehearsal_help(&self) -> &'static str;

    /// Measures the speed of a large matrix product in f32 on this number of threads, or on a thread for each core, in billions of
    /// floating-point operations a second. `None` if the backend measures none.
    fn peak_gflops(&self, _threads: Option<usize>) -> Option<f64> {
        None
    }
}

/// The devices that a run needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The mesh, as its flag has it.
    pub mesh: Option<String>,
    /// The number of ranks.
    pub ranks: u64,
    /// Whether this process is one rank of several: then it needs one device, and not one for each rank.
    pub is_one_rank: bool,
    /// The number of this process among those of its node, if the launcher says it.
    pub local_rank: Option<u64>,
}

/// Devices of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The size of the GPU, by which kernels choose their number of blocks; of several GPUs, the size of the smallest.
    pub multiprocessors: Multiprocessors,
    /// The description for people.
    pub described: String,
    /// The preset that describes the device, if it is known; of several devices, that of the one with the least memory.
    pub preset: Option<Preset>,
}

/// The circumstances in which the ranks of a process are opened. The default is a process without others.
#[derive(Default)]
pub struct Opening<'a> {
    /// The place of this process, if each rank of the run is a process.
    pub process: Option<RankProcess<'a>>,
    /// The threads of the processor that all ranks of this process share. `None` for a thread on each core.
    pub threads: Option<usize>,
    /// The profiles that get the times of their programs: on rank 0, or on all ranks of a pipeline.
    pub profiles: Option<Profiles>,
    /// The folder of the file of values that rest on the disk.
    pub folder: Option<&'a Path>,
    /// Takes a trouble that does not keep the ranks from running.
    pub warn: Option<&'a dyn Fn(&str)>,
}

/// A process that is one rank of a run.
#[derive(Clone, Copy)]
pub struct RankProcess<'a> {
    /// The communicator of the rank.
    pub communicator: &'a Arc<dyn Communicator>,
    /// The number of ranks.
    pub ranks: u64,
    /// The number of the rank among those of its node, if the launcher says it.
    pub local_rank: Option<u64>,
}

impl RankProcess<'_> {
    /// Returns the agreement of the rank with all others.
    pub fn agreement(&self) -> Agreement {
        Agreement::of(self.communicator.clone(), self.ranks)
    }
}

/// A rank whose device is to be made.
pub struct OpenedRank {
    /// The number of the rank in the run.
    pub rank: u64,
    /// The programs that it runs.
    pub programs: Vec<Arc<Program>>,
    /// Its communicator among the ranks of its stage. `None` if the run has no other rank.
    pub communicator: Option<Arc<dyn Communicator>>,
}

/// Opens the ranks of this process on the processor: the rank of `process`, or all ranks of the programs as threads. `device` makes the
/// device of a rank.
///
/// # Errors
/// Programs of different numbers of ranks; collectives that would not meet; programs that do not fit this machine's memory; errors of
/// `device`.
pub fn open(
    programs: &[StagePrograms],
    process: Option<RankProcess>,
    device: impl Fn(OpenedRank) -> Result<Box<dyn Device + Send>, DeviceError>,
) -> Result<Ranks, DeviceError> {
    let ranks = process.map_or_else(|| count(programs), |process| process.ranks);
    if let Some(program) = programs.iter().find(|program| program.ranks() != ranks) {
        return Err(DeviceError::devices(program.first(), ranks));
    }
    let of_rank = |rank| programs.iter().map(|program| program.of_rank(rank).clone()).collect::<Vec<_>>();
    match process {
        Some(process) => {
            let rank = process.communicator.rank();
            let programs = of_rank(rank);
            programs.iter().try_for_each(|program| meet(program))?;
            has_room(&programs, 1)?;
            let communicator = Some(in_stage(process.communicator.clone(), &programs));
            let device = device(OpenedRank { rank, programs, communicator })?;
            Ok(Ranks::of_one(device, process.agreement()))
        }
        None if ranks == 1 => {
            let programs = of_rank(0);
            has_room(&programs, 1)?;
            Ok(Ranks::alone(device(OpenedRank { rank: 0, programs, communicator: None })?))
        }
        None => open_threads((0..ranks).map(of_rank).collect(), |communicator| communicator, device),
    }
}

/// Opens ranks that are threads of this process, of which each has programs of its own, on the processor. `through` makes the communicator
/// that a rank's device uses from the rank's own.
///
/// # Errors
/// As of [`open`].
pub fn open_threads(
    programs: Vec<Vec<Arc<Program>>>,
    through: impl Fn(Arc<dyn Communicator>) -> Arc<dyn Communicator>,
    device: impl Fn(OpenedRank) -> Result<Box<dyn Device + Send>, DeviceError>,
) -> Result<Ranks, DeviceError> {
    all_meet(&programs)?;
    let largest = programs.iter().max_by_key(|own| own.first().map_or(0, |own| own.memory.peak()));
    largest.map_or(Ok(()), |largest| has_room(largest, programs.len() as u64))?;
    let local = Local::new(programs.len() as u64);
    let opened = |(rank, programs): (u64, Vec<Arc<Program>>)| {
        let communicator = Some(in_stage(through(local.recorded(rank)), &programs));
        device(OpenedRank { rank, programs, communicator })
    };
    let devices = (0..).zip(programs).map(opened).collect::<Result<_, DeviceError>>()?;
    Ok(Ranks::of(devices, local, Box::new(|_| {})))
}

/// Refuses programs that do not fit this machine's memory, if each of `ranks` ranks on the processor takes as much.
pub fn has_room(programs: &[Arc<Program>], ranks: u64) -> Result<(), DeviceError> {
    let checked = room::check_processor(programs.iter().map(|program| &**program), ranks);
    checked.map_err(|error| DeviceError::TooLarge(Box::new(error)))
}

/// Returns the number of ranks of the first program.
pub fn count(programs: &[StagePrograms]) -> u64 {
    programs.first().map_or(1, StagePrograms::ranks)
}

/// Refuses a program that all ranks run if its collectives do not match.
pub fn meet(program: &Program) -> Result<(), DeviceError> {
    check::check_along(&[program], &[]).map_err(|diagnostic| DeviceError::Collectives(Box::new(diagnostic)))
}

/// Refuses the programs of ranks, in the same order on each, whose collectives do not match.
fn all_meet(of_ranks: &[Vec<Arc<Program>>]) -> Result<(), DeviceError> {
    for (index, first) in of_ranks.first().into_iter().flatten().enumerate() {
        let all: Vec<&Program> = of_ranks.iter().map(|own| &*own[index]).collect();
        if all.iter().all(|program| std::ptr::eq(*program, &**first)) {
            meet(first)?;
        } else if first.pipeline.is_some() {
            all.into_iter().try_for_each(meet)?;
        } else {
            check::check(&all).map_err(|diagnostic| DeviceError::Collectives(Box::new(diagnostic)))?;
        }
    }
    Ok(())
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
