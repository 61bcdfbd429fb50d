//! Pooling over windows.

use super::{Step, missing};
use crate::program::Instruction;
use ir::Diagnostic;
use ir::ops::pool::{AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad, MaxPoolIndices};

pub(super) fn avg_pool(op: &AvgPool, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`avg_pool`"))
}

pub(super) fn avg_pool_grad(op: &AvgPoolGrad, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`avg_pool_grad`"))
}

pub(super) fn max_pool(op: &MaxPool, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`max_pool`"))
}

pub(super) fn max_pool_grad(op: &MaxPoolGrad, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`max_pool_grad`"))
}

pub(super) fn max_pool_indices(
    op: &MaxPoolIndices,
    instruction: &Instruction,
) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`max_pool_indices`"))
}
