//! Rows times the matrix of the expert each belongs to.

use super::{Step, Unplaced, missing};
use crate::program::Instruction;
use ir::ops::experts::{Experts, ExpertsGrad};
use ir::{Diagnostic, Op};

pub(super) fn experts(op: &Experts, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`experts`"))
}

pub(super) fn experts_grad(op: &ExpertsGrad, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`experts_grad`"))
}

/// The f32 numbers of scratch that the kernels take.
pub(super) fn scratch(op: &Op, operands: &[Unplaced], results: &[Unplaced]) -> usize {
    let _ = (op, operands, results);
    0
}
