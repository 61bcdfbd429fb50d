//! Which device a run is on: what `--device` asks for, and what the machine has.

use crate::config::{DeviceChoice, Parallel};
use ir::Diagnostic;
use runtime::cuda::libraries::{FOLDERS, Folders, Library};
use runtime::cuda::probe::{Probe, probe};
use runtime::program::Target;

/// A device that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Its kind.
    pub target: Target,
    /// What it is, for people; and why, where nobody has asked for it.
    pub described: String,
}

/// Finds the device of a run.
///
/// # Errors
/// A GPU was asked for, and cannot be used: what is missing, and where it was looked for.
pub fn choose(choice: DeviceChoice, parallel: &Parallel) -> Result<Chosen, Diagnostic> {
    let processor = |described: String| Chosen { target: Target::Cpu, described };
    let folders = Folders::of_process();
    match choice {
        DeviceChoice::Cpu => Ok(processor("the processor".into())),
        DeviceChoice::Auto => Ok(processor(unasked(&probe(&folders)))),
        DeviceChoice::Cuda => {
            if let Some(mesh) = parallel.described() {
                return Err(Diagnostic::new(format!("--device cuda takes one GPU, not the mesh {mesh}"))
                    .note("several GPUs are not there yet; --device cpu runs the mesh as threads"));
            }
            let described = usable(&probe(&folders)).map_err(|error| looked(error, &folders))?;
            Ok(Chosen { target: Target::Cuda, described })
        }
    }
}

/// The processor, and why.
fn unasked(probe: &Probe) -> String {
    match &probe.driver {
        Ok(driver) => format!("the processor; --device cuda trains on the {}", driver.devices[0].name),
        Err(error) => format!("the processor; {error}"),
    }
}

/// What the programs run on, if all is there that they need.
fn usable(probe: &Probe) -> Result<String, Diagnostic> {
    let driver = probe
        .driver
        .as_ref()
        .map_err(|error| Diagnostic::new(format!("--device cuda: {error}")).note(Library::Driver.source()))?;
    for (library, opened) in &probe.libraries {
        if let (Library::Nvrtc | Library::CublasLt, Err(error)) = (library, opened) {
            return Err(
                Diagnostic::new(format!("--device cuda needs {library}: {error}")).note(library.source())
            );
        }
    }
    Ok(driver.devices[0].name.clone())
}

fn looked(error: Diagnostic, folders: &Folders) -> Diagnostic {
    let all: Vec<String> =
        folders.given.iter().chain(&folders.installed).map(|folder| folder.display().to_string()).collect();
    let places = if all.is_empty() { String::new() } else { format!(", {}", all.join(", ")) };
    error
        .note(format!("looked in the system's own folders{places}; {FOLDERS}=FOLDER:FOLDER adds others"))
        .note("--device cpu trains on the processor; `trainyard doctor` says what this machine has")
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::cuda::libraries::{NotOpened, Opened};
    use runtime::cuda::probe::{DeviceFacts, Driver, NEEDED, Unavailable};

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
        assert_eq!(usable(&machine(true)).unwrap(), "NVIDIA H200");
        let error = usable(&machine(false)).unwrap_err().to_string();
        assert!(error.contains("needs NVRTC: libnvrtc.so.13 is not there"), "{error}");
        assert_eq!(unasked(&machine(true)), "the processor; --device cuda trains on the NVIDIA H200");
    }

    #[test]
    fn where_there_is_no_driver_the_processor_is_used_and_says_why() {
        let driver = Err(Unavailable::NoDevice);
        let probe = Probe { driver, libraries: vec![] };
        assert_eq!(unasked(&probe), "the processor; the NVIDIA driver finds no GPU");
        assert!(usable(&probe).is_err());
    }
}
