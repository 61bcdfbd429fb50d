//! The compilation of many kernels, on two threads. Kernels of one file are compiled together, because NVRTC then reads the file once.

use cuda::nvrtc::{Cubin, Nvrtc, NvrtcError};
use cuda::program::{File, Kernel};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

/// The most kernels of a unit.
const TOGETHER: usize = 12;

/// Kernels of one file that are compiled together for an architecture.
pub(super) struct CompilationUnit<'a> {
    pub(super) kernels: Vec<&'a Kernel>,
    pub(super) architecture: &'a str,
}

impl<'a> CompilationUnit<'a> {
    /// Compiles all kernels of the unit as one program.
    pub(super) fn compile(&self, nvrtc: &Nvrtc) -> Result<Cubin, NvrtcError> {
        nvrtc.compile(&self.joined(), self.architecture)
    }

    /// As [`Self::compile`], with a file before all others.
    pub(super) fn compile_after(&self, file: &'static File, nvrtc: &Nvrtc) -> Result<Cubin, NvrtcError> {
        let mut joined = self.joined();
        joined.files.insert(0, file);
        nvrtc.compile(&joined, self.architecture)
    }

    fn joined(&self) -> Kernel {
        let texts = self.kernels.iter();
        let texts = texts.map(|kernel| format!("#line 1 \"{}\"\n{}", kernel.name, kernel.text));
        Kernel { text: texts.collect(), ..self.kernels[0].clone() }
    }

    /// A unit for each of its kernels, so that an error of NVRTC names the kernel.
    pub(super) fn of_each(&self) -> Vec<Self> {
        let of = |&kernel: &&'a Kernel| Self { kernels: vec![kernel], architecture: self.architecture };
        self.kernels.iter().map(of).collect()
    }
}

/// Calls a function for each unit of these kernels, and returns the results of all calls.
pub(super) fn for_each_unit<'a, T: Send>(
    kernels: &'a [Kernel],
    architectures: &[&'a str],
    call: impl Fn(&CompilationUnit<'a>) -> Vec<T> + Sync,
) -> Vec<T> {
    let mut by_files: BTreeMap<Vec<&str>, Vec<&'a Kernel>> = BTreeMap::new();
    for kernel in kernels {
        by_files.entry(kernel.files.iter().map(|file| file.name).collect()).or_default().push(kernel);
    }
    let units = by_files.values().flat_map(|kernels| kernels.chunks(TOGETHER)).flat_map(|kernels| {
        let of = move |&architecture| CompilationUnit { kernels: kernels.to_vec(), architecture };
        architectures.iter().map(of)
    });
    let units = Mutex::new(units);
    let next = || units.lock().expect("no thread panics with it").next();
    let take = || std::iter::from_fn(next).flat_map(|unit| call(&unit)).collect::<Vec<_>>();
    thread::scope(|scope| {
        let other = scope.spawn(take);
        let mut all = take();
        all.extend(other.join().expect("it does not panic"));
        all
    })
}
