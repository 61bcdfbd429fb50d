//! The kinds of devices, and the backend of each: the only place that names the backends to lowering.

use crate::backend::Backend;
use crate::program::Program;
use crate::simulator::CommandList;
use crate::{cpu, cuda};
use ir::machine::DeviceKind;
use ir::{Diagnostic, Kernels};
use std::sync::Arc;

/// A kind of device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// The CPU backend.
    #[default]
    Cpu,
    /// A GPU, or its stand-in.
    Cuda,
}

impl Target {
    /// Every target, with its name.
    pub const ALL: [(Self, &'static str); 2] = [(Self::Cpu, "cpu"), (Self::Cuda, "cuda")];

    /// The backend that programs for this kind of device are lowered for.
    pub(crate) fn backend(self) -> &'static dyn Backend {
        match self {
            Self::Cpu => &cpu::CpuBackend,
            Self::Cuda => &cuda::CudaBackend,
        }
    }

    /// The rewrites that make a program ready for [`crate::lower::lower`], as the text of a pipeline of passes.
    pub fn rewrites(self) -> &'static str {
        self.backend().rewrites()
    }

    /// The target of a kind of device.
    pub fn of(kind: DeviceKind) -> Self {
        match kind {
            DeviceKind::Cpu => Self::Cpu,
            DeviceKind::Gpu => Self::Cuda,
        }
    }

    /// The commands that a device is given for a step of so many microbatches of a program, which is for its target.
    ///
    /// # Errors
    /// An operator without a kernel.
    pub fn commands(program: &Arc<Program>, microbatches: u64) -> Result<CommandList, Diagnostic> {
        program.target.backend().commands(program, microbatches)
    }

    /// The facts about its kernels that the rewrites ask for. `None` for a target that wants no rewrites.
    pub fn kernels(self) -> Option<&'static dyn Kernels> {
        self.backend().kernels()
    }
}

/// The number of a GPU's multiprocessors: its size, by which kernels whose blocks share work choose their number of blocks.
///
/// Scratch is sized and grids are chosen for the same number, which a program carries with it: a program for a small GPU runs
/// on a large one too, but leaves a part of it idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiprocessors(pub u32);

impl Default for Multiprocessors {
    /// 132, as an H100 and an H200 have: for programs whose GPU is not known.
    fn default() -> Self {
        Self(132)
    }
}
