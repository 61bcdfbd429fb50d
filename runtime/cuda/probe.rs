//! Finds the CUDA driver, the devices and the libraries of a machine. It runs once, before any other call, and panics on no machine.

use super::libraries::{self, Folders, Library, NotOpened, Opened};
use cudarc::driver::{result, sys};
use std::fmt;

/// The version of CUDA for which the bindings are made.
pub const NEEDED: Version = Version(13_000);

/// The lowest compute capability that kernels run on: they copy asynchronously to shared memory, and multiply bf16 on tensor cores.
pub const OLDEST: (i32, i32) = (8, 0);

/// The CUDA installation of a machine.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The driver and its devices, or the reason why nothing can run on a GPU.
    pub driver: Result<Driver, Unavailable>,
    /// The other libraries.
    pub libraries: Vec<(Library, Result<Opened, NotOpened>)>,
}

/// A driver that works.
#[derive(Clone, Debug)]
pub struct Driver {
    /// The driver's library.
    pub opened: Opened,
    /// The newest version of CUDA that it supports.
    pub version: Version,
    /// The devices, by their ordinal; at least one.
    pub devices: Vec<DeviceFacts>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// NVIDIA's name for the device.
    pub name: String,
    /// The compute capability: `(9, 0)` is sm_90.
    pub capability: (i32, i32),
    /// Memory in bytes.
    pub memory: u64,
    /// Multiprocessors.
    pub multiprocessors: i32,
}

/// The reason why kernels do not run on a GPU: its compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too old: its compute capability is {}.{}, and kernels need {}.{} or newer", .0.0, .0.1, OLDEST.0, OLDEST.1)]
pub struct TooOld(pub (i32, i32));

impl DeviceFacts {
    /// Refuses a GPU that kernels do not run on.
    ///
    /// # Errors
    /// The compute capability of an old GPU.
    pub fn check(&self) -> Result<(), TooOld> {
        if self.capability < OLDEST { Err(TooOld(self.capability)) } else { Ok(()) }
    }

    /// Returns a sentence that refuses the GPU, which has this number, if it is too old.
    pub fn refusal(&self, gpu: usize) -> Option<String> {
        self.check().err().map(|old| format!("GPU {gpu} ({}) is {old}", self.name))
    }
}

/// The reason why nothing can run on a GPU here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// There is no driver.
    #[error(transparent)]
    Library(#[from] NotOpened),
    /// The driver is too old.
    #[error("the NVIDIA driver supports CUDA {0}, and CUDA {NEEDED} is needed; driver 580 supports it")]
    OldDriver(Version),
    /// The driver does not work.
    #[error("the NVIDIA driver {what}: {error}")]
    Driver {
        /// The predicate of the error's sentence, such as `does not start`.
        what: &'static str,
        /// The driver's message.
        error: String,
    },
    /// There is no device.
    #[error("the NVIDIA driver finds no GPU")]
    NoDevice,
}

/// A version in the driver's form: 1000 times the major number and 10 times the minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub i32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// Probes the machine.
pub fn probe(folders: &Folders) -> Probe {
    let open = |library| libraries::open(library, folders);
    let others = Library::ALL.into_iter().filter(|&library| library != Library::Driver);
    Probe {
        driver: find_driver(folders),
        libraries: others.map(|library| (library, open(library))).collect(),
    }
}

/// Returns the release of NVIDIA's kernel driver, such as `580.95.05`, if the system tells it.
pub fn release() -> Option<String> {
    release_of(&std::fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

/// Returns the first word of a text that consists of numbers with points between them.
fn release_of(text: &str) -> Option<String> {
    let is_release =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    text.split_whitespace().find(is_release).map(str::to_owned)
}

/// Returns the driver and its devices.
///
/// # Errors
/// The reason why nothing can run on a GPU.
pub fn find_driver(folders: &Folders) -> Result<Driver, Unavailable> {
    let opened = libraries::open(Library::Driver, folders)?;
    let refused = |what| move |error: result::DriverError| Unavailable::Driver { what, error: told(error) };
    // Every driver has the function that returns the version, and it works before the driver starts. Other functions came later.
    let version = version().map_err(refused("does not say its version"))?;
    if version < NEEDED {
        return Err(Unavailable::OldDriver(version));
    }
    result::init().map_err(refused("does not start"))?;
    let count = result::device::get_count().map_err(refused("does not count its devices"))?;
    let devices = (0..count).map(device).collect::<Result<Vec<_>, _>>();
    let devices = devices.map_err(refused("does not describe a device"))?;
    if devices.is_empty() {
        return Err(Unavailable::NoDevice);
    }
    Ok(Driver { opened, version, devices })
}

fn told(error: result::DriverError) -> String {
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    text.unwrap_or_else(|_| format!("{error:?}"))
}

#[allow(unsafe_code)]
fn version() -> Result<Version, result::DriverError> {
    let mut version = 0;
    // SAFETY: the driver writes one number to the given place.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
    Ok(Version(version))
}

#[allow(unsafe_code)]
fn device(ordinal: i32) -> Result<DeviceFacts, result::DriverError> {
    use sys::CUdevice_attribute as Attribute;
    let device = result::device::get(ordinal)?;
    // SAFETY: the driver has just returned the device.
    let attribute = |attribute| unsafe { result::device::get_attribute(device, attribute) };
    Ok(DeviceFacts {
        name: result::device::get_name(device)?,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        // SAFETY: as above.
        memory: unsafe { result::device::total_mem(device) }? as u64,
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_written_as_people_write_it() {
        assert_eq!([Version(12_040), NEEDED].map(|version| version.to_string()), ["12.4", "13.0"]);
    }

    #[test]
    fn the_release_is_found_in_what_either_kernel_module_says() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)\n";
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:12:17 UTC 2025\nGCC version:  gcc\n";
        assert_eq!(
            [open, closed, "nothing"].map(release_of),
            [Some("580.95.05".into()), Some("580.65.06".into()), None]
        );
    }

    #[test]
    fn a_gpu_below_compute_capability_8_0_is_too_old() {
        let with = |capability| DeviceFacts {
            name: "a GPU".into(),
            capability,
            memory: 1 << 30,
            multiprocessors: 40,
        };
        for new_enough in [(8, 0), (8, 9), (9, 0), (12, 1)] {
            assert_eq!(with(new_enough).check(), Ok(()));
        }
        for too_old in [(3, 5), (7, 0), (7, 5)] {
            assert_eq!(with(too_old).check(), Err(TooOld(too_old)));
        }
        let told = "too old: its compute capability is 7.5, and kernels need 8.0 or newer";
        assert_eq!(TooOld((7, 5)).to_string(), told);
    }

    /// A machine with a GPU and one without get an answer, and no panic.
    #[test]
    fn every_machine_has_an_answer() {
        let probe = probe(&Folders::of_process());
        assert_eq!(probe.libraries.len(), Library::ALL.len() - 1);
        match probe.driver {
            Ok(driver) => assert!(!driver.devices.is_empty() && driver.version >= NEEDED),
            Err(error) => {
                assert!(error.to_string().contains("NVIDIA") || error.to_string().contains("libcuda"))
            }
        }
    }
}
