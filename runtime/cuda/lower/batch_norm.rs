//! Batch norm: statistics, normalization, gradient.

use super::{Step, Unplaced, missing};
use crate::program::Instruction;
use ir::ops::batch_norm::{BatchNorm, BatchNormGrad, BatchStatistics};
use ir::{Diagnostic, Op};

pub(super) fn normalize(op: &BatchNorm, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`normalize`"))
}

pub(super) fn gradient(op: &BatchNormGrad, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`gradient`"))
}

pub(super) fn statistics(op: &BatchStatistics, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`statistics`"))
}

/// The f32 numbers of scratch that the kernels take.
pub(super) fn scratch(op: &Op, operands: &[Unplaced], results: &[Unplaced]) -> usize {
    let _ = (op, operands, results);
    0
}
