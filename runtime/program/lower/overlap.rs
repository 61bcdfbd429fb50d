//! Runs exchanges and copies beside computation, so that a device computes while tensors travel. With several devices, collectives begin
//! early and their results are read late. Copies from the host begin early too.
//!
//! Only the order of instructions changes, and never the order of two instructions that touch the same buffer if either writes it. So only
//! time and memory depend on this order. The devices derive from the addresses which collectives an instruction waits for.
//!
//! - In `prepare` and `update` a collective moves up to the place where its operands are complete. For sums of gradients that is a place in
//!   backward. The section `update` then begins there: the remaining instructions of backward run in that section in every microbatch, and
//!   the collectives run in the last microbatch alone.
//! - In a microbatch, gathers of weights that are used one after the other travel together. Such a group has at most the bytes of the
//!   largest weight. It is gathered while the groups before it, of at least as many bytes, are used.
//! - In a microbatch, values are fetched from the host while the values before them, of at least as many bytes, are used. This needs a
//!   device whose copies run beside its kernels.
//! - A sum over microbatches of a reduced gradient moves behind the next reduction over the same devices, so that nothing waits for the
//!   earlier reduction.
//!
//! A microbatch's outputs and the whole forward phase are complete when its section ends, so a loss is checked before any later instruction
//! runs.

use super::draft::{BufferId, Draft, Drafts};
use super::place::root;
use crate::{Exchange, Kernel, Section};
use ir::ops::collective::Collective;
use ir::ops::copy::Copy;
use ir::{Diagnostic, Op, Phase, Tier};
use std::ops::Range;

/// The number of later runs of adjacent collectives that begin before the memory of a collective's operands is free. It is free earlier if
/// an instruction waits for the collective.
const IN_FLIGHT: usize = 2;

/// The most bytes of weights that travel together: the size of a bucket in the pass `buckets`. A larger weight travels alone.
const GROUP: u64 = 25 << 20;

/// Puts the instructions, which are sorted by section, into their new order. The first `renewed` instructions stay.
///
/// # Errors
/// Two instructions that touch the same buffer changed places: a bug.
pub(super) fn order(drafts: &mut Drafts, renewed: usize) -> Result<(), Diagnostic> {
    let is_exchange = |draft: &Draft| exchange(draft).is_some();
    // The parts of a pipeline run in the order of its timetable, so they are not changed.
    let is_beside = |draft: &Draft| drafts.backend.copies_beside() && is_fetch(draft);
    let moves = |draft: &Draft| is_exchange(draft) || is_beside(draft);
    if drafts.stages.is_some() || !drafts.instructions.iter().any(moves) {
        return Ok(());
    }
    let mut moves = Moves::new(drafts);
    moves.move_up(renewed);
    moves.move_gathers();
    if moves.drafts.backend.copies_beside() {
        moves.move_fetches();
    }
    moves.move_sums();
    moves.check()?;
    let Moves { slots, joins, .. } = moves;
    let all = std::mem::take(&mut drafts.instructions).into_iter().zip(joins);
    let mut placed: Vec<_> = slots.into_iter().zip(all).collect();
    placed.sort_by_key(|(slot, _)| *slot);
    let mut last = None;
    for (_, (draft, joins)) in placed {
        match drafts.instructions.last_mut().filter(|_| last == Some(joins)) {
            Some(group) => group.join(draft),
            None => drafts.instructions.push(draft),
        }
        last = Some(joins);
    }
    // The section `update` now begins at its first instruction. Later instructions of the microbatch become part of it.
    let mut is_update = false;
    for draft in &mut drafts.instructions {
        is_update |= draft.section == Section::Update;
        if is_update && draft.section == Section::Microbatch {
            (draft.section, draft.of_microbatch) = (Section::Update, true);
        }
    }
    Ok(())
}

