//! The CPU backend's answers to lowering.

use super::bf16::Bf16Products;
use super::{commands, kernel_contracts};
use ir::{Diagnostic, Op};
use program::backend::{Backend, ChainLimits};
use program::commands::CommandList;
use program::kernel_contract::KernelContract;
use program::{Program, Target};
use std::sync::Arc;

/// The processor as a backend of lowering.
struct CpuBackend(Bf16Products);

/// The processor, with products that every processor computes alike.
pub const TARGET: Target = Target::new(&CpuBackend(Bf16Products::Widened));
/// The processor, with products of bf16 by AMX.
pub const AMX: Target = Target::new(&CpuBackend(Bf16Products::Amx));
/// The processor, with products of bf16 by AVX-512.
pub const AVX512: Target = Target::new(&CpuBackend(Bf16Products::Avx512));

impl Bf16Products {
    /// Returns the target that multiplies so.
    pub const fn target(self) -> Target {
        match self {
            Self::Widened => TARGET,
            Self::Amx => AMX,
            Self::Avx512 => AVX512,
        }
    }

    /// Returns the way in which the target of this name multiplies. `None` if it is not a processor.
    pub fn of(target: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|products| products.name() == target)
    }

    /// Returns the name of the target that multiplies so.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Widened => "cpu",
            Self::Amx => "cpu-amx",
            Self::Avx512 => "cpu-avx512-bf16",
        }
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn host(&self) -> Target {
        self.0.target()
    }

    fn kernel_contract<'op>(&self, op: &'op Op, operands: usize) -> KernelContract<'op> {
        kernel_contracts::of(op, operands, self.0)
    }

    /// The blocks of 16 operators and 4 results stay in the first-level cache.
    fn chain_limits(&self) -> ChainLimits {
        ChainLimits { operators: 16, results: 4 }
    }

    fn takes_parts_in_place(&self) -> bool {
        true
    }

    /// No: a copy is work for the cores that compute.
    fn copies_beside(&self) -> bool {
        false
    }

    fn commands(&self, program: &Arc<Program>, microbatches: u64) -> Result<CommandList, Diagnostic> {
        Ok(commands::commands(program, microbatches))
    }
}
