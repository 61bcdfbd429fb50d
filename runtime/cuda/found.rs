//! The search for GPUs of this machine that a run can use, and the reasons why it cannot use them.

use crate::gpu::enough;
use crate::libraries::{FOLDERS, Folders, Library};
use crate::probe::{DeviceFacts, Driver, Probe, probe};
use ::ranks::platform::{Found, Wanted};
use ir::Diagnostic;
use ir::machine::Preset;
use program::Multiprocessors;

/// GPUs that have a preset, by the names that their driver has for them. The presets of a V100 have none: it is described for
/// predictions alone, since kernels do not run on it.
const PRESETS: [(&str, Preset); 4] = [
    ("NVIDIA H200", Preset::H200),
    ("NVIDIA H100 80GB HBM3", Preset::H100),
    ("NVIDIA A100-SXM4-80GB", Preset::A100),
    ("NVIDIA A100-SXM4-40GB", Preset::A100With40),
];

/// The preset of a GPU, by the name that its driver has for it.
pub fn preset(name: &str) -> Option<Preset> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, preset)| *preset)
}

/// The flag of a user who wants GPUs.
const FLAG: &str = "--device cuda";

/// Finds a GPU for each rank of this process.
///
/// # Errors
/// A GPU that cannot be used: the error names the missing library or driver, and the folders that were searched.
pub(crate) fn find(wanted: &Wanted) -> Result<Found, Diagnostic> {
    let folders = Folders::of_process();
    let probe = probe(&folders);
    let here = if wanted.is_one_rank { 1 } else { wanted.ranks };
    // An old GPU is refused before libraries are asked for, which would not help it.
    if let Ok(driver) = &probe.driver {
        new_enough(FLAG, &driver.devices, here, wanted.is_one_rank)?;
    }
    let driver = usable(FLAG, &probe, &folders)?;
    if let (Some(mesh), 2..) = (&wanted.mesh, wanted.ranks) {
        for_ranks(mesh, here, driver, &probe, &folders)?;
    }
    Ok(found(of_process(&driver.devices, here, wanted.local_rank)))
}

/// Describes a GPU that is present, or the reason why it cannot be used. The reason why there is no GPU is told only to users that ask for
/// one.
pub(crate) fn offered(probe: &Probe) -> Option<String> {
    let facts = probe.driver.as_ref().ok().and_then(|driver| driver.devices.first())?;
    Some(facts.refusal(0).unwrap_or_else(|| format!("{FLAG} trains on the {}", facts.name)))
}

/// The GPUs that the ranks of this process open: the first `ranks`, or that of a process that is one rank of its node.
fn of_process(devices: &[DeviceFacts], ranks: u64, local_rank: Option<u64>) -> &[DeviceFacts] {
    let own = local_rank.and_then(|rank| devices.get(rank as usize..)).filter(|own| !own.is_empty());
    let own = own.unwrap_or(devices);
    &own[..own.len().min(ranks as usize)]
}

/// Describes GPUs that run one program: the smallest decides.
fn found(gpus: &[DeviceFacts]) -> Found {
    let known =
        gpus.iter().filter_map(|gpu| u32::try_from(gpu.multiprocessors).ok()).filter(|count| *count > 0);
    let presets: Option<Vec<Preset>> = gpus.iter().map(|gpu| preset(&gpu.name)).collect();
    Found {
        multiprocessors: known.min().map_or_else(Multiprocessors::default, Multiprocessors),
        described: gpus.iter().map(|gpu| &*gpu.name).collect::<Vec<_>>().join(", "),
        preset: presets.and_then(|presets| presets.into_iter().min_by_key(|preset| preset.device().memory)),
    }
}

/// Refuses a mesh for which there are too few GPUs, or no NCCL.
fn for_ranks(
    mesh: &str,
    ranks: u64,
    driver: &Driver,
    probe: &Probe,
    folders: &Folders,
) -> Result<(), Diagnostic> {
    enough(mesh, ranks, &driver.devices).map_err(|error| {
        Diagnostic::new(error.to_string()).note(
            "each rank needs its own GPU: use a smaller mesh, or --device cpu, which runs ranks as \
                 threads",
        )
    })?;
    for (library, opened) in &probe.libraries {
        if let (Library::Nccl, Err(error)) = (library, opened) {
            let error = Diagnostic::new(format!("{mesh} on GPUs needs {library}: {error}"));
            return Err(looked(error.note(library.source()), folders));
        }
    }
    Ok(())
}

