//! Rotary position embeddings.

use super::{Step, missing};
use crate::program::Instruction;
use ir::Diagnostic;
use ir::ops::rotary::Rotary;

pub(super) fn rotary(op: &Rotary, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`rotary`"))
}