/// Returns for each instruction the index of the last instruction that may run while its operands are still read. For an instruction that
/// is no collective, that is the instruction itself.
pub(super) fn last_beside(drafts: &Drafts) -> Vec<usize> {
    let instructions = &drafts.instructions;
    let touches: Vec<Touches> = instructions.iter().map(|draft| Touches::of(drafts, draft)).collect();
    let last = |(index, draft): (usize, &Draft)| {
        if exchange(draft).is_none() {
            return index;
        }
        let mut begun = 0;
        let is_beside = |later: &usize| {
            // Collectives run in order, so a collective that reads another's result needs no wait here.
            let [previous, is_exchange] =
                [*later - 1, *later].map(|at| exchange(&instructions[at]).is_some());
            begun += usize::from(is_exchange && !previous);
            begun < IN_FLIGHT
                && instructions[*later].section == draft.section
                && instructions[*later].part == draft.part
                && (is_exchange || !touches[index].conflict(&touches[*later]))
        };
        index + (index + 1..instructions.len()).take_while(is_beside).count()
    };
    instructions.iter().enumerate().map(last).collect()
}

fn exchange(draft: &Draft) -> Option<&Exchange> {
    match &draft.kernel {
        Kernel::Collective(exchange) => Some(exchange),
        _ => None,
    }
}

/// Whether an instruction copies a value to the device.
fn is_fetch(draft: &Draft) -> bool {
    matches!(draft.kernel, Kernel::Op(Op::Copy(Copy { to: Tier::Device })))
}

/// A place in the order: the index before which the instruction goes, and its number there. An instruction that stays has the last number
/// before the next index.
type Slot = (usize, usize);

/// The number of an instruction that stays.
const STAYS: usize = usize::MAX;

/// The slots of all instructions, while some are moved.
struct Moves<'d, 'm> {
    drafts: &'d Drafts<'m>,
    touches: Vec<Touches>,
    /// For each buffer, the instructions that touch it, in order, and whether they write it.
    accesses: Vec<Vec<(usize, bool)>>,
    slots: Vec<Slot>,
    /// For each instruction, the first of the group with which it travels: itself, unless it is a gather.
    joins: Vec<usize>,
    /// The next number in a slot.
    next: usize,
}

impl<'d, 'm> Moves<'d, 'm> {
    fn new(drafts: &'d Drafts<'m>) -> Self {
        let touches: Vec<Touches> =
            drafts.instructions.iter().map(|draft| Touches::of(drafts, draft)).collect();
        let mut accesses = vec![vec![]; drafts.buffers.len()];
        for (index, Touches { reads, writes }) in touches.iter().enumerate() {
            reads.iter().for_each(|&buffer| accesses[buffer].push((index, false)));
            writes.iter().for_each(|&buffer| accesses[buffer].push((index, true)));
        }
        let slots = (0..touches.len()).map(|index| (index, STAYS)).collect();
        let joins = (0..touches.len()).collect();
        Self { drafts, touches, accesses, slots, joins, next: 0 }
    }

