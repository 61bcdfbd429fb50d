//! Several GPUs: each is a rank, on a thread of this process.

use super::nccl::{Group, Team};
use super::splits::Split;
use super::{Gpu, Options, gpu};
use crate::device::Cuda;
use crate::driver::DriverError;
use crate::libraries::Folders;
use crate::probe::{self, DeviceFacts};
use crate::program::CudaProgram;
use crate::ranks::{check, of_stages};
use comm::local::Local;
use program::device::{Device, DeviceError};
use program::profile::DeviceProfiles;
use program::room;
use program::{Program, StagePrograms};
use ranks::Ranks;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// Returns the ranks of one mesh on the first GPUs of this machine, one GPU for each rank, with their programs. Values on the disk lie
/// in a file for each rank in `folder`. On the first rank, profiles get the times of their programs.
///
/// # Errors
/// There are fewer GPUs than ranks; NCCL is not installed, or does not start; a GPU refuses as in [`super::gpu`], with its rank; the
/// folder takes no file.
pub fn gpus(
    programs: Vec<StagePrograms>,
    options: Options,
    folder: Option<&Path>,
    profiles: DeviceProfiles,
    warn: &dyn Fn(&str),
) -> Result<Ranks, DeviceError> {
    let Some(program) = programs.iter().find(|program| program.ranks() != 1) else {
        let programs = programs.iter().map(|program| program.first().clone()).collect();
        return gpu(programs, 0, options, folder, profiles, warn).map(Ranks::alone);
    };
    let (mesh, ranks, devices) = (described(program), program.ranks(), program.first().mesh.devices());
    let stages = of_stages(&programs)?;
    stages.iter().try_for_each(|own| check(own))?;
    let told = |error: &dyn std::fmt::Display| DeviceError::driver(DriverError(error.to_string()));
    let folders = Folders::of_process();
    let driver = probe::find_driver(&folders).map_err(|error| told(&error))?;
    enough(&format!("the mesh {mesh}"), ranks, &driver.devices).map_err(DeviceError::driver)?;
    let options = if profiles.is_empty() { options } else { options.without_graphs() };
    let (mut gpus, lowered) = open(devices, &stages, options, folder)?;
    // All GPUs have the same kernels, from the same folder.
    let warnings: BTreeSet<String> = gpus.iter_mut().flat_map(|device| device.driver.warnings()).collect();
    warnings.iter().for_each(|warning| warn(warning));
    let count = i32::try_from(ranks).map_err(|error| told(&error))?;
    let team = Team::new(count, &groups(&lowered), &folders).map_err(DeviceError::driver)?;
    for (device, rank) in gpus.iter_mut().zip(0..) {
        device.driver.seat = Some(team.seat(rank));
    }
    // A run tells the times of the first GPU.
    if let Some(device) = gpus.first_mut() {
        device.record(profiles);
    }
    let abort = Box::new(move |rank| team.end(rank, "see the error of that rank"));
    let gpus = gpus.into_iter().map(|device| Box::new(device) as Box<dyn Device + Send>).collect();
    Ok(Ranks::of(gpus, Local::new(ranks), abort))
}

/// Returns the mesh of a program, with the pipeline ranks: `pp=2,dp=2`.
fn described(program: &StagePrograms) -> String {
    let mesh = program.first().mesh.to_string();
    match program.iter().len() {
        1 => mesh,
        stages if program.first().mesh.devices() == 1 => format!("pp={stages}"),
        stages => format!("pp={stages},{mesh}"),
    }
}

/// Refuses more ranks than there are GPUs. `mesh` says in the error what has these ranks.
///
/// # Errors
/// The reason, with the names of the GPUs.
pub fn enough(mesh: &str, ranks: u64, devices: &[DeviceFacts]) -> Result<(), DriverError> {
    if ranks <= devices.len() as u64 {
        return Ok(());
    }
    let names: Vec<&str> = devices.iter().map(|device| &*device.name).collect();
    Err(DriverError(format!(
        "{mesh} needs {ranks} GPUs; this machine has {}: {}",
        devices.len(),
        names.join(", ")
    )))
}

/// Opens the GPUs of all stages, `devices` for each, and returns them with the programs of each stage.
#[allow(clippy::type_complexity)]
fn open(
    devices: u64,
    stages: &[Vec<Arc<Program>>],
    options: Options,
    folder: Option<&Path>,
) -> Result<(Vec<Cuda<Gpu>>, Vec<Vec<CudaProgram>>), DeviceError> {
    let (mut gpus, mut lowered) = (vec![], vec![]);
    let all = stages.iter().flatten().map(|program| &**program);
    room::check_host(all, devices * stages.len() as u64)?;
    for (programs, first) in stages.iter().zip((0..).step_by(devices as usize)) {
        let (own, programs) = open_stage(first..first + devices, programs, options, folder)?;
        gpus.extend(own);
        lowered.push(programs);
    }
    Ok((gpus, lowered))
}

