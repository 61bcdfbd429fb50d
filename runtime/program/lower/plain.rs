//! A backend without a device, for tests of lowering alone: every kernel takes any strides, and elementwise ones work in place.

use crate::Program;
use crate::backend::{Backend, ChainLimits, Target};
use crate::commands::CommandList;
use crate::kernel_contract::KernelContract;
use ir::{Diagnostic, Op};
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

    fn chain_limits(&self) -> ChainLimits {
        ChainLimits { operators: 16, results: 4 }
    }

    fn takes_parts_in_place(&self) -> bool {
        true
    }

    fn copies_beside(&self) -> bool {
        self.copies_beside
    }

    fn commands(&self, _: &Arc<Program>, _: u64) -> Result<CommandList, Diagnostic> {
        Err(Diagnostic::new("no device runs the program"))
    }
}
