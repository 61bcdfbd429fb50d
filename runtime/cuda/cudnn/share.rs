//! Attention in shares of the batch, one after the other: each takes a share of the room besides the arena.

use crate::program::{Instruction, Kernel, View};
use ir::Op;

/// Into how many equal shares an instruction may be divided, ascending.
pub(crate) fn counts(instruction: &Instruction) -> Vec<usize> {
    let batch = match &instruction.kernel {
        Kernel::Op(Op::Attention(_) | Op::AttentionGrad(_)) => instruction.operands[0].layout.sizes[0],
        _ => 1,
    };
    (1..=batch).filter(|count| batch.is_multiple_of(*count)).collect()
}

/// So many equal shares of an instruction. All have its scratch.
pub(crate) fn shares(instruction: &Instruction, count: usize) -> Vec<Instruction> {
    let share = |index: usize| {
        let mut share = instruction.clone();
        let cut = |view: &mut View| {
            let size = view.layout.sizes[0] / count;
            view.layout = view.layout.slice(0, (index * size) as i64, 1, size);
        };
        share.operands.iter_mut().chain(&mut share.results).for_each(cut);
        share
    };
    if count == 1 { vec![instruction.clone()] } else { (0..count).map(share).collect() }
}
