//! Dropout, with the numbers of the interpreter.

use super::{Step, missing};
use crate::program::Instruction;
use ir::Diagnostic;
use ir::ops::dropout::Dropout;

pub(super) fn dropout(op: &Dropout, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let _ = (op, instruction);
    Err(missing("`dropout`"))
}