/// Refuses the GPUs of the ranks if one of them is too old for kernels: the first `ranks` GPUs, one for each rank. A process that is one
/// rank of several uses the GPU of its local rank, which is checked when it is opened. So such a process is refused here only if all GPUs
/// are too old.
fn new_enough(flag: &str, devices: &[DeviceFacts], ranks: u64, is_one_rank: bool) -> Result<(), Diagnostic> {
    let any_is_sound = devices.iter().any(|facts| facts.check().is_ok());
    if is_one_rank && any_is_sound {
        return Ok(());
    }
    let mut first = devices.iter().take(ranks as usize).enumerate();
    let Some(old) = first.find_map(|(gpu, facts)| facts.refusal(gpu)) else { return Ok(()) };
    let error = Diagnostic::new(format!("{flag}: {old}"));
    let error = if any_is_sound {
        error.note("CUDA_VISIBLE_DEVICES=N,N chooses GPUs of this machine by their numbers")
    } else {
        error
    };
    Err(error.note("--device cpu trains on the processor; `trainyard doctor` lists the GPUs of this machine"))
}

/// The driver and its GPUs, if all libraries that programs on GPUs need are installed.
///
/// # Errors
/// A missing library, with the flag that needs it and the searched folders.
pub fn usable<'a>(flag: &str, probe: &'a Probe, folders: &Folders) -> Result<&'a Driver, Diagnostic> {
    let missing = |error: String, library: Library| {
        looked(Diagnostic::new(format!("{flag}{error}")).note(library.source()), folders)
    };
    let driver = probe.driver.as_ref().map_err(|error| missing(format!(": {error}"), Library::Driver))?;
    for (library, opened) in &probe.libraries {
        if let (Library::Nvrtc | Library::CublasLt, Err(error)) = (library, opened) {
            return Err(missing(format!(" needs {library}: {error}"), *library));
        }
    }
    Ok(driver)
}

