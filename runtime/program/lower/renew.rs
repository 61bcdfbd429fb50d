//! Casts of weights that the update renews: an optimizer writes the half-precision copy of a weight beside the new weight, so the next step
//! need not cast it.
//!
//! The copy is made from the same number with the same rounding, so it equals the cast. A weight takes part if its optimizer writes it in
//! place. An update that is skipped writes a copy of the old weight.

use super::draft::{BufferId, BufferKind, Draft, Drafts, Located};
use crate::layout::Layout;
use crate::{Kernel, Section};
use ir::{DType, Op};
use std::collections::BTreeMap;

/// Makes optimizers write the casts of weights, and moves these casts to the start of `prepare`. Returns their number.
pub(super) fn weights(drafts: &mut Drafts) -> usize {
    let mut updates = updates(drafts);
    let last_reader = last_readers(drafts);
    let mut renewed = Vec::new();
    for index in 0..drafts.instructions.len() {
        let Some((state, copy)) = cast_weight(drafts, &drafts.instructions[index]) else { continue };
        // A second cast of the same weight stays, because an optimizer writes only one copy.
        let Some(update) = updates.remove(&state) else { continue };
        // An early update may run before the last reader of the cast.
        if last_reader[copy.buffer] > update {
            continue;
        }
        drafts.buffers[copy.buffer].renewed = true;
        drafts.instructions[update].results.push(copy);
        renewed.push(index);
    }
    move_to_start(&mut drafts.instructions, &renewed);
    renewed.len()
}

/// Returns for each buffer the index of the last instruction that reads it; 0 if there is none.
fn last_readers(drafts: &Drafts) -> Vec<usize> {
    let mut last = vec![0; drafts.buffers.len()];
    for (index, draft) in drafts.instructions.iter().enumerate() {
        draft.operands.iter().for_each(|operand| last[operand.buffer] = index);
    }
    last
}

/// Returns the optimizers that write a state in place, by the state's buffer.
fn updates(drafts: &Drafts) -> BTreeMap<BufferId, usize> {
    let instructions = drafts.instructions.iter().enumerate();
    let updates = instructions.filter_map(|(index, draft)| {
        let Kernel::Op(op) = &draft.kernel else { return None };
        let writes_copy = drafts.contract_at(draft.node, op, draft.operands.len()).writes_half_copy;
        let weight = drafts.buffers[draft.results.first()?.buffer].merged?;
        let is_state = matches!(drafts.buffers[weight].kind, BufferKind::State(_));
        (writes_copy && is_state && draft.section == Section::Update).then_some((weight, index))
    });
    updates.collect()
}

/// Returns the buffer of the weight that an instruction of `prepare` casts to a half type, element by element in memory order, and the
/// place of the cast.
fn cast_weight(drafts: &Drafts, draft: &Draft) -> Option<(BufferId, Located)> {
    let is_cast = match &draft.kernel {
        Kernel::Op(op) => matches!(op, Op::Cast(_)),
        Kernel::Elementwise(chain) => {
            matches!(&chain.steps[..], [step] if matches!(step.op, Op::Cast(_)))
        }
        _ => false,
    };
    let ([weight], [copy]) = (&draft.operands[..], &draft.results[..]) else { return None };
    let is_state = matches!(drafts.buffers[weight.buffer].kind, BufferKind::State(_));
    let in_order = weight.layout == Layout::dense(&weight.layout.sizes) && weight.by_rank.is_empty();
    let halves = weight.dtype == DType::F32 && matches!(copy.dtype, DType::F16 | DType::BF16);
    let renewable = is_cast && is_state && in_order && halves && draft.section == Section::Prepare;
    renewable.then(|| (weight.buffer, copy.clone()))
}

/// Moves instructions to the start, in their order.
fn move_to_start(instructions: &mut Vec<Draft>, moved: &[usize]) {
    let (mut first, mut others) = (Vec::new(), Vec::new());
    for (index, draft) in std::mem::take(instructions).into_iter().enumerate() {
        if moved.binary_search(&index).is_ok() { first.push(draft) } else { others.push(draft) }
    }
    instructions.extend(first.into_iter().chain(others));
}
