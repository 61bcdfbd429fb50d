//! The GPU backend, as lowering and the rewrites see it.

use super::cudnn;
use super::lower::{self, kernel_contracts};
use ir::{DType, Diagnostic, Kernels, Op};
use program::backend::{Backend, ChainLimits, Declined, EpilogueLimits};
use program::commands::CommandList;
use program::contraction::ContractionPlan;
use program::kernel_contract::{KernelContract, Unplaced, WritableStrides};
use program::{Exchange, Program, Target};
use std::sync::Arc;

/// NVIDIA's GPUs and their stand-in, as a backend.
#[derive(Debug)]
struct CudaBackend;

/// NVIDIA's GPUs and their stand-in.
pub const TARGET: Target = Target::new(&CudaBackend);

/// The largest buffer, in bytes, that the update keeps to its end. If no place of small buffers is used twice, one launch computes the
/// norms of all gradients.
const KEPT_IN_UPDATE: u64 = 4096;

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn host(&self) -> Target {
        cpu::TARGET
    }

    fn kernel_contract<'op>(&self, op: &'op Op, operands: usize) -> KernelContract<'op> {
        kernel_contracts::of(op, operands)
    }

    fn exchange_scratch(&self, exchange: &Exchange, operands: &[Unplaced], results: &[Unplaced]) -> usize {
        lower::exchange_scratch(exchange, operands, results)
    }

    fn chain_limits(&self) -> ChainLimits {
        ChainLimits { operators: 16, results: 4 }
    }

    fn rewrites(&self) -> &'static str {
        "absorb join"
    }

    fn kernels(&self) -> Option<&'static dyn Kernels> {
        Some(&CudaBackend)
    }

    /// cuBLASLt has GELU only for half types.
    fn epilogues(&self) -> Option<EpilogueLimits> {
        Some(EpilogueLimits { row_bytes: 4, activated: &[DType::F16, DType::BF16], argument_row_bytes: 16 })
    }

    /// A matrix needs one stride between all its rows and one between all its columns, and one of these strides must be 1.
    fn multiplies(&self, plan: &ContractionPlan) -> bool {
        lower::batches(plan).is_some()
    }

    fn pads_rows(&self) -> bool {
        true
    }

    /// Kernels read their operands 16 bytes at a time from the starts of buffers, and NCCL exchanges contiguous pieces.
    fn takes_parts_in_place(&self) -> bool {
        false
    }

    fn copies_beside(&self) -> bool {
        true
    }

    fn keeps_in_update(&self, bytes: u64) -> bool {
        bytes <= KEPT_IN_UPDATE
    }

    fn commands(&self, program: &Arc<Program>, microbatches: u64) -> Result<CommandList, Diagnostic> {
        Ok(super::commands::commands(&lower::lower(program.clone())?, microbatches))
    }

    /// The instructions that do not go to cuDNN, though it is installed.
    fn declined(&self, program: &Program) -> Vec<Declined> {
        cudnn::declined(program)
    }
}

/// The number of operands decides only which layouts a kernel reads, so this implementation passes 0.
impl Kernels for CudaBackend {
    fn target(&self) -> &'static str {
        "cuda"
    }

    fn reads_half(&self, op: &Op, operand: usize) -> bool {
        self.kernel_contract(op, 0).reads_half(operand)
    }

    fn writes_as(&self, op: &Op, result: usize, made: DType, to: DType) -> bool {
        self.kernel_contract(op, 0).writes_as(result, made, to)
    }

    fn writes_anywhere(&self, op: &Op) -> bool {
        self.kernel_contract(op, 0).can_write(WritableStrides::Any)
    }
}
