//! Attention and its gradient.

use super::{Step, Unplaced, missing};
use crate::program::Instruction;
use ir::ops::attention::{Attention, AttentionGrad};
use ir::{Diagnostic, Op};

pub(super) fn attention(op: &Attention, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`attention`"))
}

pub(super) fn attention_grad(op: &AttentionGrad, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`attention_grad`"))
}

/// The f32 numbers of scratch that the kernels take.
pub(super) fn scratch(op: &Op, operands: &[Unplaced], results: &[Unplaced]) -> usize {
    let _ = (op, operands, results);
    0
}
