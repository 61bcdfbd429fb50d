//! Kernels compiled for a device by NVRTC: one cubin a kernel, and what its assembler says of registers.
//!
//! NVRTC's functions are taken from the very library that was opened: there may be others of other versions.

mod library;

use super::libraries::{self, Folders, Library, NotOpened, Opened};
use super::probe::OLDEST;
use super::program::Kernel;
use library::{Compilation, Functions, Status};
use std::collections::BTreeMap;
use std::fmt;

/// What every kernel is compiled with.
///
/// Division and square roots stay exactly rounded and small numbers are not flushed to zero, as NVRTC does unless told
/// otherwise: fast ones miss the bounds of f32. A product and a sum stay two instructions: recomputation and offload decide which
/// nodes share a kernel, and must change no bit. A kernel that sums many products says `fma`. Functions of the prelude that a
/// kernel does not need are no matter (177).
pub const OPTIONS: [&str; 4] = ["--std=c++17", "--fmad=false", "--diag-suppress=177", "--ptxas-options=-v"];

/// NVRTC, open.
pub struct Nvrtc {
    functions: Functions,
    opened: Opened,
    architectures: Vec<u32>,
}

/// A kernel for one architecture.
#[derive(Clone, Debug)]
pub struct Cubin {
    /// What a driver loads.
    pub bytes: Vec<u8>,
    /// The PTX that the assembler was given.
    pub ptx: String,
    /// What it takes of a multiprocessor.
    pub resources: Resources,
    /// What the compiler says.
    pub log: String,
}

/// What a kernel takes, each thread or each block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of registers that a thread writes to memory because there are too few.
    pub spill_stores: u32,
    /// Bytes that it reads back.
    pub spill_loads: u32,
    /// Bytes of a thread's stack.
    pub stack: u32,
    /// Bytes of a block's shared memory.
    pub shared: u32,
}

/// Why there is no cubin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvrtcError {
    /// There is no NVRTC.
    #[error("{missing}; NVRTC compiles the kernels: {}", Library::Nvrtc.source())]
    Missing {
        /// Where it was looked for.
        #[from]
        missing: NotOpened,
    },
    /// The library is not what its name says.
    #[error("{} is not NVRTC: {reason}", opened.path.display())]
    Strange {
        /// The library.
        opened: Box<Opened>,
        /// What is missing.
        reason: String,
    },
    /// It knows no such device.
    #[error("NVRTC {version} compiles for {}, and the device is sm_{}{}", listed(.known), capability.0, capability.1)]
    Architecture {
        /// The device's.
        capability: (i32, i32),
        /// What it compiles for.
        known: Vec<u32>,
        /// Its version.
        version: String,
    },
    /// A kernel does not compile.
    #[error("the kernel `{kernel}` does not compile for {architecture}: {reason}\n{log}")]
    Kernel {
        /// The kernel.
        kernel: String,
        /// For what.
        architecture: String,
        /// What NVRTC calls it.
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
    /// Opens it.
    ///
    /// # Errors
    /// It is nowhere, or is something else.
    pub fn open(folders: &Folders) -> Result<Self, NvrtcError> {
        let opened = libraries::open(Library::Nvrtc, folders)?;
        let strange = |reason| NvrtcError::Strange { opened: Box::new(opened.clone()), reason };
        let handle = libraries::load(&opened.path).map_err(strange)?;
        let functions = Functions::of(&*handle).map_err(strange)?;
        let architectures =
            functions.architectures().map_err(|error| strange(functions.text(error).to_owned()))?;
        Ok(Self { functions, opened, architectures })
    }

    /// Its version.
    pub fn version(&self) -> &str {
        self.opened.version.as_deref().unwrap_or("of an unknown version")
    }

    /// What to compile for a device of this compute capability.
    ///
    /// # Errors
    /// Devices that are older or newer than NVRTC.
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
    /// What the compiler refuses.
    pub fn compile(&self, kernel: &Kernel, architecture: &str) -> Result<Cubin, NvrtcError> {
        self.compiled(kernel, architecture, |program| {
            let log = program.log()?;
            Ok(Cubin { bytes: program.cubin()?, ptx: program.ptx()?, resources: Resources::of(&log), log })
        })
    }

    /// Compiles a kernel to PTX, the text that the assembler reads, for a virtual architecture: `compute_90a`.
    ///
    /// # Errors
    /// What the compiler refuses.
    pub fn ptx(&self, kernel: &Kernel, architecture: &str) -> Result<String, NvrtcError> {
        self.compiled(kernel, architecture, |program| program.ptx())
    }

    /// Takes something from the compilation of a kernel.
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

/// What a kernel is compiled with, for an architecture.
pub fn options(architecture: &str) -> Vec<String> {
    let architecture = format!("--gpu-architecture={architecture}");
    std::iter::once(architecture).chain(OPTIONS.map(str::to_owned)).collect()
}

/// All that the compiler is given of a kernel; its messages name the files that it is made from.
pub fn source(kernel: &Kernel) -> String {
    let files = kernel.files.iter();
    let mut text: String = files.map(|file| format!("#line 1 \"{}\"\n{}\n", file.name, file.text)).collect();
    text += &format!("#line 1 \"{}\"\n{}", kernel.name, kernel.text);
    text
}

/// The newest architecture that the device runs: its own, with what only it has; else an older one of its generation. None for
/// a device that is older than our kernels, even if NVRTC compiles for it.
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
    /// What the assembler's log says of each kernel, by its name.
    pub fn of_each(log: &str) -> BTreeMap<String, Self> {
        let kernels = log.split("Compiling entry function '").skip(1);
        kernels.filter_map(|part| Some((part.split_once('\'')?.0.to_owned(), Self::of(part)))).collect()
    }

    /// As `ptxas -v` writes them; of several functions the sum of spills and the most of the rest.
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

/// The number that stands before a unit.
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
        // A machine may have it where the loader looks.
        if let Err(error) = Nvrtc::open(&folders) {
            let text = error.to_string();
            assert!(text.contains(&file.display().to_string()) && text.contains("pip install"), "{text}");
        }
    }
}
