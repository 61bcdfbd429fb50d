//! The updates of optimizers.

use super::{Step, missing};
use crate::program::Instruction;
use ir::Diagnostic;
use ir::ops::optimizer::{Adagrad, Adam, Sgd};

pub(super) fn adam(op: &Adam, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`adam`"))
}

pub(super) fn adagrad(op: &Adagrad, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`adagrad`"))
}

pub(super) fn sgd(op: &Sgd, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`sgd`"))
}
