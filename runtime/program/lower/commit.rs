//! The end of a section, or of a part of a microbatch. Outputs are protected from being overwritten, and states get their new values, in
//! place if no later instruction reads the old value.

use super::draft::{BufferId, BufferKind, Draft, Drafts, Located};
use crate::backend::Target;
use crate::layout::Layout;
use crate::{Kernel, Section, UpdateTime};
use ir::ops::collective::Collective;
use ir::timetable::ChunkPhase;
use ir::{Definition, NodeId, State, ValueId};
use std::sync::Arc;

/// Drafts the instructions at the end of a section or, in a pipeline, at the end of a part of a microbatch.
pub(super) fn finish_section(drafts: &mut Drafts, section: Section, part: Option<ChunkPhase>) {
    if section == Section::Microbatch {
        drafts.leftover_sums(part).into_iter().for_each(|value| drafts.sum_up(value, section));
    }
    report(drafts, section, part);
    let due = due_states(drafts, section, part);
    let sources: Vec<Located> = due.iter().map(|due| drafts.detached(due, section)).collect();
    let mut copies = Vec::new();
    let accesses = Accesses::of(drafts, section);
    for (due, source) in due.into_iter().zip(sources) {
        if update_in_place(drafts, &accesses, &due, &source, section) {
            drafts.buffers[source.buffer].merged = Some(due.buffer);
        } else {
            copies.push((due, source));
        }
    }
    for (due, from) in copies {
        // The new value has a number of its own, though it takes the place of the old one.
        let value = drafts.buffer(BufferKind::Result, 0);
        drafts.buffers[value].merged = Some(due.buffer);
        let to = Located::whole(due.buffer, from.dtype, Layout::dense(&from.layout.sizes));
        let to = Located { value, ..to };
        drafts.copy_to(from, to, section, due.node, due.origin);
        if due.of_microbatch {
            drafts.last_to_microbatch();
        }
    }
}

/// Sets the places of the outputs of a section. Outputs in a state's buffer are copied before the state is overwritten.
fn report(drafts: &mut Drafts, section: Section, part: Option<ChunkPhase>) {
    let module = drafts.module;
    for (index, output) in module.outputs.iter().enumerate() {
        if drafts.section_of(output.value) != section || drafts.part_of(output.value) != part {
            continue;
        }
        let Some(located) = drafts.located[output.value].clone() else { continue };
        let in_state = matches!(drafts.buffers[located.buffer].kind, BufferKind::State(_));
        let kept =
            if in_state { drafts.copy(located, section, NodeId::from_u32(0), "".into()) } else { located };
        drafts.outputs[index] = Some(kept);
    }
}

/// A state that gets a new value.
#[derive(Clone, Debug)]
pub(super) struct Due {
    /// The state's buffer.
    buffer: BufferId,
    value: ValueId,
    node: NodeId,
    origin: Arc<str>,
    /// Whether every microbatch writes a new value, although the section is `update`.
    of_microbatch: bool,
}

/// Returns the states whose new value is complete when a section ends. States of microbatch phases are written at the end of each
/// microbatch, and go from one microbatch to the next. All others are written in `update`.
fn due_states(drafts: &Drafts, section: Section, part: Option<ChunkPhase>) -> Vec<Due> {
    let module = drafts.module;
    let due = |(index, state): (usize, &State)| {
        let value = state.output.filter(|&value| value != state.input)?;
        let when = match (drafts.section_of(value), drafts.update) {
            (Section::Microbatch, UpdateTime::Late) => Section::Microbatch,
            // Early updates leave a part of backward to the section `update`, and that part may read the old value.
            (Section::Microbatch, UpdateTime::Early) | (Section::Prepare | Section::Update, _) => {
                Section::Update
            }
        };
        let (node, origin) = match module.value(value).definition {
            Definition::Node(node, _) => (node, module.node(node).origin.clone()),
            _ => (NodeId::from_u32(0), Arc::from("")),
        };
        // The first buffers are those of states, in their order.
        let of_microbatch = section == Section::Update && module.phase_of(value).is_microbatch();
        let is_due = when == section && (section != Section::Microbatch || drafts.part_of(value) == part);
        is_due.then_some(Due { buffer: index, value, node, origin, of_microbatch })
    };
    module.states.values().enumerate().filter_map(due).collect()
}

