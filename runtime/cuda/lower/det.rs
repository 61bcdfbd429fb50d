//! Determinants.

use super::{Step, missing};
use crate::program::Instruction;
use ir::Diagnostic;
use ir::ops::det::Det;

pub(super) fn det(op: &Det, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`det`"))
}
