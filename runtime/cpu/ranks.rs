//! The ranks of this process on the processor.

#[cfg(test)]
mod tests;

use crate::Cpu;
use comm::agreement::Agreement;
use comm::local::Local;
use comm::of_stage::OfStage;
use comm::{Communicator, check};
use program::device::{Device, DeviceError};
use program::profile::Profiles;
use program::{Program, StagePrograms};
use ranks::{Ranks, meet};
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// Opens as many ranks as the programs' mesh has devices. They share `threads` threads, or as many as there are cores; each gets at
/// least one. Every rank has all programs, which share their states if they were lowered so. Profiles get the times of their
/// programs: on rank 0, or on all ranks of a pipeline. `folder` takes the file of values that rest on the disk.
///
/// # Errors
/// No memory, no threads; programs of different meshes; collectives that would not meet.
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
    let ranks = programs.first().map_or(1, StagePrograms::ranks);
    if let Some(program) = programs.iter().find(|program| program.ranks() != ranks) {
        return Err(DeviceError::devices(program.first(), ranks));
    }
    let of_rank = |rank| programs.iter().map(|program| program.of_rank(rank).clone()).collect();
    with_communicators((0..ranks).map(of_rank).collect(), threads, profiles, folder, |communicator| {
        communicator
    })
}

/// Opens ranks of which each has programs of its own. `through` makes the communicator that a rank's device uses from the
/// rank's own.
///
/// # Errors
/// Programs that do not meet; a device that cannot be opened.
pub fn with_communicators(
    programs: Vec<Vec<Arc<Program>>>,
    threads: Option<usize>,
    profiles: Option<Profiles>,
    folder: Option<&Path>,
    through: impl Fn(Arc<dyn Communicator>) -> Arc<dyn Communicator>,
) -> Result<Ranks, DeviceError> {
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
        let measured = profiles.as_ref().map(|profiles| profiles.for_programs(rank as u64, &programs));
        let mut cpu = Cpu::of_rank(programs, threads, communicator, folder)?;
        if !is_core_free {
            cpu.exchange_one_by_one();
        }
        measured.into_iter().for_each(|profiles| cpu.record(profiles));
        Ok(Box::new(cpu) as Box<dyn Device + Send>)
    };
    let devices = programs.into_iter().enumerate().map(rank).collect::<Result<_, DeviceError>>()?;
    Ok(Ranks::of(devices, local, Box::new(|_| {})))
}

/// Makes one rank on the processor, with `threads` threads, of a run whose other ranks are other processes. Profiles get the times of
/// their programs: on rank 0, or on all ranks of a pipeline.
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
) -> Result<Ranks, DeviceError> {
    if let Some(program) = programs.iter().find(|program| program.ranks() != ranks) {
        return Err(DeviceError::devices(program.first(), ranks));
    }
    let own = |program: &StagePrograms| program.of_rank(communicator.rank()).clone();
    let programs: Vec<Arc<Program>> = programs.iter().map(own).collect();
    programs.iter().try_for_each(|program| meet(program))?;
    Cpu::has_room(&programs, 1)?;
    let communicator_of_stage = in_stage(communicator.clone(), &programs);
    let mut cpu = Cpu::of_rank(programs.clone(), threads, communicator_of_stage, folder)?;
    let profiles = profiles.map(|profiles| profiles.for_programs(communicator.rank(), &programs));
    profiles.into_iter().for_each(|profiles| cpu.record(profiles));
    Ok(Ranks::of_one(Box::new(cpu), Agreement::of(communicator.clone(), ranks)))
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
