//! Combines launches of the same kernel into one: the updates of all parameters of one shape, the casts of all weights. Tensors of
//! collectives of the same kind travel together.
//!
//! Launches within a microbatch stay apart, because its instructions are examined one by one when a number is not finite. So do
//! launches of a microbatch's instructions in the update. Launches before and after an instruction that makes an output stay apart,
//! because the loop may read the output before it goes on.

use super::order::conflict;
use super::source::KernelDraft;
use super::{Draft, Step};
use crate::program::{Argument, TouchedBytes};
use program::{Instruction, Program, Section};

/// Returns the drafts with fewer launches.
pub(super) fn merged(
    program: &Program,
    section: Section,
    drafts: Vec<Draft>,
    table: &mut Vec<Argument>,
) -> Vec<Draft> {
    if section == Section::Microbatch {
        return drafts;
    }
    let ends = ends(program, section);
    let of_microbatch = |draft: &Draft| program.section(section)[draft.instructions().start].of_microbatch;
    let part =
        |draft: &Draft| (of_microbatch(draft), ends.partition_point(|&end| end < draft.instructions().end));
    let mut result: Vec<Draft> = Vec::new();
    let mut drafts = drafts.into_iter().peekable();
    while let Some(first) = drafts.peek() {
        let own = part(first);
        let stretch: Vec<Draft> = std::iter::from_fn(|| drafts.next_if(|draft| part(draft) == own)).collect();
        result.extend(if own.0 { stretch } else { within(stretch, table) });
    }
    result
}

/// Returns the indices of the instructions that begin a new stretch, ascending: instructions after one that makes an output, the first
/// instruction that runs if the casts of weights are left out, messages, and instructions after a message.
fn ends(program: &Program, section: Section) -> Vec<usize> {
    let outputs = program.outputs.iter().filter(|output| output.section == section);
    let instructions = program.section(section);
    let end = |place: TouchedBytes| {
        let makes = |instruction: &Instruction| {
            instruction.results.iter().any(|result| TouchedBytes::of(result).meets(&place))
        };
        instructions.iter().rposition(makes).map(|index| index + 1)
    };
    let mut ends: Vec<usize> = outputs.filter_map(|output| end(TouchedBytes::of(&output.view))).collect();
    ends.extend((section == Section::Prepare).then_some(program.renewed));
    let messages = instructions.iter().enumerate().filter(|(_, instruction)| instruction.message().is_some());
    ends.extend(messages.flat_map(|(index, _)| [index, index + 1]));
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Combines launches of the same kernel that nothing orders. First come launches that wait for nothing, then launches that wait for
/// those alone, and so on.
fn within(stretch: Vec<Draft>, table: &mut Vec<Argument>) -> Vec<Draft> {
    let mut levels: Vec<usize> = Vec::new();
    for (index, draft) in stretch.iter().enumerate() {
        let waits = |earlier: &usize| conflict(stretch[*earlier].touches(), draft.touches());
        let level = (0..index).filter(waits).map(|earlier| levels[earlier] + 1).max();
        levels.push(level.unwrap_or_default());
    }
    let count = levels.iter().max().map_or(0, |most| most + 1);
    let mut groups: Vec<Vec<Vec<Draft>>> = (0..count).map(|_| vec![]).collect();
    for (draft, level) in stretch.into_iter().zip(levels) {
        let alike = |group: &&mut Vec<Draft>| match (&group[0].step, &draft.step) {
            (Step::Kernel(first), Step::Kernel(run)) => first.is_like(run) && group.len() < MOST,
            (Step::Collective(first), Step::Collective(other)) => first.is_like(other),
            _ => false,
        };
        match groups[level].iter_mut().find(alike) {
            Some(group) => group.push(draft),
            None => groups[level].push(vec![draft]),
        }
    }
    in_turn(groups.into_iter().flatten().map(|group| one(group, table)).collect())
}

/// Combines consecutive launches of a single thread into one: a step has many numbers that are computed from one another.
fn in_turn(drafts: Vec<Draft>) -> Vec<Draft> {
    let mut result: Vec<Draft> = Vec::new();
    for draft in drafts {
        let last = result.pop();
        result.extend(match last {
            Some(last) => last.then(draft),
            None => vec![draft],
        });
    }
    result
}

impl Draft {
    /// Returns this draft and the next, as one if a single thread does both.
    fn then(mut self, mut next: Self) -> Vec<Self> {
        match (self.step, next.step) {
            (Step::Kernel(run), Step::Kernel(after)) if run.continues(&after) => {
                self.reads.append(&mut next.reads);
                self.writes.append(&mut next.writes);
                self.waves.append(&mut next.waves);
                vec![Self { step: Step::Kernel(run.then(after)), ..self }]
            }
            (step, after) => vec![Self { step, ..self }, Self { step: after, ..next }],
        }
    }
}

/// The most layers of blocks of a launch.
const MOST: usize = 65_535;

fn one(group: Vec<Draft>, table: &mut Vec<Argument>) -> Draft {
    let mut drafts = group.into_iter();
    let Some(mut first) = drafts.next() else { unreachable!("no group is empty") };
    let mut others: Vec<KernelDraft> = Vec::new();
    for draft in drafts {
        first.reads.extend(draft.reads);
        first.writes.extend(draft.writes);
        // Launches of the same kernel are combined before consecutive launches are, so each draft has one wave.
        first.waves[0].extend(draft.waves.into_iter().flatten());
        match (&mut first.step, draft.step) {
            (Step::Kernel(_), Step::Kernel(run)) => others.push(run),
            (Step::Collective(first), Step::Collective(other)) => first.tensors.extend(other.tensors),
            _ => unreachable!("a group is of one kind"),
        }
    }
    match first.step {
        Step::Kernel(run) if !others.is_empty() => {
            Draft { step: Step::Kernel(run.with(others, table)), ..first }
        }
        step => Draft { step, ..first },
    }
}
