//! Stand-ins of several GPUs: each a rank, on a thread of its own.

use super::device::Cuda;
use super::host::{Host, Notes, Order};
use super::lower::lower;
use super::nccl::sequence::{self, Sequence};
use super::program::CudaProgram;
use crate::comm::Communicator;
use crate::comm::agreement::Agreement;
use crate::comm::local::Local;
use crate::device::{Device, DeviceError};
use crate::program::Program;
use crate::ranks::{self, Ranks};
use crate::room;
use std::sync::Arc;

/// Programs of one mesh on the stand-in of a GPU, or, where the mesh has several devices, of one for each rank.
///
/// # Errors
/// An instruction without a kernel; programs of different meshes; a kernel that does not compile; programs that do not fit
/// this machine's memory on all ranks together.
pub fn stand_in(programs: Vec<Arc<Program>>, order: Order) -> Result<Ranks, DeviceError> {
    if programs.iter().all(|program| program.mesh.devices() == 1) {
        return Ok(Ranks::alone(Box::new(Cuda::new(Host::new(order), programs)?)));
    }
    let lowered = lowered(&programs)?;
    on_stand_ins(programs, |_| lowered.clone(), order, |communicator| communicator)
}

/// The stand-in of one GPU in a run whose other ranks are other processes. `notes` gets the calls of NCCL that a GPU would make.
///
/// # Errors
/// As of [`stand_in`]; programs of another number of ranks; ranks that would make different calls.
pub fn stand_in_of_process(
    programs: &[Arc<Program>],
    order: Order,
    communicator: &Arc<dyn Communicator>,
    ranks: u64,
    notes: Notes,
) -> Result<Ranks, DeviceError> {
    check_process(programs, ranks)?;
    let lowered = lowered(programs)?;
    let agreement = Agreement::of(communicator.clone(), ranks);
    sequence::agree(&agreement, &Sequence::of(&lowered).map_err(DeviceError::driver)?)?;
    let host = Host::ranks(order, vec![communicator.clone()]).swap_remove(0).noting(notes);
    let device = Cuda::of_rank(host, lowered, communicator.rank())?;
    Ok(Ranks::of_one(Box::new(device), agreement))
}

/// A stand-in for each rank: `lowered` are its programs, `through` is what it communicates through, given its communicator.
pub(crate) fn on_stand_ins(
    programs: Vec<Arc<Program>>,
    lowered: impl Fn(u64) -> Vec<CudaProgram>,
    order: Order,
    through: impl Fn(Arc<dyn Communicator>) -> Arc<dyn Communicator>,
) -> Result<Ranks, DeviceError> {
    let count = programs.first().map_or(1, |program| program.mesh.devices());
    // All of them take the memory of this machine; each driver asks for its own rank alone.
    let checked = room::check_processor(programs.iter().map(|program| &**program), count);
    checked.map_err(|error| DeviceError::TooLarge(Box::new(error)))?;
    let lowered: Vec<Vec<CudaProgram>> = (0..count).map(lowered).collect();
    let calls = lowered.iter().map(|programs| Sequence::of(programs).map_err(DeviceError::driver));
    let calls = calls.collect::<Result<Vec<_>, _>>()?;
    sequence::check(&calls).map_err(|diagnostic| DeviceError::Collectives(Box::new(diagnostic)))?;
    let local = Local::new(count);
    let communicators = (0..count).map(|rank| through(local.recorded(rank))).collect();
    let rank =
        |((rank, host), lowered)| Ok(Box::new(Cuda::of_rank(host, lowered, rank)?) as Box<dyn Device + Send>);
    let devices = (0..count).zip(Host::ranks(order, communicators)).zip(lowered).map(rank);
    Ok(Ranks::of(devices.collect::<Result<_, DeviceError>>()?, local, Box::new(|_| {})))
}

/// The programs for GPUs: the same for every rank.
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

/// Refuses programs that a process cannot run as one of so many ranks.
///
/// # Errors
/// As of [`check`]; programs of another number of devices.
pub(super) fn check_process(programs: &[Arc<Program>], ranks: u64) -> Result<(), DeviceError> {
    match programs.iter().find(|program| program.mesh.devices() != ranks) {
        Some(program) => Err(DeviceError::devices(program, ranks)),
        None => check(programs),
    }
}

#[cfg(test)]
mod tests;
