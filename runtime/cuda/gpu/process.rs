//! A rank on a GPU in a run whose other ranks are other processes.
//!
//! Work that may fail on one rank alone ends with an agreement, so that all ranks go on or none does.

use super::nccl::{Group, Lone};
use super::planning::Chosen;
use super::ranks::enough;
use super::splits::Split;
use super::{Gpu, Options};
use crate::device::Cuda;
use crate::driver::DriverError;
use crate::libraries::Folders;
use crate::nccl::sequence::{self, Sequence};
use crate::probe;
use crate::program::CudaProgram;
use crate::ranks::own_programs;
use comm::agreement::Agreement;
use ir::Mesh;
use program::device::DeviceError;
use program::profile::DeviceProfiles;
use program::{Program, StagePrograms};
use ranks::Ranks;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Returns this process as a rank, on a GPU of its machine: on the GPU with the number `local_rank`, or on the only one. Values on the
/// disk lie in a file in `folder`. On rank 0, profiles get the times of their programs.
///
/// # Errors
/// Programs of another number of ranks; NCCL is not installed, or does not start; ranks that would make different calls of NCCL; a
/// folder that takes no file; the reason for which the GPU of any rank cannot be used, with the rank if it is another one.
pub fn gpu_of_process(
    programs: &[StagePrograms],
    options: Options,
    folder: Option<&Path>,
    profiles: DeviceProfiles,
    warn: &dyn Fn(&str),
    agreement: &Agreement,
    local_rank: Option<u64>,
) -> Result<Ranks, DeviceError> {
    let rank = agreement.rank();
    let programs = own_programs(programs, agreement.count(), rank)?;
    let Some(mesh) = programs.first().map(|program| program.mesh.clone()) else {
        return Err(DeviceError::Unknown { what: "program", index: 0 });
    };
    let options = if profiles.is_empty() { options } else { options.without_graphs() };
    let driver = agreed(agreement, open(local_rank, options))?;
    let (mut device, lowered) = alike(driver, &programs, (options, folder), agreement, mesh.devices())?;
    let calls = agreed(agreement, Sequence::of(&lowered).map_err(DeviceError::driver))?;
    sequence::agree(agreement, &calls, mesh.devices())?;
    let (ordinal, folders) = (device.driver.ordinal, Folders::of_process());
    let nccl = Lone::open(ordinal, agreement.is_first(), &folders).map_err(DeviceError::driver);
    let mut nccl = agreed(agreement, nccl)?;
    nccl.share_id(agreement)?;
    let splits: Vec<Split> = lowered.iter().flat_map(Split::all).collect();
    let groups = own_groups(agreement.gather(splits)?.into_iter().flatten(), &mesh, rank);
    let team = nccl.meet(rank, agreement.count(), &groups).map_err(DeviceError::driver);
    device.driver.seat = Some(agreed(agreement, team)?.seat(rank));
    device.driver.warnings().iter().for_each(|warning| warn(warning));
    if agreement.is_first() {
        device.record(profiles);
    }
    Ok(Ranks::of_one(Box::new(device), agreement.clone()))
}

/// Returns the result, if no rank failed.
///
/// # Errors
/// The error of this rank, or of the first that failed, with its number.
fn agreed<T>(agreement: &Agreement, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
    let told = agreement.gather(result.as_ref().err().map(DeviceError::to_string))?;
    let failed = (0..).zip(told).find_map(|(rank, told)| Some((rank, told?)));
    match (result, failed) {
        (Ok(_), Some((rank, told))) => {
            let source = Box::new(DeviceError::driver(DriverError(told)));
            Err(DeviceError::Rank { rank, task: None, source })
        }
        (result, _) => result,
    }
}

/// Opens the GPU of this process. If the process sees only one, the launcher has chosen it, or several ranks share it.
fn open(local_rank: Option<u64>, options: Options) -> Result<Gpu, DeviceError> {
    let told = |error: &dyn std::fmt::Display| DeviceError::driver(DriverError(error.to_string()));
    let driver = probe::find_driver(&Folders::of_process()).map_err(|error| told(&error))?;
    let ordinal = if driver.devices.len() == 1 { 0 } else { local_rank.unwrap_or(0) };
    let processes = format!("local rank {ordinal}, on a machine with so many processes,");
    enough(&processes, ordinal + 1, &driver.devices).map_err(DeviceError::driver)?;
    Gpu::open(ordinal as usize, options).map_err(DeviceError::driver)
}

