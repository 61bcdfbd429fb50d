//! Reading at indices, and the gradients of that, summed in one order.

use super::{Step, Unplaced, missing};
use crate::program::Instruction;
use ir::ops::indexing::{Gather, GatherElements, GatherGrad, GatherNd};
use ir::ops::scatter::{GatherElementsGrad, GatherNdGrad};
use ir::{Diagnostic, Op};

pub(super) fn gather(op: &Gather, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`gather`"))
}

pub(super) fn gather_grad(op: &GatherGrad, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`gather_grad`"))
}

pub(super) fn gather_elements(
    op: &GatherElements,
    instruction: &Instruction,
) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`gather_elements`"))
}

pub(super) fn gather_elements_grad(
    op: &GatherElementsGrad,
    instruction: &Instruction,
) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`gather_elements_grad`"))
}

pub(super) fn gather_nd(op: &GatherNd, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`gather_nd`"))
}

pub(super) fn gather_nd_grad(op: &GatherNdGrad, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`gather_nd_grad`"))
}

/// The f32 numbers of scratch that the kernels take.
pub(super) fn scratch(op: &Op, operands: &[Unplaced], results: &[Unplaced]) -> usize {
    let _ = (op, operands, results);
    0
}
