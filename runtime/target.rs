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

    /// Returns the backend for which programs for this kind of device are lowered.
    pub(crate) fn backend(self) -> &'static dyn Backend {
        match self {
            Self::Cpu => &cpu::CpuBackend,
            Self::Cuda => &cuda::CudaBackend,
        }
    }

    /// Returns the rewrites that make a program ready for [`crate::lower::lower`], as the text of a pipeline of passes.
    pub fn rewrites(self) -> &'static str {
        self.backend().rewrites()
    }

    /// Returns the target of a kind of device.
    pub fn of(kind: DeviceKind) -> Self {
        match kind {
            DeviceKind::Cpu => Self::Cpu,
            DeviceKind::Gpu => Self::Cuda,
        }
    }

    /// Returns the commands that the device of the program's target gets for a step of this number of microbatches.
    ///
    /// # Errors
    /// An operator without a kernel.
    pub fn commands(program: &Arc<Program>, microbatches: u64) -> Result<CommandList, Diagnostic> {
        program.target.backend().commands(program, microbatches)
    }

    /// Returns the facts about its kernels that the rewrites ask for. `None` if the target has no rewrites.
    pub fn kernels(self) -> Option<&'static dyn Kernels> {
        self.backend().kernels()
    }
}

/// The number of multiprocessors of a GPU. Kernels whose blocks share work choose their number of blocks by it.
///
/// A program carries this number, and both scratch and grids are sized for it. So a program for a small GPU also runs on a large one, but
/// leaves a part of it idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiprocessors(pub u32);

impl Default for Multiprocessors {
    /// Returns 132, the number of an H100 and an H200, for programs whose GPU is not known.
    fn default() -> Self {
        Self(132)
    }
}
