//! Determinants.

use super::source::{BLOCK, DET, KernelDraft, address};
use super::{Multiprocessors, Unplaced};
use ir::Op;
use ir::ops::det::Det;
use program::Instruction;
use program::layout::Layout;

/// The most rows of a matrix that registers hold, and that shared memory holds.
const IN_REGISTERS: usize = 5;
const IN_SHARED: usize = 76;

pub(super) fn det(_: &Det, instruction: &Instruction) -> KernelDraft {
    let (x, out) = (&instruction.operands[0], &instruction.results[0]);
    let (count, n) = (out.layout.len(), rows(&x.layout));
    let mut run = KernelDraft::of("det", &DET);
    let (source, target) = (run.reads(x), run.writes(out));
    if n <= IN_REGISTERS {
        run.line(format!("det::by_thread<{count}, {n}>({source}, {target});"));
        return run.threads(count);
    }
    match &instruction.scratch {
        None => run.line(format!("det::by_block<{n}>({source}, {target});")),
        Some(scratch) => {
            let scratch = run.parameter("double*", address(scratch));
            run.line(format!("det::in_scratch<{n}>({source}, {scratch}, {target});"));
        }
    }
    // A row of up to 32 elements is processed by one warp; more warps would wait for each other.
    run.blocks(count, if n <= 32 { 32 } else { BLOCK })
}

fn rows(layout: &Layout) -> usize {
    layout.sizes.last().copied().unwrap_or(0)
}

/// Returns the f32 numbers of scratch that the kernel takes: matrices in f64 that shared memory cannot hold.
pub(super) fn scratch(_: &Op, operands: &[Unplaced], _: &[Unplaced], _: Multiprocessors) -> usize {
    let x = &operands[0].layout;
    if rows(x) > IN_SHARED { 2 * x.len() } else { 0 }
}
