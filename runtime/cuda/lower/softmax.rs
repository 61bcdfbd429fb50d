//! Softmax along any dim, its logarithm, its gradient.

use super::{Step, missing};
use crate::program::Instruction;
use ir::Diagnostic;
use ir::ops::softmax::{LogSoftmax, Softmax, SoftmaxGrad};

pub(super) fn softmax(op: &Softmax, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`softmax`"))
}

pub(super) fn log_softmax(op: &LogSoftmax, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`log_softmax`"))
}

pub(super) fn softmax_grad(op: &SoftmaxGrad, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`softmax_grad`"))
}