    /// Returns the instructions that may not change places with this one, in no order.
    fn conflicts(&self, index: usize) -> impl Iterator<Item = usize> + '_ {
        let Touches { reads, writes } = &self.touches[index];
        let of = |buffer: &BufferId| self.accesses[*buffer].iter();
        let written = reads.iter().flat_map(of).filter(|(_, writes)| *writes);
        let touched = writes.iter().flat_map(of);
        written.chain(touched).map(|(other, _)| *other).filter(move |&other| other != index)
    }

    /// Returns the first index before which an instruction may go.
    fn earliest(&self, index: usize) -> usize {
        let before = |(slot, number): Slot| if number == STAYS { slot + 1 } else { slot };
        let earlier = self.conflicts(index).filter(|&other| other < index);
        earlier.map(|other| before(self.slots[other])).max().unwrap_or(0)
    }

    /// Returns the last index before which an instruction may go. `None` if nothing depends on the instruction.
    fn latest(&self, index: usize) -> Option<usize> {
        let before = |(slot, number): Slot| if number == STAYS { slot } else { slot - 1 };
        let later = self.conflicts(index).filter(|&other| other > index);
        later.map(|other| before(self.slots[other])).min()
    }

    /// Moves an instruction before another index, behind all instructions that were moved there.
    fn put(&mut self, index: usize, before: usize) {
        self.slots[index] = (before, self.next);
        self.next += 1;
    }

    /// Checks that no two instructions changed places if one of them writes a buffer that the other touches.
    fn check(&self) -> Result<(), Diagnostic> {
        for accesses in &self.accesses {
            let (mut written, mut touched) = (None, None);
            for &(index, writes) in accesses {
                let slot = self.slots[index];
                // An instruction that reads and writes a buffer touches it twice.
                if Some(slot) < if writes { touched } else { written } {
                    let draft = &self.drafts.instructions[index];
                    let message =
                        format!("an instruction of {:?} runs before one that it depends on", draft.section);
                    return Err(Diagnostic::new(message).at(draft.origin.to_string()).note("this is a bug"));
                }
                touched = touched.max(Some(slot));
                written = if writes { written.max(Some(slot)) } else { written };
            }
        }
        Ok(())
    }

    /// Returns the instructions of a section.
    fn section(&self, section: Section) -> Range<usize> {
        let instructions = &self.drafts.instructions;
        let start = instructions.partition_point(|draft| draft.section < section);
        start..instructions.partition_point(|draft| draft.section <= section)
    }

    /// Moves the collectives of `prepare` and `update` to the places where their operands are complete.
    fn move_up(&mut self, renewed: usize) {
        let of_update = self.first_of_update();
        for (section, first) in [(Section::Prepare, renewed), (Section::Update, of_update)] {
            for index in self.section(section) {
                let before = self.earliest(index).max(first);
                if exchange(&self.drafts.instructions[index]).is_some() && before < index {
                    self.put(index, before);
                }
            }
        }
    }

    /// Returns the first index before which the section `update` may begin: in backward, and after all instructions that make an output of
    /// the microbatch.
    fn first_of_update(&self) -> usize {
        let Drafts { module, instructions, outputs, .. } = self.drafts;
        let own = self.section(Section::Microbatch);
        let backward = own.clone().find(|&index| {
            let phase = module.node(instructions[index].node).phase;
            phase == Phase::Backward && exchange(&instructions[index]).is_none()
        });
        let Some(backward) = backward else { return own.end };
        let reported = module.outputs.iter().zip(outputs);
        let reported = reported
            .filter(|(output, _)| self.drafts.section_of(output.value) == Section::Microbatch)
            .filter_map(|(_, located)| Some(root(&self.drafts.buffers, located.as_ref()?.buffer)));
        let made = reported.flat_map(|buffer| &self.accesses[buffer]).filter(|(_, writes)| *writes);
        let made = made.map(|(index, _)| *index).filter(|index| own.contains(index)).max();
        made.unwrap_or(backward).max(backward) + 1
    }

    /// Groups the gathers of weights in a microbatch, and moves the groups up.
    fn move_gathers(&mut self) {
        for section in [Section::Microbatch, Section::Update] {
            let own = self.section(section);
            let is_of_weight = |&index: &usize| {
                let draft = &self.drafts.instructions[index];
                let of_microbatch = section == Section::Microbatch || draft.of_microbatch;
                let gathers =
                    exchange(draft).is_some_and(|exchange| exchange.collective == Collective::AllGather);
                gathers && of_microbatch && self.earliest(index) <= own.start
            };
            let gathers: Vec<usize> = own.clone().filter(is_of_weight).collect();
            let groups = self.groups(&gathers);
            let ahead = self.ahead(&groups);
            for (group, first) in groups.iter().zip(ahead) {
                for &index in group {
                    self.put(index, first);
                    self.joins[index] = group[0];
                }
            }
        }
    }

    /// Moves up the copies of a microbatch from the host to the device.
    fn move_fetches(&mut self) {
        for section in [Section::Microbatch, Section::Update] {
            let is_own = |&index: &usize| {
                let draft = &self.drafts.instructions[index];
                is_fetch(draft) && (section == Section::Microbatch || draft.of_microbatch)
            };
            let fetches: Vec<Vec<usize>> =
                self.section(section).filter(is_own).map(|index| vec![index]).collect();
            let ahead = self.ahead(&fetches);
            for (index, first) in fetches.into_iter().flatten().zip(ahead) {
                self.put(index, self.earliest(index).max(first));
            }
        }
    }

    /// Returns for each group of transfers the index before which it begins: the start of the nearest earlier group such that the groups
    /// from there on have at least as many bytes, or the start of the first group.
    fn ahead(&self, groups: &[Vec<usize>]) -> Vec<usize> {
        let bytes: Vec<u64> = groups.iter().map(|group| self.bytes(group)).collect();
        let ahead = |number: usize| {
            let mut passed = 0;
            let other = (0..number).rev().find(|&other| {
                passed += bytes[other];
                passed >= bytes[number]
            });
            groups[other.unwrap_or(0)][0]
        };
        (0..groups.len()).map(ahead).collect()
    }

    /// Groups gathers over the same devices that travel together. No group is larger than the largest gather or [`GROUP`].
    fn groups(&self, gathers: &[usize]) -> Vec<Vec<usize>> {
        let largest = gathers.iter().map(|&index| self.bytes(&[index])).max().unwrap_or(0).min(GROUP);
        let axes = |index: usize| exchange(&self.drafts.instructions[index]).map(|exchange| &exchange.axes);
        let mut groups: Vec<Vec<usize>> = vec![];
        for &index in gathers {
            match groups.last_mut() {
                Some(group)
                    if axes(group[0]) == axes(index)
                        && self.bytes(group) + self.bytes(&[index]) <= largest =>
                {
                    group.push(index);
                }
                _ => groups.push(vec![index]),
            }
        }
        groups
    }

    /// Returns the bytes of the results of instructions.
    fn bytes(&self, instructions: &[usize]) -> u64 {
        let results = instructions.iter().flat_map(|&index| &self.drafts.instructions[index].results);
        results.map(|result| self.drafts.buffers[result.buffer].bytes).sum()
    }

    /// Moves sums of reduced gradients behind the next reduction over the same devices.
    fn move_sums(&mut self) {
        let own = self.section(Section::Microbatch);
        let instructions = &self.drafts.instructions;
        let reduced =
            |index: usize| exchange(&instructions[index]).filter(|exchange| exchange.reduced.is_some());
        // For each buffer, the reduction of this section that wrote it.
        let mut maker: Vec<Option<usize>> = vec![None; self.drafts.buffers.len()];
        let mut moved = vec![];
        for index in own.clone() {
            if reduced(index).is_some() {
                self.touches[index].writes.iter().for_each(|&buffer| maker[buffer] = Some(index));
            } else if matches!(instructions[index].kernel, Kernel::Accumulate)
                && let Some(made) = self.touches[index].reads.iter().find_map(|&buffer| maker[buffer])
            {
                moved.push((index, made));
            }
        }
        for (index, made) in moved {
            let axes = |index: usize| reduced(index).map(|exchange| &exchange.axes);
            let next = (index + 1..own.end).find(|&later| later > made && axes(later) == axes(made));
            // Collectives of the update that read the sum may have moved to this section.
            let latest = self.latest(index).unwrap_or(own.end).min(own.end);
            let before = next.map_or(own.end, |next| next + 1).min(latest);
            if before > index + 1 {
                self.put(index, before);
            }
        }
    }
}

impl Draft {
    /// Adds another collective of the same kind to this one, so that they travel together.
    fn join(&mut self, other: Self) {
        if let (Kernel::Collective(exchange), Kernel::Collective(others)) = (&mut self.kernel, other.kernel) {
            exchange.dims.extend(others.dims);
            self.operands.extend(other.operands);
            self.results.extend(other.results);
        }
    }
}

/// The buffers that an instruction reads and writes.
struct Touches {
    reads: Vec<BufferId>,
    writes: Vec<BufferId>,
}

impl Touches {
    fn of(drafts: &Drafts, draft: &Draft) -> Self {
        let buffers = |all: &[super::draft::Located]| {
            all.iter().map(|located| root(&drafts.buffers, located.buffer)).collect::<Vec<_>>()
        };
        Self { reads: buffers(&draft.operands), writes: buffers(&draft.results) }
    }

    /// Returns whether two instructions may not change places.
    fn conflict(&self, later: &Self) -> bool {
        let meet = |these: &[BufferId], those: &[BufferId]| these.iter().any(|this| those.contains(this));
        meet(&self.writes, &later.writes)
            || meet(&self.writes, &later.reads)
            || meet(&self.reads, &later.writes)
    }
}

#[cfg(test)]
mod tests;
