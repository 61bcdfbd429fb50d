//! A backend without a device, for tests of lowering alone: every kernel takes any strides, and elementwise ones work in place.

use crate::backend::{Backend, ChainLimits, EpilogueLimits, Target};
use crate::commands::CommandList;
use crate::contraction::ContractionPlan;
use crate::kernel_contract::{KernelContract, Unplaced};
use crate::{Exchange, Program};
use ir::{Diagnostic, Kernels, Op};
use std::sync::Arc;

/// The backend. Lowering may begin copies from the host early, or not.
pub(super) struct Plain {
    copies_beside: bool,
}

/// A device that is the host.
pub(super) const PROCESSOR: Target = Target::new(&Plain { copies_beside: false });
/// A device beside the host.
pub(super) const ACCELERATOR: Target = Target::new(&Plain { copies_beside: true });

impl Backend for Plain {
    fn name(&self) -> &'static str {
        if self.copies_beside { "accelerator" } else { "processor" }
    }

    fn host(&self) -> Target {
        PROCESSOR
    }

    fn kernel_contract<'op>(&self, op: &'op Op, _: usize) -> KernelContract<'op> {
        match op {
            Op::Unary(_) => KernelContract::elementwise().in_place(&[(0, 0)]),
            Op::Binary(_) => KernelContract::elementwise().in_place(&[(0, 0), (1, 0)]),
            Op::Reduce(_) => KernelContract::strided().accumulating(),
            _ => KernelContract::strided(),
        }
    }

    fn exchange_scratch(&self, _: &Exchange, _: &[Unplaced], _: &[Unplaced]) -> usize {
        0
    }

    fn chain_limits(&self) -> ChainLimits {
        ChainLimits { operators: 16, results: 4 }
    }

    fn rewrites(&self) -> &'static str {
        ""
    }

    fn kernels(&self) -> Option<&'static dyn Kernels> {
        None
    }

    fn epilogues(&self) -> Option<EpilogueLimits> {
        None
    }

    fn multiplies(&self, _: &ContractionPlan) -> bool {
        true
    }

    fn pads_rows(&self) -> bool {
        false
    }

    fn takes_parts_in_place(&self) -> bool {
        true
    }

    fn copies_beside(&self) -> bool {
        self.copies_beside
    }

    fn keeps_in_update(&self, _: u64) -> bool {
        false
    }

    fn commands(&self, _: &Arc<Program>, _: u64) -> Result<CommandList, Diagnostic> {
        Err(Diagnostic::new("no device runs the program"))
    }
}
