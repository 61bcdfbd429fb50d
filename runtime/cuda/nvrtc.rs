//! Compiles kernels for a device with NVRTC: one cubin for each kernel, and the assembler's report of its registers.
//!
//! NVRTC's functions are taken from the very library that was opened, because a machine may have several versions.

mod library;

use super::libraries::{self, Folders, Library, NotOpened, Opened};
use super::probe::OLDEST;
use super::program::Kernel;
use library::{Compilation, Functions, Status};
use std::collections::BTreeMap;
use std::fmt;

/// The options that every kernel is compiled with.
///
/// Division and square roots stay exactly rounded, and subnormal numbers are not flushed to zero, as is NVRTC's default: the fast
/// forms miss the error bounds of f32. A product and a sum stay two instructions: recomputation and offload decide which nodes
/// share a kernel, and must change no bit. A kernel that sums many products calls `fma`. The warning about unused functions of
/// the prelude (177) is off.
pub const OPTIONS: [&str; 4] = ["--std=c++17", "--fmad=false", "--diag-suppress=177", "--ptxas-options=-v"];

/// The opened library NVRTC.
pub struct Nvrtc {
    functions: Functions,
    opened: Opened,
    architectures: Vec<u32>,
}

/// A kernel for one architecture.
#[derive(Clone, Debug)]
pub struct Cubin {
    /// The cubin, which a driver loads.
    pub bytes: Vec<u8>,
    /// The PTX that the assembler read.
    pub ptx: String,
    /// The resources that the kernel takes of a multiprocessor.
    pub resources: Resources,
    /// The compiler's log.
    pub log: String,
}

/// The resources that a kernel takes, for each thread or each block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of registers that a thread writes to memory because there are too few.
    pub spill_stores: u32,
    /// Bytes of these registers that a thread reads back.
    pub spill_loads: u32,
    /// Bytes of a thread's stack.
    pub stack: u32,
    /// Bytes of a block's shared memory.
    pub shared: u32,
}

/// The reasons why a kernel has no cubin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvrtcError {
    /// NVRTC is not installed.
    #[error("{missing}; NVRTC compiles the kernels: {}", Library::Nvrtc.source())]
    Missing {
        /// The places that were searched.
        #[from]
        missing: NotOpened,
    },
    /// The library is not NVRTC, whatever its name says.
    #[error("{} is not NVRTC: {reason}", opened.path.display())]
    Strange {
        /// The library.
        opened: Box<Opened>,
        /// The fault, such as a missing function.
        reason: String,
    },
    /// NVRTC does not compile for the device.
    #[error("NVRTC {version} compiles for {}, and the device is sm_{}{}", listed(.known), capability.0, capability.1)]
    Architecture {
        /// The device's compute capability.
        capability: (i32, i32),
        /// The architectures that NVRTC compiles for.
        known: Vec<u32>,
        /// NVRTC's version.
        version: String,
    },
    /// A kernel does not compile.
    #[error("the kernel `{kernel}` does not compile for {architecture}: {reason}\n{log}")]
    Kernel {
        /// The kernel.
        kernel: String,
        /// The architecture.
        architecture: String,
        /// NVRTC's text for the error.
        reason: String,
        /// The compiler's messages, with lines of the source.
        log: String,
    },
}

fn listed(architectures: &[u32]) -> String {
    architectures.iter().map(|architecture| format!("sm_{architecture}")).collect::<Vec<_>>().join(", ")
}

impl fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nvrtc").field("opened", &self.opened).finish_non_exhaustive()
    }
}

impl Nvrtc {
    /// Opens the library.
    ///
    /// # Errors
    /// It is not found, or it is not NVRTC.
    pub fn open(folders: &Folders) -> Result<Self, NvrtcError> {
        let opened = libraries::open(Library::Nvrtc, folders)?;
        let strange = |reason| NvrtcError::Strange { opened: Box::new(opened.clone()), reason };
        let handle = libraries::load(&opened.path).map_err(strange)?;
        let functions = Functions::of(&*handle).map_err(strange)?;
        let architectures =
            functions.architectures().map_err(|error| strange(functions.text(error).to_owned()))?;
        Ok(Self { functions, opened, architectures })
    }

    /// Returns NVRTC's version.
    pub fn version(&self) -> &str {
        self.opened.version.as_deref().unwrap_or("of an unknown version")
    }

    /// Returns the architecture to compile for on a device of this compute capability.
    ///
    /// # Errors
    /// The device is older than our kernels, or NVRTC knows no architecture that it runs.
    pub fn architecture(&self, capability: (i32, i32)) -> Result<String, NvrtcError> {
        architecture(&self.architectures, capability).ok_or_else(|| NvrtcError::Architecture {
            capability,
            known: self.architectures.clone(),
            version: self.version().to_owned(),
        })
    }

    /// Compiles a kernel for an architecture: `sm_80`, `sm_90a`. May be called on several threads at once.
    ///
    /// # Errors
    /// The compiler refuses the kernel.
    pub fn compile(&self, kernel: &Kernel, architecture: &str) -> Result<Cubin, NvrtcError> {
        self.compiled(kernel, architecture, |program| {
            let log = program.log()?;
            Ok(Cubin { bytes: program.cubin()?, ptx: program.ptx()?, resources: Resources::of(&log), log })
        })
    }

    /// Compiles a kernel to PTX, the text that the assembler reads, for a virtual architecture: `compute_90a`.
    ///
    /// # Errors
    /// The compiler refuses the kernel.
    pub fn ptx(&self, kernel: &Kernel, architecture: &str) -> Result<String, NvrtcError> {
        self.compiled(kernel, architecture, |program| program.ptx())
    }

