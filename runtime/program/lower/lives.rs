//! The lifetimes of buffers: from the first position of a step at which an instruction accesses a buffer to the last.

use super::classes::Boundaries;
use super::draft::{Buffer, BufferId, BufferKind, Draft, Drafts, Located};
use super::place::root;
use super::stages::PartAccesses;
use crate::{Kernel, Microbatches, Section};
use ir::Phase;
use ir::analysis::{Lifetime, Lifetimes};
use std::ops::Range;

/// The positions of a step, in order: one for each instruction of each section; one after each section, where outputs are reported; and one
/// before each microbatch, where inputs are written.
pub(super) struct Positions {
    counts: [u32; 3],
    /// The number of instructions of the section `update` up to the last one that runs in every microbatch.
    of_microbatch: u32,
}

impl Positions {
    pub(super) fn of(instructions: &[Draft]) -> Self {
        let count = |section| instructions.iter().filter(|draft| draft.section == section).count() as u32;
        let counts = Section::ALL.map(|(section, _)| count(section));
        let last = instructions.iter().rposition(|draft| draft.of_microbatch);
        let of_microbatch = last.map_or(0, |last| last as u32 + 1 - counts[0] - counts[1]);
        Self { counts, of_microbatch }
    }

    /// Returns the position of the instruction with this index among all instructions.
    pub(super) fn of_instruction(&self, index: usize, section: Section) -> u32 {
        index as u32 + [0, 2, 3][section as usize]
    }

    fn start_of_update(&self) -> u32 {
        self.of_instruction((self.counts[0] + self.counts[1]) as usize, Section::Update)
    }

    fn after(&self, section: Section) -> u32 {
        let [prepare, microbatch, update] = self.counts;
        match section {
            Section::Prepare => prepare,
            Section::Microbatch => prepare + 2 + microbatch,
            Section::Update => prepare + 3 + microbatch + update,
        }
    }

    /// Returns the positions at which the parts of a step begin.
    pub(super) fn boundaries(&self, drafts: &Drafts) -> Boundaries {
        let instructions = drafts.instructions.iter().enumerate();
        let mut backward =
            instructions.filter(|(_, draft)| drafts.module.node(draft.node).phase == Phase::Backward);
        let first = backward.next().map(|(index, draft)| self.of_instruction(index, draft.section));
        let Range { start: microbatch, end } = self.microbatch();
        let update = end.max(self.start_of_update());
        Boundaries { microbatch, backward: first.unwrap_or(update), update }
    }

    /// Returns the positions that a step passes once for each microbatch.
    fn microbatch(&self) -> Range<u32> {
        let end = self.after(Section::Microbatch) + 1 + self.of_microbatch;
        self.after(Section::Prepare) + 1..end
    }
}

/// The lifetimes of every buffer that does not take another's place.
pub(super) struct Lives {
    /// The lifetimes, extended by repeated microbatches and by collectives that still run.
    pub(super) lifetimes: Vec<Option<Lifetime>>,
    /// The first and the last access in the order of the instructions.
    accesses: Vec<Option<Lifetime>>,
    /// The positions that a step passes several times.
    repeated: Range<u32>,
}

impl Lives {
    pub(super) fn of(
        drafts: &Drafts,
        scratch: &[Option<Located>],
        last_beside: &[usize],
        positions: &Positions,
        parts: &PartAccesses,
    ) -> Self {
        let repeated = match drafts.microbatches {
            // With one microbatch, nothing reads a buffer again after its last reader.
            Microbatches::One => 0..0,
            Microbatches::Many => positions.microbatch(),
        };
        let alone: Vec<usize> = (0..drafts.instructions.len()).collect();
        let lives =
            |last_beside, repeated| lifetimes(drafts, scratch, last_beside, positions, parts, repeated);
        let (lifetimes, accesses) = (lives(last_beside, repeated.clone()), lives(&alone, 0..0));
        Self { lifetimes, accesses, repeated }
    }

