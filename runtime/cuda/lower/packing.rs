//! Packs bools into the bits of bytes, and unpacks them.

use super::source::{KernelDraft, PACKING};
use program::{Instruction, View};

pub(super) fn pack(instruction: &Instruction) -> KernelDraft {
    let (bools, bytes) = (&instruction.operands[0], &instruction.results[0]);
    kernel("pack", instruction, bools, bytes)
}

pub(super) fn unpack(instruction: &Instruction) -> KernelDraft {
    let (bytes, bools) = (&instruction.operands[0], &instruction.results[0]);
    kernel("unpack", instruction, bools, bytes)
}

/// Launches a thread for each byte.
fn kernel(name: &str, instruction: &Instruction, bools: &View, bytes: &View) -> KernelDraft {
    let mut run = KernelDraft::of(format!("{name}_bits"), &PACKING);
    let (source, target) = (run.reads(&instruction.operands[0]), run.writes(&instruction.results[0]));
    let (count, row) = (bytes.layout.len(), bools.layout.sizes.last().copied().unwrap_or(1));
    run.line(format!("packing::{name}<{count}, {row}>({source}, {target});"));
    run.threads(count)
}
