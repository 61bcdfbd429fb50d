//! Writing at indices, in one order.

use super::{Step, missing};
use crate::program::Instruction;
use ir::Diagnostic;
use ir::ops::scatter::{ScatterElements, ScatterNd};

pub(super) fn scatter_elements(
    op: &ScatterElements,
    instruction: &Instruction,
) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`scatter_elements`"))
}

pub(super) fn scatter_nd(op: &ScatterNd, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`scatter_nd`"))
}
