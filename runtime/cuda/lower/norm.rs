//! Layer norm and RMS norm, and their gradients.

use super::{Step, Unplaced, missing};
use crate::program::Instruction;
use ir::ops::norm::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad};
use ir::{Diagnostic, Op};

pub(super) fn layer_norm(op: &LayerNorm, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`layer_norm`"))
}

pub(super) fn layer_norm_grad(
    op: &LayerNormGrad,
    instruction: &Instruction,
) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`layer_norm_grad`"))
}

pub(super) fn rms_norm(op: &RmsNorm, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`rms_norm`"))
}

pub(super) fn rms_norm_grad(op: &RmsNormGrad, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`rms_norm_grad`"))
}

/// The f32 numbers of scratch that the kernels take.
pub(super) fn scratch(op: &Op, operands: &[Unplaced], results: &[Unplaced]) -> usize {
    let _ = (op, operands, results);
    0
}