fn looked(error: Diagnostic, folders: &Folders) -> Diagnostic {
    let all: Vec<String> =
        folders.given.iter().chain(&folders.installed).map(|folder| folder.display().to_string()).collect();
    let places = if all.is_empty() { String::new() } else { format!(", {}", all.join(", ")) };
    error
        .note(format!(
            "libraries were searched in the system's folders{places}; {FOLDERS}=FOLDER:FOLDER adds folders"
        ))
        .note(
            "--device cpu trains on the processor; `trainyard doctor` lists the GPUs and libraries of this \
             machine",
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libraries::{NotOpened, Opened};
    use crate::probe::{NEEDED, Unavailable};

    fn machine(with_compiler: bool) -> Probe {
        let opened = |library: Library| Opened { library, path: library.file().into(), version: None };
        let device = DeviceFacts {
            name: "NVIDIA H200".into(),
            capability: (9, 0),
            memory: 1 << 37,
            multiprocessors: 132,
        };
        let driver = Driver { opened: opened(Library::Driver), version: NEEDED, devices: vec![device] };
        let missing = NotOpened::Missing { library: Library::Nvrtc, looked: vec![] };
        let compiler = if with_compiler { Ok(opened(Library::Nvrtc)) } else { Err(missing) };
        Probe {
            driver: Ok(driver),
            libraries: vec![
                (Library::Nvrtc, compiler),
                (Library::CublasLt, Ok(opened(Library::CublasLt))),
                (Library::Nccl, Err(NotOpened::Missing { library: Library::Nccl, looked: vec![] })),
            ],
        }
    }

    #[test]
    fn a_gpu_is_used_where_all_is_there_that_one_takes() {
        let folders = Folders { given: vec!["/opt/cuda/lib".into()], installed: vec![] };
        let of = |machine: &Probe| usable("--device cuda", machine, &folders).cloned();
        assert_eq!(of(&machine(true)).unwrap().devices[0].name, "NVIDIA H200");
        let error = of(&machine(false)).unwrap_err();
        assert!(error.message.contains("--device cuda needs NVRTC: libnvrtc.so.13 was not found"), "{error}");
        assert!(error.notes.iter().any(|note| note.contains("/opt/cuda/lib")), "{error}");
        assert_eq!(offered(&machine(true)).as_deref(), Some("--device cuda trains on the NVIDIA H200"));
    }

    #[test]
    fn a_mesh_takes_as_many_gpus_as_it_has_ranks_and_nccl() {
        let folders = Folders { given: vec!["/opt/cuda/lib".into()], installed: vec![] };
        let mut machine = machine(true);
        let of = |machine: &Probe, mesh, ranks| {
            let driver = machine.driver.as_ref().unwrap();
            for_ranks(mesh, ranks, driver, machine, &folders).map_err(|error| error.to_string())
        };
        let error = of(&machine, "--mesh dp=2,tp=2", 4).unwrap_err();
        let first = "--mesh dp=2,tp=2 needs 4 GPUs; this machine has 1: NVIDIA H200";
        assert_eq!(error.lines().next(), Some(first));
        let devices = &mut machine.driver.as_mut().unwrap().devices;
        devices.push(devices[0].clone());
        let error = of(&machine, "--mesh dp=2", 2).unwrap_err();
        assert!(error.contains("needs NCCL: libnccl.so.2 was not found") && error.contains("pip"), "{error}");
        assert!(error.contains("/opt/cuda/lib"), "{error}");
        machine.libraries.retain(|(library, _)| *library != Library::Nccl);
        assert_eq!(of(&machine, "--mesh dp=2", 2), Ok(()));
    }

    #[test]
    fn the_smallest_of_the_gpus_that_a_process_opens_decides() {
        let h200 = machine(true).driver.unwrap().devices[0].clone();
        let a100 = DeviceFacts { name: "NVIDIA A100-SXM4-40GB".into(), multiprocessors: 108, ..h200.clone() };
        let mut devices = vec![h200, a100];
        let of = |devices: &[DeviceFacts], ranks, local_rank| {
            let Found { multiprocessors, described, preset } = found(of_process(devices, ranks, local_rank));
            (multiprocessors.0, described, preset)
        };
        assert_eq!(of(&devices, 1, None), (132, "NVIDIA H200".into(), Some(Preset::H200)));
        let both = "NVIDIA H200, NVIDIA A100-SXM4-40GB".to_owned();
        assert_eq!(of(&devices, 2, None), (108, both, Some(Preset::A100With40)));
        let second = (108, devices[1].name.clone(), Some(Preset::A100With40));
        assert_eq!(of(&devices, 1, Some(1)), second);
        assert_eq!(of(&devices[1..], 1, Some(1)), second, "the launcher shows it one GPU");
        devices[1].name = "a GPU without a preset".into();
        assert_eq!(of(&devices, 2, None).2, None, "its memory is not known");
    }

    #[test]
    fn a_gpu_that_is_too_old_is_refused_and_the_processor_is_chosen_with_the_reason() {
        let mut machine = machine(true);
        let devices = &mut machine.driver.as_mut().unwrap().devices;
        let sound = devices[0].clone();
        devices[0] = DeviceFacts { name: "Tesla T4".into(), capability: (7, 5), ..sound.clone() };
        let old = "GPU 0 (Tesla T4) is too old: its compute capability is 7.5, and kernels need 8.0 or newer";
        let of = |devices: &[DeviceFacts], ranks, is_one_rank| {
            new_enough("--device cuda", devices, ranks, is_one_rank).map_err(|error| error.to_string())
        };
        let alone = of(devices, 1, false).unwrap_err();
        assert_eq!(alone.lines().next(), Some(&*format!("--device cuda: {old}")));
        assert!(alone.contains("--device cpu") && !alone.contains("CUDA_VISIBLE_DEVICES"), "{alone}");
        assert!(of(devices, 1, true).is_err());
        devices.push(sound.clone());
        assert!(of(devices, 2, false).unwrap_err().contains("CUDA_VISIBLE_DEVICES"));
        assert_eq!(of(devices, 1, true), Ok(()), "the rank may have the other GPU");
        assert_eq!(of(&[sound.clone(), devices[0].clone()], 1, false), Ok(()), "the old GPU is not taken");
        assert!(of(&[sound, devices[0].clone()], 2, false).unwrap_err().contains("GPU 1 (Tesla T4)"));
        assert_eq!(offered(&machine).as_deref(), Some(old));
    }

    #[test]
    fn where_there_is_no_driver_the_processor_is_used_and_only_those_who_ask_for_a_gpu_are_told_why() {
        let driver = Err(Unavailable::NoDevice);
        let probe = Probe { driver, libraries: vec![] };
        assert_eq!(offered(&probe), None);
        let error = usable("--device cuda", &probe, &Folders::default()).unwrap_err();
        assert!(error.to_string().contains("the NVIDIA driver finds no GPU"), "{error}");
    }
}
