//! The rewrites that a target wants of a program before it is lowered, and the facts about its kernels that they ask for.

use crate::cuda::lower::{reads_half, writes_as};
use crate::lower::writes_anywhere;
use crate::program::Target;
use ir::{DType, Kernels, Op};

impl Target {
    /// Every target, with its name.
    pub const ALL: [(Self, &'static str); 2] = [(Self::Cpu, "cpu"), (Self::Cuda, "cuda")];

    /// The rewrites that make a program ready for [`crate::lower::lower`], as the text of a pipeline of passes.
    pub fn rewrites(self) -> &'static str {
        match self {
            Self::Cpu => "",
            Self::Cuda => "absorb join",
        }
    }

    /// The facts about its kernels that the rewrites ask for. `None` for a target that wants no rewrites.
    pub fn kernels(self) -> Option<&'static dyn Kernels> {
        match self {
            Self::Cpu => None,
            Self::Cuda => Some(&CudaKernels),
        }
    }
}

/// The kernels of a GPU.
#[derive(Debug)]
struct CudaKernels;

impl Kernels for CudaKernels {
    fn target(&self) -> &'static str {
        "cuda"
    }

    fn reads_half(&self, op: &Op, operand: usize) -> bool {
        reads_half(op, operand)
    }

    fn writes_as(&self, op: &Op, result: usize, made: DType, to: DType) -> bool {
        writes_as(op, result, made, to)
    }

    fn writes_anywhere(&self, op: &Op) -> bool {
        writes_anywhere(op)
    }
}
