//! The seam between lowering and backends: all that lowering asks of the device that a program is for.
//!
//! Lowering knows a backend as this trait alone. A backend implements it once, and [`Target`](crate::target::Target) names the
//! implementation.

use crate::contraction::ContractionPlan;
use crate::kernel_contract::{KernelContract, Unplaced};
use crate::program::{Exchange, Program};
use crate::simulator::CommandList;
use crate::target::Target;
use ir::{DType, Diagnostic, Kernels, Op, Tier};
use std::sync::Arc;

/// A kind of device, as lowering sees it.
pub(crate) trait Backend: Sync {
    /// Returns the contract of the kernel that runs an operator with so many operands.
    fn kernel_contract<'op>(&self, op: &'op Op, operands: usize) -> KernelContract<'op>;

    /// Returns the f32 numbers of scratch that an exchange with other devices takes.
    fn exchange_scratch(&self, exchange: &Exchange, operands: &[Unplaced], results: &[Unplaced]) -> usize;

    /// Returns the limits of a chain of elementwise operators.
    fn chain_limits(&self) -> ChainLimits;

    /// Returns the passes that rewrite a program for this backend before it is lowered, as the text of a pipeline.
    fn rewrites(&self) -> &'static str;

    /// Returns the facts about kernels that these passes ask for. `None` if there are no such passes.
    fn kernels(&self) -> Option<&'static dyn Kernels>;

    /// Returns the limits of the epilogues of a multiplication. `None` if multiplications have no epilogues.
    fn epilogues(&self) -> Option<EpilogueLimits>;

    /// Whether its matrix multiplication computes a contraction of tensors that lie so. Lowering copies other operands, where
    /// that pays.
    fn multiplies(&self, plan: &ContractionPlan) -> bool;

    /// Whether the rows of half-precision products begin at multiples of 16 bytes, so that multiplications read and write them
    /// faster.
    fn pads_rows(&self) -> bool;

    /// Whether a kernel takes a device's part of a tensor where it lies, though its address then depends on the device; and
    /// whether a gather leaves a part in place that is where it belongs. Else parts are copied.
    fn takes_parts_in_place(&self) -> bool;

    /// Whether copies from the host run beside kernels, so that it pays to begin them early.
    fn copies_beside(&self) -> bool;

    /// Whether a buffer of so many bytes that the update accesses lives through the whole update. Instructions whose buffers
    /// share no place can run as one.
    fn keeps_in_update(&self, bytes: u64) -> bool;

    /// Returns the commands that the device is given for a step of so many microbatches.
    ///
    /// # Errors
    /// An operator without a kernel.
    fn commands(&self, program: &Arc<Program>, microbatches: u64) -> Result<CommandList, Diagnostic>;
}

impl dyn Backend {
    /// The backend whose kernels run the nodes of a place: on the host those of the processor.
    pub(crate) fn at(&'static self, place: Tier) -> &'static dyn Backend {
        match place {
            Tier::Device => self,
            Tier::Host | Tier::Disk => Target::Cpu.backend(),
        }
    }
}

/// The limits of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainLimits {
    /// The most operators.
    pub(crate) operators: usize,
    /// The most results.
    pub(crate) results: usize,
}

/// The limits of the epilogues of a multiplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpilogueLimits {
    /// The bytes at a multiple of which each row of a matrix begins.
    pub(crate) row_bytes: u64,
    /// The types of results that an activation is applied to.
    pub(crate) activated: &'static [DType],
    /// The bytes at a multiple of which each row of an activation's argument begins, where that is stored or read.
    pub(crate) argument_row_bytes: u64,
}