/// Returns the device of this rank with its programs. The first rank of each stage, which has `devices` ranks, lowers and loads its
/// programs first. The other ranks of the stage take over its choice of algorithms, because ranks with the same computation shall get
/// the same bits.
fn alike(
    driver: Gpu,
    programs: &[Arc<Program>],
    (options, folder): (Options, Option<&Path>),
    agreement: &Agreement,
    devices: u64,
) -> Result<(Cuda<Gpu>, Vec<CudaProgram>), DeviceError> {
    let load = |driver: Gpu| load(driver, programs, (options, folder), agreement.rank());
    let first = agreement.rank() / devices * devices;
    if agreement.rank() == first {
        let loaded = agreed(agreement, load(driver))?;
        agreement.gather_bytes(&loaded.0.driver.chosen().to_bytes())?;
        return agreed(agreement, Ok(loaded));
    }
    agreed(agreement, Ok(()))?;
    let all = agreement.gather_bytes(&[])?;
    agreed(agreement, follow(driver, &all[first as usize]).map_err(DeviceError::driver).and_then(load))
}

/// Returns the GPU with the algorithms that the first rank of the stage sent.
fn follow(mut driver: Gpu, sent: &[u8]) -> Result<Gpu, DriverError> {
    driver.follow(&Chosen::of_bytes(sent)?)?;
    Ok(driver)
}

/// Loads memory and kernels.
fn load(
    mut driver: Gpu,
    programs: &[Arc<Program>],
    (options, folder): (Options, Option<&Path>),
    rank: u64,
) -> Result<(Cuda<Gpu>, Vec<CudaProgram>), DeviceError> {
    let lowered = programs.iter().map(|program| driver.lower(program.clone()).map_err(DeviceError::kernel));
    let lowered = lowered.collect::<Result<Vec<_>, _>>()?;
    let device = Cuda::of_rank(driver, lowered.clone(), rank, folder)?;
    Ok((device.at(options.pace), lowered))
}

/// Returns the groups of a rank: one for each split of any rank, each once, in an order that is the same on all ranks. `None` is a
/// split of which no group has the rank.
fn own_groups(splits: impl Iterator<Item = Split>, mesh: &Mesh, rank: u64) -> Vec<Option<Group>> {
    let splits: BTreeSet<Split> = splits.collect();
    let mut groups: Vec<Option<Group>> = vec![];
    for group in splits.iter().map(|split| split.group(mesh, rank)) {
        // Axes of one device may give the same group twice, and then on every rank.
        if group.is_none() || !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::agreement::on_ranks;
    use program::lower::{LowerOptions, lower};

    #[test]
    fn all_ranks_split_their_groups_in_the_same_order() {
        let text = r#"trainyard-ir 1
            module @m placed mesh [dp=2, tp=2] {
              func @train(%0 "x" : f32[8, 6] {dp, -}, %1 "y" : f32[8] {tp*dp}, %2 "z" : f32[8] {tp}) {
                %3 = all_gather %2 : f32[8]
                %4 = all_gather %0 : f32[8, 6]
                %5 = all_gather %1 : f32[8]
              }
              output "a" = %3
              output "b" = %4
              output "c" = %5
            }"#;
        let module = ir::text::parse(text).unwrap();
        let options = LowerOptions::of(crate::TARGET);
        let program = crate::lower::lower(Arc::new(lower(&module, &options).unwrap())).unwrap();
        let mesh = program.program.mesh.clone();
        let groups = |rank| -> Vec<Vec<u64>> {
            let splits = [&program, &program].into_iter().flat_map(Split::all);
            own_groups(splits, &mesh, rank).into_iter().flatten().map(|group| group.ranks).collect()
        };
        assert_eq!(groups(0), [vec![0, 2], vec![0, 1], vec![0, 2, 1, 3]]);
        assert_eq!(groups(3), [vec![1, 3], vec![2, 3], vec![0, 2, 1, 3]]);
    }

    #[test]
    fn a_rank_that_cannot_go_on_keeps_all_ranks_from_going_on() {
        let errors = on_ranks(3, |agreement| {
            let own = if agreement.rank() == 1 {
                Err(DeviceError::driver(DriverError("no GPU".into())))
            } else {
                Ok(())
            };
            (agreed(&agreement, Ok(7)).unwrap(), agreed(&agreement, own).unwrap_err().to_string())
        });
        assert!(errors.iter().all(|(number, _)| *number == 7));
        let told: Vec<bool> = errors.iter().map(|(_, error)| error.starts_with("rank 1: ")).collect();
        assert_eq!(told, [true, false, true], "{errors:?}");
    }
}
