//! `top_k`: the indices of the largest or smallest elements along a dim.

use super::source::{KernelDraft, RANKING};
use ir::ops::ranking::TopK;
use program::Instruction;

/// Lanes of a warp.
const WARP: usize = 32;

/// Launches a group of lanes for each row. A group is one lane if neighbouring threads read neighbouring rows, and up to a warp if the
/// elements of a row are neighbours.
pub(super) fn top_k(op: &TopK, instruction: &Instruction) -> KernelDraft {
    let (x, out) = (&instruction.operands[0], &instruction.results[0]);
    let (before, after) = x.layout.sizes.split_at(op.dim as usize);
    let (outer, size, inner): (usize, usize, usize) =
        (before.iter().product(), after[0], after[1..].iter().product());
    let group = if inner == 1 { size.next_power_of_two().min(WARP) } else { 1 };
    let mut run = KernelDraft::of("top_k", &RANKING);
    let (source, target) = (run.reads(x), run.writes(out));
    let TopK { count, largest, .. } = op;
    run.line(format!(
        "ranking::top_k<{outer}, {size}, {inner}, {count}, {group}, {largest}>({source}, {target});"
    ));
    run.threads(outer * inner * group)
}