/// Opens a GPU for each rank of a stage, with its memory and kernels, and returns them with the programs, which are the same on all.
/// The first rank decides which instructions go to libraries, and compiles the kernels. The other ranks, all at once, find the compiled
/// kernels.
fn open_stage(
    ranks: Range<u64>,
    programs: &[Arc<Program>],
    options: Options,
    folder: Option<&Path>,
) -> Result<(Vec<Cuda<Gpu>>, Vec<CudaProgram>), DeviceError> {
    let of_rank = |rank| move |source| DeviceError::Rank { rank, task: None, source: Box::new(source) };
    let open =
        |rank: u64| Gpu::open(rank as usize, options).map_err(DeviceError::driver).map_err(of_rank(rank));
    let mut first = open(ranks.start)?;
    let lowered = programs.iter().map(|program| first.lower(program.clone()).map_err(DeviceError::kernel));
    let lowered = lowered.collect::<Result<Vec<CudaProgram>, _>>()?;
    let with = |driver: Gpu, rank: u64| {
        let made = Cuda::of_rank(driver, lowered.clone(), rank, folder);
        made.map(|device| device.at(options.pace)).map_err(of_rank(rank))
    };
    let (open, with) = (&open, &with);
    let mut devices = vec![with(first, ranks.start)?];
    let chosen = &devices[0].driver.chosen();
    let follow = |rank: u64| {
        let mut driver = open(rank)?;
        driver.follow(chosen).map_err(DeviceError::driver).map_err(of_rank(rank))?;
        with(driver, rank)
    };
    let follow = &follow;
    let others = thread::scope(|scope| {
        let one = |rank| scope.spawn(move || follow(rank));
        let threads: Vec<_> = (ranks.start + 1..ranks.end).map(one).collect();
        let end = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(end).collect::<Result<Vec<_>, DeviceError>>()
    });
    devices.extend(others?);
    Ok((devices, lowered))
}

/// Returns the groups of ranks that exchange in any of these programs, which are given for each stage.
fn groups(stages: &[Vec<CudaProgram>]) -> BTreeSet<Group> {
    let mut groups = BTreeSet::new();
    for (stage, programs) in (0..).zip(stages) {
        for cuda in programs {
            let devices = cuda.program.mesh.devices();
            let ranks = stage * devices..(stage + 1) * devices;
            let splits = Split::all(cuda);
            groups.extend(
                splits
                    .iter()
                    .flat_map(|split| ranks.clone().filter_map(|rank| split.group(&cuda.program.mesh, rank))),
            );
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use program::lower::{LowerOptions, lower};

    fn facts(name: &str) -> DeviceFacts {
        DeviceFacts { name: name.into(), capability: (9, 0), memory: 1 << 30, multiprocessors: 132 }
    }

    #[test]
    fn ranks_without_a_gpu_are_counted() {
        let two = [facts("NVIDIA H200"), facts("NVIDIA A100")];
        assert_eq!(enough("--mesh tp=2", 2, &two), Ok(()));
        let error = enough("--mesh dp=2,tp=2", 4, &two).unwrap_err().to_string();
        assert_eq!(error, "--mesh dp=2,tp=2 needs 4 GPUs; this machine has 2: NVIDIA H200, NVIDIA A100");
    }

    /// Groups over one axis, and over both axes in both orders. A group without a collective has no communicator.
    #[test]
    fn each_group_that_exchanges_is_listed_once_in_its_order() {
        let text = r#"trainyard-ir 1
            module @m placed mesh [dp=2, tp=2] {
              func @train(%0 "x" : f32[8, 6] {dp, -}, %1 "y" : f32[8] {tp*dp}) {
                %2 = all_gather %0 : f32[8, 6]
                %3 = tanh %0 : f32[8, 6] {dp, -}
                %4 = all_gather %3 : f32[8, 6]
                %5 = all_gather %1 : f32[8]
              }
              output "a" = %2
              output "b" = %4
              output "c" = %5
            }"#;
        let module = ir::text::parse(text).unwrap();
        let options = LowerOptions::of(crate::TARGET);
        let program = Arc::new(lower(&module, &options).unwrap());
        let groups = groups(&[vec![crate::lower::lower(program).unwrap()]]);
        let listed: Vec<Vec<u64>> = groups.into_iter().map(|group| group.ranks).collect();
        assert_eq!(listed, [vec![0, 2], vec![0, 2, 1, 3], vec![1, 3]]);
    }

    /// A machine with GPUs and one without get an answer, and no panic.
    #[test]
    fn every_machine_has_an_answer_for_a_thousand_ranks() {
        let text = r#"trainyard-ir 1
            module @m placed mesh [dp=1024] {
              func @train(%0 "x" : f32[1024] {dp}) {
                %1 = all_gather %0 : f32[1024]
              }
              output "a" = %1
            }"#;
        let module = ir::text::parse(text).unwrap();
        let options = LowerOptions::of(crate::TARGET);
        let program = Arc::new(lower(&module, &options).unwrap());
        let error = gpus(vec![program.into()], Options::default(), None, DeviceProfiles::new(), &|_| {})
            .map(drop)
            .unwrap_err()
            .to_string();
        let parts = ["libcuda", "NVIDIA", "no GPU", "needs 1024 GPUs"];
        assert!(parts.iter().any(|part| error.contains(part)), "{error}");
    }
}