    /// Returns whether nothing accesses a buffer after an instruction that reads it, so that a result of the instruction may take its
    /// place.
    pub(super) fn ends(&self, buffer: BufferId, draft: &Draft, position: u32) -> bool {
        let Some((lifetime, accesses)) = self.lifetimes[buffer].zip(self.accesses[buffer]) else {
            return false;
        };
        let Kernel::Collective(_) = draft.kernel else { return lifetime.last == position };
        // The lifetime of a collective's operand ends with the instructions beside the collective. Collectives of the update run in the
        // last
        // microbatch alone, even if they are between instructions that run in every microbatch.
        let is_repeated = draft.section == Section::Microbatch || draft.of_microbatch;
        let is_kept = is_repeated && self.lives_through(lifetime);
        accesses.last == position && !is_kept
    }

    /// Returns whether a buffer with this lifetime holds values from one microbatch to the next.
    fn lives_through(&self, lifetime: Lifetime) -> bool {
        let Range { start, end } = self.repeated;
        start < end && lifetime.first <= start && end <= lifetime.last + 1
    }

    /// Merges the lifetimes of a buffer and of another that takes its place.
    pub(super) fn join(&mut self, old: BufferId, new: BufferId) {
        for all in [&mut self.lifetimes, &mut self.accesses] {
            let taken = all[new].take();
            all[old] = all[old].zip(taken).map(|(old, new)| old.union(&new));
        }
    }
}

/// Returns the lifetime of every buffer that does not take another's place, with these positions repeated.
fn lifetimes(
    drafts: &Drafts,
    scratch: &[Option<Located>],
    last_beside: &[usize],
    positions: &Positions,
    parts: &PartAccesses,
    repeated: Range<u32>,
) -> Vec<Option<Lifetime>> {
    let mut lifetimes = Lifetimes::new(drafts.buffers.len(), repeated);
    let root = |buffer: BufferId| root(&drafts.buffers, buffer);
    for (buffer, Buffer { kind, carried, renewed, .. }) in drafts.buffers.iter().enumerate() {
        if *renewed || matches!(kind, BufferKind::State(_)) {
            lifetimes.access(buffer, 0);
            lifetimes.access(buffer, positions.after(Section::Update));
        }
        if *carried {
            lifetimes.carry(root(buffer));
        }
    }
    let mut used = vec![false; drafts.buffers.len()];
    for (index, (draft, scratch)) in drafts.instructions.iter().zip(scratch).enumerate() {
        for located in draft.operands.iter().chain(&draft.results).chain(scratch) {
            let buffer = root(located.buffer);
            used[buffer] = true;
            lifetimes.access(buffer, positions.of_instruction(index, draft.section));
            lifetimes.access(buffer, positions.of_instruction(last_beside[index], draft.section));
            if draft.section == Section::Update
                && !draft.of_microbatch
                && drafts.backend.keeps_in_update(drafts.buffers[buffer].bytes)
            {
                lifetimes.access(buffer, positions.start_of_update());
                lifetimes.access(buffer, positions.after(Section::Update));
            }
        }
    }
    for (output, located) in drafts.module.outputs.iter().zip(&drafts.outputs) {
        if let Some(located) = located {
            used[root(located.buffer)] = true;
            let part = drafts.part_of(output.value).and_then(|part| parts.range(part));
            let after = positions.after(drafts.section_of(output.value));
            lifetimes.access(root(located.buffer), part.map_or(after, |part| part.end - 1));
        }
    }
    for (buffer, Buffer { kind, .. }) in drafts.buffers.iter().enumerate().filter(|(buffer, _)| used[*buffer])
    {
        if let BufferKind::Input(index) = kind {
            let part = drafts.part_of(drafts.module.inputs[*index].value).and_then(|part| parts.range(part));
            lifetimes.access(buffer, part.map_or(positions.microbatch().start, |part| part.start));
        }
    }
    lifetimes.finish()
}
