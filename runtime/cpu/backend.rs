//! The CPU backend's answers to lowering.

use super::{commands, kernel_contracts};
use ir::{Diagnostic, Op};
use program::backend::{Backend, ChainLimits};
use program::commands::CommandList;
use program::kernel_contract::KernelContract;
use program::{Program, Target};
use std::sync::Arc;

/// The processor as a backend of lowering.
struct CpuBackend;

/// The processor.
pub const TARGET: Target = Target::new(&CpuBackend);

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn host(&self) -> Target {
        TARGET
    }

    fn kernel_contract<'op>(&self, op: &'op Op, operands: usize) -> KernelContract<'op> {
        kernel_contracts::of(op, operands)
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
