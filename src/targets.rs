//! The kinds of devices that programs are compiled for: a backend has its line here.

use cuda::gpu::Options;
use cuda::host::Order;
use ir::machine::DeviceKind;
use program::device::DeviceError;
use program::profile::Profiles;
use program::{StagePrograms, Target};
use ranks::Ranks;
use std::path::Path;

use crate::processes::Processes;

/// All targets.
pub const ALL: [Target; 2] = [cpu::TARGET, cuda::TARGET];

/// Returns the target of a kind of device.
pub fn of(kind: DeviceKind) -> Target {
    match kind {
        DeviceKind::Cpu => cpu::TARGET,
        DeviceKind::Gpu => cuda::TARGET,
    }
}

/// Returns the target with a name.
///
/// # Errors
/// No target has the name.
pub fn named(name: &str) -> Result<Target, String> {
    ALL.into_iter().find(|target| target.name() == name).ok_or_else(|| {
        let names = ALL.map(|target| target.name()).join(", ");
        format!("there is no target `{name}`; there are {names}")
    })
}

/// The circumstances in which the ranks of a process are opened.
pub struct Opening<'a> {
    /// The processes of the run.
    pub processes: &'a Processes,
    /// The threads of the processor that all ranks share. `None` for a thread on each core.
    pub threads: Option<usize>,
    /// The profiles that get the times of their programs.
    pub profiles: Option<Profiles>,
    /// The folder of the file of values that rest on the disk.
    pub folder: Option<&'a Path>,
    /// Takes a trouble that does not keep the ranks from running.
    pub warn: &'a dyn Fn(&str),
}

/// Opens the ranks of this process for programs of a target.
///
/// # Errors
/// A device that cannot be used, or has no room; programs whose collectives would not meet.
pub fn open(target: Target, programs: Vec<StagePrograms>, opening: Opening) -> Result<Ranks, DeviceError> {
    let Opening { processes, threads, profiles, folder, warn } = opening;
    if target.is_host() {
        return match processes.communicator() {
            None => cpu::ranks::on_processor(programs, threads, profiles, folder),
            Some((communicator, ranks)) => {
                let threads = threads.unwrap_or_else(|| processes.cores());
                cpu::ranks::of_process(programs, threads, profiles, communicator, ranks, folder)
            }
        };
    }
    let profiles = profiles.map(|profiles| profiles.of_rank(0)).unwrap_or_default();
    let options = Options::of_process();
    match processes.launched() {
        None => cuda::gpu::gpus(programs, options, folder, profiles, warn),
        Some(launched) => {
            let (agreement, rank) = (processes.agreement(), launched.local_rank);
            cuda::gpu::gpu_of_process(&programs, options, folder, profiles, warn, agreement, rank)
        }
    }
}

/// Opens ranks on this machine's processor, whatever the target: for a GPU these are stand-ins.
///
/// # Errors
/// As of [`open`].
pub fn rehearse(target: Target, programs: StagePrograms) -> Result<Ranks, DeviceError> {
    match target.is_host() {
        true => cpu::ranks::on_processor(vec![programs], None, None, None),
        false => cuda::ranks::stand_in(vec![programs], Order::default()),
    }
}
