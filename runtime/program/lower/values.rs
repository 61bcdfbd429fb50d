//! The numbers of values. A value has the number of its own buffer, before buffers share places.

use super::draft::{BufferId, BufferKind, Draft, Drafts, Located};
use super::place::root;
use crate::{InstructionValues, Section, Values};

/// Returns the values of a drafted program. `last_beside` has for each instruction the last one that may run beside it.
pub(super) fn of(drafts: &Drafts, scratch: &[Option<Located>], last_beside: &[usize]) -> Values {
    let Drafts { module, buffers, instructions, .. } = drafts;
    let number = |located: &Located| located.value as u32;
    let mut sections = [vec![], vec![], vec![]];
    let first = Section::ALL.map(|(section, _)| first_of(instructions, section));
    for (index, (draft, scratch)) in instructions.iter().zip(scratch).enumerate() {
        sections[draft.section as usize].push(InstructionValues {
            operands: draft.operands.iter().map(number).collect(),
            results: draft.results.iter().map(number).collect(),
            scratch: scratch.as_ref().map(number),
            last_beside: last_beside[index] - first[draft.section as usize],
        });
    }
    // The first buffers are those of states and then of inputs, in their order.
    let states = module.states.values().enumerate().filter(|(_, state)| drafts.is_here(state.input));
    let inputs = (0..module.inputs.len()).map(|index| (module.states.len() + index) as u32);
    let renewal = |buffer: BufferId| {
        let state = buffers[buffer].merged.map(|_| root(buffers, buffer))?;
        matches!(buffers[state].kind, BufferKind::State(_)).then_some((buffer as u32, state as u32))
    };
    Values {
        sections,
        states: states.map(|(index, _)| index as u32).collect(),
        inputs: inputs.collect(),
        outputs: drafts.outputs.iter().flatten().map(number).collect(),
        constants: drafts.constants.iter().map(|(buffer, _)| *buffer as u32).collect(),
        renewals: (0..buffers.len()).filter_map(renewal).collect(),
    }
}

fn first_of(instructions: &[Draft], section: Section) -> usize {
    instructions.partition_point(|draft| draft.section < section)
}