impl Drafts<'_> {
    /// Returns the place of a state's new value. A new value in another state's buffer is copied, because that buffer may be overwritten
    /// first.
    fn detached(&mut self, due: &Due, section: Section) -> Located {
        let from = self.located[due.value].clone().expect("a state's new value is live, so it was drafted");
        match self.buffers[from.buffer].kind {
            BufferKind::State(_) => {
                let copy = self.copy(from, section, due.node, due.origin.clone());
                if due.of_microbatch {
                    self.last_to_microbatch();
                }
                copy
            }
            _ => from,
        }
    }

    /// Makes the last drafted instruction, which is of the section `update`, run at the end of every microbatch.
    fn last_to_microbatch(&mut self) {
        let runs_in_it = |draft: &Draft| draft.section == Section::Microbatch || draft.of_microbatch;
        let end = self.instructions.iter().rposition(runs_in_it).map_or(0, |last| last + 1);
        if let Some(draft) = self.instructions.pop() {
            self.instructions.insert(end, Draft { of_microbatch: true, ..draft });
        }
    }
}

/// The instructions that use each buffer, by their index.
struct Accesses {
    /// The first instruction that writes the buffer, and the number of that result.
    maker: Vec<Option<(usize, usize)>>,
    /// The last instruction of the section that reads the buffer.
    last_reader: Vec<Option<usize>>,
}

impl Accesses {
    fn of(drafts: &Drafts, section: Section) -> Self {
        let count = drafts.buffers.len();
        let mut accesses = Self { maker: vec![None; count], last_reader: vec![None; count] };
        for (at, draft) in drafts.instructions.iter().enumerate() {
            for (i, result) in draft.results.iter().enumerate() {
                accesses.maker[result.buffer].get_or_insert((at, i));
            }
            if draft.section == section {
                draft.operands.iter().for_each(|operand| accesses.last_reader[operand.buffer] = Some(at));
            }
        }
        accesses
    }
}

/// Returns whether the instruction that makes a state's new value may write it over the old value.
fn update_in_place(drafts: &Drafts, accesses: &Accesses, due: &Due, new: &Located, section: Section) -> bool {
    let buffer = &drafts.buffers[new.buffer];
    let dense = new.layout == Layout::dense(&new.layout.sizes);
    let alone = buffer.bytes == new.layout.len() as u64 * new.dtype.bytes();
    if buffer.kind != BufferKind::Result || buffer.merged.is_some() || buffer.carried || !dense || !alone {
        return false;
    }
    let Some((at, result)) = accesses.maker[new.buffer] else { return false };
    let maker = &drafts.instructions[at];
    if maker.section != section {
        return false;
    }
    let whole = maker.results[result].layout == new.layout;
    whole
        && accesses.last_reader[due.buffer].is_none_or(|reader| reader <= at)
        && (0..maker.operands.len())
            .filter(|&i| maker.operands[i].buffer == due.buffer)
            .all(|i| may_overwrite(drafts.backend_of(maker), maker, i, result))
}

/// Returns whether a result may overwrite an operand: the kernel allows it, and both have the same layout.
pub(super) fn may_overwrite(backend: Target, draft: &Draft, operand: usize, result: usize) -> bool {
    let (from, to) = (&draft.operands[operand], &draft.results[result]);
    let is_same = from.layout == to.layout && from.by_rank == to.by_rank;
    if draft.accumulates || !is_same || from.dtype.bytes() != to.dtype.bytes() {
        return false;
    }
    match &draft.kernel {
        Kernel::Op(op) => backend.kernel_contract(op, draft.operands.len()).may_overwrite(operand, result),
        Kernel::Elementwise(_) => true,
        // Communicators write the sum over all devices over this device's addend. In all other collectives, other devices read the
        // operands while the results are written. A bucket may have thousands of operands, so they are counted last.
        Kernel::Collective(exchange) => {
            let is_once = || draft.operands.iter().filter(|other| other.buffer == from.buffer).count() == 1;
            exchange.collective == Collective::AllReduce && operand == result && is_once()
        }
        Kernel::Contract(_) | Kernel::Message(_) => false,
        Kernel::Copy | Kernel::Accumulate | Kernel::Part(_) => false,
    }
}
