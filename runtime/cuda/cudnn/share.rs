//! Divides attention into shares that run one after the other. A share is a part of the batch, or, if that is not small enough, a
//! part of the heads of one sample. A share needs only its part of the room besides the arena.

use ir::Op;
use program::{Instruction, Kernel, View};

/// Returns all numbers of equal shares into which an instruction may be divided, in ascending order.
pub(crate) fn counts(instruction: &Instruction) -> Vec<usize> {
    let Some([batch, groups]) = sizes(instruction) else { return vec![1] };
    let divisors = |number: usize| (1..=number).filter(move |count| number.is_multiple_of(*count));
    let of_heads = divisors(groups).skip(1).map(|count| batch * count);
    divisors(batch).chain(of_heads).collect()
}

/// Returns attention's batch size and its number of key-value heads. The heads that share a key-value head stay in one share.
fn sizes(instruction: &Instruction) -> Option<[usize; 2]> {
    match &instruction.kernel {
        Kernel::Op(Op::Attention(_) | Op::AttentionGrad(_)) => {
            let keys = &instruction.operands[1].layout.sizes;
            Some([keys[0], keys[1]])
        }
        _ => None,
    }
}

/// Returns `count` equal shares of an instruction; `count` is one of [`counts`]. All shares have the instruction's scratch.
pub(crate) fn shares(instruction: &Instruction, count: usize) -> Vec<Instruction> {
    let Some([batch, _]) = sizes(instruction).filter(|_| count > 1) else { return vec![instruction.clone()] };
    // More shares than samples are shares of each sample's heads.
    let (of_batch, of_heads) = (count.min(batch), count.div_ceil(batch));
    let share = |index: usize| {
        let mut share = instruction.clone();
        let cut = |view: &mut View| {
            // Dim 0 counts samples, dim 1 heads or key-value heads.
            for (dim, count, index) in [(0, of_batch, index / of_heads), (1, of_heads, index % of_heads)] {
                let size = view.layout.sizes[dim] / count;
                view.layout = view.layout.slice(dim, (index * size) as i64, 1, size);
            }
        };
        share.operands.iter_mut().chain(&mut share.results).for_each(cut);
        share
    };
    (0..count).map(share).collect()
}
