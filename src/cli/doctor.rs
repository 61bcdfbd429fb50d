//! `trainyard doctor`: what this machine has to train on, and what is missing.

use clap::Args;
use runtime::cuda::libraries::{FOLDERS, Folders, Library, NotOpened, Opened};
use runtime::cuda::probe::{Driver, Probe, Unavailable, probe};

use super::report::{self, Failure, Outcome};
use crate::inspection::units;

const EXAMPLES: &str = "\
Examples:
  What is here, and where:
    trainyard doctor

  With CUDA's libraries in a folder of their own:
    TRAINYARD_CUDA_LIBS=/opt/cuda/lib trainyard doctor";

/// Arguments of `doctor`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Doctor {}

impl Doctor {
    /// Writes what it finds to standard output.
    ///
    /// # Errors
    /// Output that cannot be written. What is missing is no error.
    pub fn run(&self) -> Result<Outcome, Failure> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let folders = Folders::of_process();
        report::write_out(&found(threads, &folders, &probe(&folders)))?;
        Ok(Outcome::Done)
    }
}

/// A line, its subject first.
fn line(subject: &str, text: &str) -> String {
    format!("{subject:15}{text}\n")
}

fn found(threads: usize, folders: &Folders, probe: &Probe) -> String {
    let mut text = line("processor", &format!("{threads} threads"));
    text += &match &probe.driver {
        Ok(driver) => devices(driver),
        Err(Unavailable::Library(NotOpened::Missing { library, .. })) => missing(*library),
        Err(error) => line(Library::Driver.name(), &error.to_string()),
    };
    for (library, opened) in &probe.libraries {
        text += &match opened {
            Ok(opened) => line(library.name(), &described(opened, opened.version.as_deref())),
            Err(NotOpened::Missing { library, .. }) => missing(*library),
            Err(error) => line(library.name(), &error.to_string()),
        };
    }
    let looked = folders.given.iter().chain(&folders.installed);
    let looked: String = looked.map(|folder| format!(", {}", folder.display())).collect();
    text += &format!("\nlooked in the system's own folders{looked}; {FOLDERS}=FOLDER:FOLDER adds others\n");
    text + "programs run on the processor; --device cuda runs them on a GPU\n"
}

fn devices(driver: &Driver) -> String {
    let version = format!("CUDA {}", driver.version);
    let mut text = line(Library::Driver.name(), &described(&driver.opened, Some(&version)));
    for (ordinal, device) in driver.devices.iter().enumerate() {
        let (major, minor) = device.capability;
        let facts = format!(
            "{}, sm_{major}{minor}, {}, {} multiprocessors",
            device.name,
            units::bytes(device.memory),
            device.multiprocessors
        );
        text += &line(&format!("  GPU {ordinal}"), &facts);
    }
    text
}

fn described(opened: &Opened, version: Option<&str>) -> String {
    let path = opened.path.display();
    version.map_or_else(|| path.to_string(), |version| format!("{version}, {path}"))
}

/// A library that is nowhere, and how to come by it.
fn missing(library: Library) -> String {
    line(library.name(), &format!("{} is not there: {}", library.file(), library.source()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::cuda::probe::{DeviceFacts, NEEDED};

    #[test]
    fn a_machine_with_a_gpu_is_described() {
        let opened = |library: Library, folder: &str, version: Option<&str>| Opened {
            library,
            path: format!("{folder}{}", library.file()).into(),
            version: version.map(str::to_owned),
        };
        let device = DeviceFacts {
            name: "NVIDIA H200".into(),
            capability: (9, 0),
            memory: 150_754_820_096,
            multiprocessors: 132,
        };
        let driver =
            Driver { opened: opened(Library::Driver, "", None), version: NEEDED, devices: vec![device] };
        let folders = Folders { given: vec![], installed: vec!["/env/nvidia/cu13/lib".into()] };
        let probe = Probe {
            driver: Ok(driver),
            libraries: vec![
                (Library::Nvrtc, Ok(opened(Library::Nvrtc, "/env/nvidia/cu13/lib/", Some("13.0")))),
                (Library::Nccl, Err(NotOpened::Missing { library: Library::Nccl, looked: vec![] })),
            ],
        };
        expect_test::expect![[r#"
            processor      16 threads
            NVIDIA driver  CUDA 13.0, libcuda.so.1
              GPU 0        NVIDIA H200, sm_90, 140 GiB, 132 multiprocessors
            NVRTC          13.0, /env/nvidia/cu13/lib/libnvrtc.so.13
            NCCL           libnccl.so.2 is not there: pip install nvidia-nccl-cu13

            looked in the system's own folders, /env/nvidia/cu13/lib; TRAINYARD_CUDA_LIBS=FOLDER:FOLDER adds others
            programs run on the processor; --device cuda runs them on a GPU
        "#]].assert_eq(&found(16, &folders, &probe));
    }
}
