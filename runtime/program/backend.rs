//! The interface between lowering and backends: every question that lowering asks about the device of a program.
//!
//! Each backend implements [`Backend`] once, and offers the implementation as a [`Target`]. Lowering and its callers pass a target on, and
//! name no backend.

use crate::commands::CommandList;
use crate::contraction::ContractionPlan;
use crate::kernel_contract::{KernelContract, Unplaced};
use crate::{Exchange, Program};
use ir::{DType, Diagnostic, Kernels, Op, Tier};
use serde::Serialize;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A kind of device, as lowering sees it. A function with a default asks for an ability that a backend need not have.
pub trait Backend: Sync {
    /// Returns the name of the kind of device. No other backend has the same.
    fn name(&self) -> &'static str;

    /// Returns the target whose kernels run the nodes that compute on the host of this device.
    fn host(&self) -> Target;

    /// Returns the contract of the kernel that runs an operator with this number of operands.
    fn kernel_contract<'op>(&self, op: &'op Op, operands: usize) -> KernelContract<'op>;

    /// Returns the number of f32 elements of scratch that an exchange with other devices takes.
    fn exchange_scratch(&self, _exchange: &Exchange, _operands: &[Unplaced], _results: &[Unplaced]) -> usize {
        0
    }

    /// Returns the limits of a chain of elementwise operators.
    fn chain_limits(&self) -> ChainLimits;

    /// Returns the passes that rewrite a program for this backend before it is lowered, as the text of a pipeline.
    fn rewrites(&self) -> &'static str {
        ""
    }

    /// Returns the facts about kernels that these passes ask for. `None` if there are no such passes.
    fn kernels(&self) -> Option<&'static dyn Kernels> {
        None
    }

    /// Returns the limits of the epilogues of a multiplication. `None` if multiplications have no epilogues.
    fn epilogues(&self) -> Option<EpilogueLimits> {
        None
    }

    /// Returns whether the backend's matrix multiplication computes a contraction of tensors with the layouts of this plan. If not,
    /// lowering copies operands first, where that pays.
    fn multiplies(&self, _plan: &ContractionPlan) -> bool {
        true
    }

    /// Whether the rows of half-precision products begin at multiples of 16 bytes. Multiplications then read and write them faster.
    fn pads_rows(&self) -> bool {
        false
    }

    /// Whether kernels read and write a device's part of a tensor in place, though its address then depends on the device, and a gather
    /// keeps the part that already lies in its place in the result. If not, parts are copied.
    fn takes_parts_in_place(&self) -> bool {
        false
    }

    /// Whether copies from the host run beside kernels, so that it pays to begin them early.
    fn copies_beside(&self) -> bool {
        false
    }

    /// Whether a buffer of this size that the update accesses lives through the whole update. Instructions whose buffers share no place can
    /// run as one.
    fn keeps_in_update(&self, _bytes: u64) -> bool {
        false
    }

    /// Returns the commands that the device is given for a step of this number of microbatches.
    ///
    /// # Errors
    /// An operator without a kernel.
    fn commands(&self, program: &Arc<Program>, microbatches: u64) -> Result<CommandList, Diagnostic>;

    /// Returns the instructions that a library of the device's vendor could run and does not: one entry for each kind and reason. A backend
    /// without such a library has none.
    fn declined(&self, _program: &Program) -> Vec<Declined> {
        vec![]
    }
}

/// Instructions of one kind that a library does not run, for one reason. `inspect` writes them as JSON: the names of the fields are
/// the keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Declined {
    /// The kind: `attention`, `gradient of attention` or `convolution`.
    pub kind: &'static str,
    /// The reason.
    pub reason: String,
    /// The number of these instructions in one run of each section.
    pub count: usize,
}

/// A kind of device that programs are lowered for, by its backend.
#[derive(Clone, Copy)]
pub struct Target(&'static dyn Backend);

impl Target {
    /// The target that a backend serves.
    pub const fn new(backend: &'static dyn Backend) -> Self {
        Self(backend)
    }

    /// Whether the device is the host: its memory is that of the process.
    pub fn is_host(self) -> bool {
        self.host() == self
    }

    /// Returns the target whose kernels run the nodes of a place.
    #[must_use]
    pub fn at(self, place: Tier) -> Self {
        match place {
            Tier::Device => self,
            Tier::Host | Tier::Disk => self.host(),
        }
    }
}

impl Deref for Target {
    type Target = dyn Backend;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Target {}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The limits of a chain of elementwise operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainLimits {
    /// The largest number of operators.
    pub operators: usize,
    /// The largest number of results.
    pub results: usize,
}

/// The limits of the epilogues of a multiplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpilogueLimits {
    /// The alignment of each row of a matrix, in bytes.
    pub row_bytes: u64,
    /// The types of results to which an activation can be applied.
    pub activated: &'static [DType],
    /// The alignment of each row of an activation's argument, in bytes, if the argument is stored or read.
    pub argument_row_bytes: u64,
}
