//! Stand-ins of several GPUs: each is a rank, on a thread of its own.

use super::device::Cuda;
use super::host::{Host, Notes, Order};
use super::lower::lower;
use super::nccl::sequence::{self, Sequence};
use super::program::CudaProgram;
use comm::Communicator;
use comm::agreement::Agreement;
use comm::local::Local;
use program::device::{Device, DeviceError};
use program::room;
use program::{Program, StagePrograms};
use ranks::{self, Ranks};
use std::sync::Arc;

/// Returns the ranks of one mesh, each on a stand-in of a GPU, with their programs.
///
/// # Errors
/// An instruction without a kernel; programs of different meshes; a kernel that does not compile; programs that do not fit
/// this machine's memory on all ranks together.
pub fn stand_in(programs: Vec<impl Into<StagePrograms>>, order: Order) -> Result<Ranks, DeviceError> {
    let programs: Vec<StagePrograms> = programs.into_iter().map(Into::into).collect();
    if programs.iter().all(|program| program.ranks() == 1) {
        let programs = programs.iter().map(|program| program.first().clone()).collect();
        return Ok(Ranks::alone(Box::new(Cuda::new(Host::new(order), programs)?)));
    }
    let stages = of_stages(&programs)?;
    let lowered: Vec<Vec<CudaProgram>> = stages.iter().map(|own| lowered(own)).collect::<Result<_, _>>()?;
    let devices = programs.first().map_or(1, |program| program.first().mesh.devices());
    let of_rank = |rank: u64| lowered[(rank / devices) as usize].clone();
    on_stand_ins(programs, of_rank, order, |communicator| communicator)
}

/// Returns the programs of each pipeline rank.
///
/// # Errors
/// Programs of different numbers of ranks.
pub(super) fn of_stages(programs: &[StagePrograms]) -> Result<Vec<Vec<Arc<Program>>>, DeviceError> {
    let Some(first) = programs.first() else { return Ok(vec![]) };
    match programs.iter().find(|program| program.iter().len() != first.iter().len()) {
        Some(program) => Err(DeviceError::devices(program.first(), first.ranks())),
        None => {
            let of_stage =
                |stage| programs.iter().filter_map(|program| program.iter().nth(stage).cloned()).collect();
            Ok((0..first.iter().len()).map(of_stage).collect())
        }
    }
}

/// Returns the stand-in of one GPU in a run whose other ranks are other processes. `notes` gets the calls of NCCL that a GPU would
/// make.
///
/// # Errors
/// As of [`stand_in`]; programs of another number of ranks; ranks that would make different calls.
pub fn stand_in_of_process(
    programs: &[StagePrograms],
    order: Order,
    communicator: &Arc<dyn Communicator>,
    ranks: u64,
    notes: Notes,
) -> Result<Ranks, DeviceError> {
    let rank = communicator.rank();
    let programs = own_programs(programs, ranks, rank)?;
    let lowered = lowered(&programs)?;
    let agreement = Agreement::of(communicator.clone(), ranks);
    let devices = programs.first().map_or(1, |program| program.mesh.devices());
    sequence::agree(&agreement, &Sequence::of(&lowered).map_err(DeviceError::driver)?, devices)?;
    let host = Host::ranks(order, vec![communicator.clone()]).swap_remove(0).noting(notes);
    let device = Cuda::of_rank(host, lowered, rank, None)?;
    Ok(Ranks::of_one(Box::new(device), agreement))
}

/// Returns a stand-in for each rank. `lowered` returns a rank's programs, and `through` returns the communicator that the rank uses in
/// place of its own.
///
/// # Errors
/// Programs that are too large for this machine, or whose ranks make different calls of NCCL.
pub fn on_stand_ins(
    programs: Vec<impl Into<StagePrograms>>,
    lowered: impl Fn(u64) -> Vec<CudaProgram>,
    order: Order,
    through: impl Fn(Arc<dyn Communicator>) -> Arc<dyn Communicator>,
) -> Result<Ranks, DeviceError> {
    let programs: Vec<StagePrograms> = programs.into_iter().map(Into::into).collect();
    let count = programs.first().map_or(1, StagePrograms::ranks);
    let devices = programs.first().map_or(1, |program| program.first().mesh.devices());
    // All ranks together take the memory of this machine; each driver checks its own rank alone.
    let checked = room::check_processor(programs.iter().map(|program| &**program.largest()), count);
    checked.map_err(|error| DeviceError::TooLarge(Box::new(error)))?;
    let lowered: Vec<Vec<CudaProgram>> = (0..count).map(lowered).collect();
    let calls = lowered.iter().map(|programs| Sequence::of(programs).map_err(DeviceError::driver));
    let calls = calls.collect::<Result<Vec<_>, _>>()?;
    sequence::check_stages(&calls, devices as usize)
        .map_err(|diagnostic| DeviceError::Collectives(Box::new(diagnostic)))?;
    let local = Local::new(count);
    let communicators = (0..count).map(|rank| through(local.recorded(rank))).collect();
    let rank = |((rank, host), lowered)| {
        Ok(Box::new(Cuda::of_rank(host, lowered, rank, None)?) as Box<dyn Device + Send>)
    };
    let devices = (0..count).zip(Host::ranks(order, communicators)).zip(lowered).map(rank);
    Ok(Ranks::of(devices.collect::<Result<_, DeviceError>>()?, local, Box::new(|_| {})))
}

/// Lowers programs for GPUs; every rank has the same commands.
fn lowered(programs: &[Arc<Program>]) -> Result<Vec<CudaProgram>, DeviceError> {
    check(programs)?;
    programs.iter().map(|program| lower(program.clone()).map_err(DeviceError::kernel)).collect()
}

/// Refuses programs that the ranks of one mesh cannot run together.
///
/// # Errors
/// Programs of different meshes; collectives that would not meet.
pub(super) fn check(programs: &[Arc<Program>]) -> Result<(), DeviceError> {
    let devices = programs.first().map_or(1, |program| program.mesh.devices());
    for program in programs {
        if program.mesh.devices() != devices {
            return Err(DeviceError::devices(program, devices));
        }
        ranks::meet(program)?;
    }
    Ok(())
}

/// Returns the programs of a process that is one of `ranks` ranks.
///
/// # Errors
/// As of [`check`]; programs of another number of ranks.
pub(super) fn own_programs(
    programs: &[StagePrograms],
    ranks: u64,
    rank: u64,
) -> Result<Vec<Arc<Program>>, DeviceError> {
    if let Some(program) = programs.iter().find(|program| program.ranks() != ranks) {
        return Err(DeviceError::devices(program.first(), ranks));
    }
    let own: Vec<Arc<Program>> = programs.iter().map(|program| program.of_rank(rank).clone()).collect();
    check(&own)?;
    Ok(own)
}

#[cfg(test)]
mod tests;