    /// Compiles a kernel and returns the part of the compilation that `take` reads.
    fn compiled<T>(
        &self,
        kernel: &Kernel,
        architecture: &str,
        take: impl FnOnce(&Compilation) -> Result<T, Status>,
    ) -> Result<T, NvrtcError> {
        let refused = |reason: &str, log: String| NvrtcError::Kernel {
            kernel: kernel.name.clone(),
            architecture: architecture.to_owned(),
            reason: reason.to_owned(),
            log,
        };
        let told = |error| refused(self.functions.text(error), String::new());
        let program = Compilation::new(&self.functions, &source(kernel)).map_err(told)?;
        if let Err(error) = program.run(&options(architecture)) {
            return Err(refused(self.functions.text(error), program.log().map_err(told)?));
        }
        take(&program).map_err(told)
    }
}

/// Returns the compiler's options for an architecture.
pub fn options(architecture: &str) -> Vec<String> {
    let architecture = format!("--gpu-architecture={architecture}");
    std::iter::once(architecture).chain(OPTIONS.map(str::to_owned)).collect()
}

/// Returns the whole text that the compiler gets for a kernel. The compiler's messages name the files that it is made from.
pub fn source(kernel: &Kernel) -> String {
    let files = kernel.files.iter();
    let mut text: String = files.map(|file| format!("#line 1 \"{}\"\n{}\n", file.name, file.text)).collect();
    text += &format!("#line 1 \"{}\"\n{}", kernel.name, kernel.text);
    text
}

/// Returns the newest architecture that the device runs: its own, with the features of this device alone, else an older one of
/// its generation. `None` for a device that is older than our kernels, even if NVRTC compiles for it.
fn architecture(known: &[u32], (major, minor): (i32, i32)) -> Option<String> {
    if (major, minor) < OLDEST {
        return None;
    }
    let number = u32::try_from(major.checked_mul(10)?.checked_add(minor)?).ok()?;
    if known.contains(&number) {
        let own = if number >= 90 { "a" } else { "" };
        return Some(format!("sm_{number}{own}"));
    }
    let older = known.iter().filter(|&&other| other / 10 == number / 10 && other < number).max();
    older.map(|older| format!("sm_{older}"))
}

impl Resources {
    /// Reads the resources of each kernel from the assembler's log, by the kernel's name.
    pub fn of_each(log: &str) -> BTreeMap<String, Self> {
        let kernels = log.split("Compiling entry function '").skip(1);
        kernels.filter_map(|part| Some((part.split_once('\'')?.0.to_owned(), Self::of(part)))).collect()
    }

    /// Reads the output of `ptxas -v`. For several functions, spills are summed, and of the other numbers the largest is taken.
    fn of(log: &str) -> Self {
        let all = |unit: &str| -> Vec<u32> { log.lines().filter_map(|line| before(line, unit)).collect() };
        let most = |unit: &str| all(unit).into_iter().max().unwrap_or_default();
        Self {
            registers: most(" registers"),
            spill_stores: all(" bytes spill stores").into_iter().sum(),
            spill_loads: all(" bytes spill loads").into_iter().sum(),
            stack: most(" bytes stack frame"),
            shared: most(" bytes smem"),
        }
    }
}

/// Returns the number before a unit.
fn before(line: &str, unit: &str) -> Option<u32> {
    let text = &line[..line.find(unit)?];
    text.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_assembler_says_is_read() {
        let log = "ptxas info    : 16 bytes gmem\n\
            ptxas info    : Compiling entry function 'f' for 'sm_90a'\n\
            ptxas info    : Function properties for f\n\
            ptxas         .     40 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n\
            ptxas info    : Used 14 registers, used 1 barriers, 40 bytes cumulative stack size, 128 bytes smem\n";
        let read = Resources { registers: 14, spill_stores: 12, spill_loads: 8, stack: 40, shared: 128 };
        assert_eq!(Resources::of(log), read);
        assert_eq!(Resources::of_each(log), BTreeMap::from([("f".into(), read)]));
        assert_eq!(Resources::of("nothing of the kind"), Resources::default());
    }

    #[test]
    fn a_device_gets_its_own_architecture_or_an_older_one_of_its_generation() {
        let known = [75, 80, 86, 89, 90, 100, 103, 120];
        let of = |capability| architecture(&known, capability);
        assert_eq!(of((8, 0)).as_deref(), Some("sm_80"));
        assert_eq!(of((9, 0)).as_deref(), Some("sm_90a"));
        assert_eq!(of((10, 3)).as_deref(), Some("sm_103a"));
        assert_eq!(of((8, 7)).as_deref(), Some("sm_86"));
        assert_eq!(of((12, 1)).as_deref(), Some("sm_120"));
        let refused = [(7, 0), (7, 5), (11, 0), (-1, 0), (i32::MAX, 0)];
        assert_eq!(refused.map(of), [const { None }; 5]);
    }

    #[test]
    fn without_nvrtc_the_error_says_what_to_install() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(Library::Nvrtc.file());
        std::fs::write(&file, "not a library").unwrap();
        let folders = Folders { given: vec![folder.path().into()], installed: vec![] };
        // The loader may still find NVRTC elsewhere on this machine.
        if let Err(error) = Nvrtc::open(&folders) {
            let text = error.to_string();
            assert!(text.contains(&file.display().to_string()) && text.contains("pip install"), "{text}");
        }
    }
}
