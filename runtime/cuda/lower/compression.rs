//! Compression of gradients: addends and orthonormal bases.

use super::source::{COMPRESSION, KernelDraft, address};
use super::{Multiprocessors, Step, Unplaced};
use ir::ops::compression::Orthogonalize;
use ir::{Diagnostic, Op};
use program::Instruction;

/// The threads of a block, which has one matrix: a column has few rows for each thread, and every dot product waits for all threads.
const THREADS: u32 = 512;

pub(super) fn addends(instruction: &Instruction) -> KernelDraft {
    let (x, out) = (&instruction.operands[0], &instruction.results[0]);
    let (own, count) = (x.layout.len(), out.layout.len());
    let mut run = KernelDraft::of("addends", &COMPRESSION);
    let (source, target) = (run.reads(x), run.writes(out));
    run.line(format!("compression::addends<{own}, {count}>({source}, {target});"));
    run.threads(count)
}

pub(super) fn orthogonalize(instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let (x, out) = (&instruction.operands[0], &instruction.results[0]);
    let sizes = &x.layout.sizes;
    let [m, r] = [sizes[sizes.len() - 2], sizes[sizes.len() - 1]];
    let mut run = KernelDraft::of("orthogonalize", &COMPRESSION);
    let (source, target) = (run.reads(x), run.writes(out));
    let scratch = instruction.scratch.as_ref().map(address);
    let scratch = scratch.ok_or_else(|| Diagnostic::new("a kernel that orthogonalizes has no scratch"))?;
    let scratch = run.parameter("double*", scratch);
    let (attempts, epsilon) = (Orthogonalize::ATTEMPTS, Orthogonalize::EPSILON);
    run.line(format!(
        "compression::orthogonalize<{m}, {r}, {attempts}>({source}, {scratch}, {target}, {epsilon:e});"
    ));
    // Without this bound the assembler gives a thread at most 32 registers, and spills.
    Ok(vec![Step::Kernel(run.blocks(x.layout.len() / (m * r).max(1), THREADS).together(2))])
}

/// Returns the f32 numbers of scratch that the kernel takes: the columns in f64.
pub(super) fn scratch(_: &Op, operands: &[Unplaced], _: &[Unplaced], _: Multiprocessors) -> usize {
    2 * operands[0].layout.len()
}
