//! Exchanges beside computation: on several devices, collectives begin early and their results are read late, so that a device
//! computes while tensors travel.
//!
//! Only the order of instructions changes, and never the order of two that touch the same buffer if either writes it. So nothing
//! depends on this order but time and memory. The devices derive from the addresses for which collectives an instruction waits.
//!
//! - In `prepare` and `update` a collective moves up to the place where its operands are complete. For sums of gradients that is a
//!   place in backward. The section `update` then begins there: the rest of backward runs in that section in every microbatch, and
//!   the collectives run in the last microbatch alone.
//! - In a microbatch a gather moves up past other gathers until these are as large as itself. So a weight travels while the weights
//!   before it are used, and no more than about one weight of each size waits for its use.
//! - A sum over microbatches of a reduced gradient moves behind the next reduction over the same devices, so that nothing waits for
//!   the reduction before that.
//!
//! A microbatch's outputs are there when its section ends, and so is the whole forward phase: a loss is looked at before anything
//! that follows.

use super::draft::{BufferId, Draft, Drafts};
use super::place::root;
use crate::program::{Exchange, Kernel, Section};
use ir::ops::collective::Collective;
use ir::{Diagnostic, Phase};
use std::ops::Range;

/// A collective's operands keep their memory until collectives have begun so many times more, unless the collective is waited for
/// before. Those that begin one after the other count once.
const IN_FLIGHT: usize = 2;

/// Puts the instructions, which are sorted by section, into their new order. The first `renewed` stay.
///
/// # Errors
/// Two instructions that touch the same buffer changed places: a bug.
pub(super) fn order(drafts: &mut Drafts, renewed: usize) -> Result<(), Diagnostic> {
    let is_exchange = |draft: &Draft| exchange(draft).is_some();
    if !drafts.instructions.iter().any(is_exchange) {
        return Ok(());
    }
    let mut moves = Moves::new(drafts);
    moves.move_up(renewed);
    moves.move_gathers();
    moves.move_sums();
    moves.check()?;
    let Moves { slots, .. } = moves;
    let mut placed: Vec<(Slot, Draft)> =
        slots.into_iter().zip(std::mem::take(&mut drafts.instructions)).collect();
    placed.sort_by_key(|(slot, _)| *slot);
    drafts.instructions = placed.into_iter().map(|(_, draft)| draft).collect();
    // The section `update` begins where its first instruction is.
    let mut is_update = false;
    for draft in &mut drafts.instructions {
        is_update |= draft.section == Section::Update;
        if is_update && draft.section == Section::Microbatch {
            (draft.section, draft.of_microbatch) = (Section::Update, true);
        }
    }
    Ok(())
}

/// For each instruction the last one, by its place, while which its operands are still read: itself, but for a collective those
/// that may run beside it.
pub(super) fn last_beside(drafts: &Drafts) -> Vec<usize> {
    let instructions = &drafts.instructions;
    let touches: Vec<Touches> = instructions.iter().map(|draft| Touches::of(drafts, draft)).collect();
    let last = |(index, draft): (usize, &Draft)| {
        if exchange(draft).is_none() {
            return index;
        }
        let mut begun = 0;
        let is_beside = |later: &usize| {
            // Collectives are carried out in their order: one that reads the result of another does not wait for it here.
            let [previous, is_exchange] =
                [*later - 1, *later].map(|at| exchange(&instructions[at]).is_some());
            begun += usize::from(is_exchange && !previous);
            begun < IN_FLIGHT
                && instructions[*later].section == draft.section
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

/// A place in the order: behind the instruction with this index, and there by number. Instructions that stay have number 0 behind
/// themselves.
type Slot = (usize, usize);

/// The slots of all instructions, while some are moved.
struct Moves<'d, 'm> {
    drafts: &'d Drafts<'m>,
    touches: Vec<Touches>,
    /// For each buffer the instructions that touch it, in order, and whether they write it.
    accesses: Vec<Vec<(usize, bool)>>,
    slots: Vec<Slot>,
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
        let slots = (0..touches.len()).map(|index| (index, 0)).collect();
        Self { drafts, touches, accesses, slots, next: 1 }
    }

    /// The instructions that may not change places with this one, in no order.
    fn conflicts(&self, index: usize) -> impl Iterator<Item = usize> + '_ {
        let Touches { reads, writes } = &self.touches[index];
        let of = |buffer: &BufferId| self.accesses[*buffer].iter();
        let written = reads.iter().flat_map(of).filter(|(_, writes)| *writes);
        let touched = writes.iter().flat_map(of);
        written.chain(touched).map(|(other, _)| *other).filter(move |&other| other != index)
    }

    /// The slot of the last instruction before this one that it may not pass, if there is one.
    fn bound(&self, index: usize) -> Option<Slot> {
        self.conflicts(index).filter(|&other| other < index).map(|other| self.slots[other]).max()
    }

    /// Moves an instruction to a slot, behind all others there.
    fn put(&mut self, index: usize, behind: usize) {
        self.slots[index] = (behind, self.next);
        self.next += 1;
    }

    /// Proves that no two instructions changed places of which one writes what the other touches.
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

    /// The instructions of a section.
    fn section(&self, section: Section) -> Range<usize> {
        let instructions = &self.drafts.instructions;
        let start = instructions.partition_point(|draft| draft.section < section);
        start..instructions.partition_point(|draft| draft.section <= section)
    }

    /// Moves the collectives of `prepare` and `update` to where their operands are complete.
    fn move_up(&mut self, renewed: usize) {
        let earliest = self.earliest();
        for (section, first) in [(Section::Prepare, renewed.checked_sub(1)), (Section::Update, earliest)] {
            let own = self.section(section);
            let first = first.or_else(|| own.start.checked_sub(1));
            for index in own.filter(|&index| exchange(&self.drafts.instructions[index]).is_some()) {
                let behind = self.bound(index).map(|(behind, _)| behind).max(first);
                match behind {
                    Some(behind) if behind + 1 < index => self.put(index, behind),
                    _ => {}
                }
            }
        }
    }

    /// The instruction of backward behind which the section `update` may begin, if any: behind it, nothing makes an output of the
    /// microbatch.
    fn earliest(&self) -> Option<usize> {
        let Drafts { module, instructions, outputs, .. } = self.drafts;
        let own = self.section(Section::Microbatch);
        let backward = own.clone().find(|&index| {
            let phase = module.node(instructions[index].node).phase;
            phase == Phase::Backward && exchange(&instructions[index]).is_none()
        })?;
        let reported = module.outputs.iter().zip(outputs);
        let reported = reported
            .filter(|(output, _)| self.drafts.section_of(output.value) == Section::Microbatch)
            .filter_map(|(_, located)| Some(root(&self.drafts.buffers, located.as_ref()?.buffer)));
        let made = reported.flat_map(|buffer| &self.accesses[buffer]).filter(|(_, writes)| *writes);
        let made = made.map(|(index, _)| *index).filter(|index| own.contains(index)).max();
        Some(made.map_or(backward, |made| made.max(backward)))
    }

    /// Moves the gathers of a microbatch up.
    fn move_gathers(&mut self) {
        for section in [Section::Microbatch, Section::Update] {
            let is_gather = |&index: &usize| {
                let draft = &self.drafts.instructions[index];
                let of_microbatch = section == Section::Microbatch || draft.of_microbatch;
                let gathers =
                    exchange(draft).is_some_and(|exchange| exchange.collective == Collective::AllGather);
                gathers && of_microbatch
            };
            let own = self.section(section);
            let gathers: Vec<usize> = own.clone().filter(is_gather).collect();
            let bytes: Vec<u64> = gathers.iter().map(|&index| self.result_bytes(index)).collect();
            for (number, &index) in gathers.iter().enumerate() {
                let mut passed = 0;
                let ahead = (0..number).rev().find(|&other| {
                    passed += bytes[other];
                    passed >= bytes[number]
                });
                // Where the gather stood that is as far ahead, or the first of all.
                let target = gathers[ahead.unwrap_or(0)];
                let bound = self.bound(index).map(|(behind, _)| behind);
                let behind = bound.max(target.checked_sub(1)).max(own.start.checked_sub(1));
                match behind {
                    Some(behind) if behind + 1 < index => self.put(index, behind),
                    _ => {}
                }
            }
        }
    }

    fn result_bytes(&self, index: usize) -> u64 {
        let results = self.drafts.instructions[index].results.iter();
        results.map(|result| self.drafts.buffers[result.buffer].bytes).sum()
    }

    /// Moves sums of reduced gradients behind the next reduction over the same devices.
    fn move_sums(&mut self) {
        let own = self.section(Section::Microbatch);
        let instructions = &self.drafts.instructions;
        let reduced =
            |index: usize| exchange(&instructions[index]).filter(|exchange| exchange.reduced.is_some());
        // For each buffer the reduction of this section that wrote it.
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
            // Collectives of the update that read the sum may have moved here.
            let readers = self.conflicts(index).filter(|&other| other > index);
            let limit = readers.map(|other| self.slots[other].0).min().unwrap_or(own.end);
            let behind = next.unwrap_or(own.end).min(limit - 1).min(own.end - 1);
            if behind > index {
                self.put(index, behind);
            }
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

    /// Whether two instructions may not change places.
    fn conflict(&self, later: &Self) -> bool {
        let meet = |these: &[BufferId], those: &[BufferId]| these.iter().any(|this| those.contains(this));
        meet(&self.writes, &later.writes)
            || meet(&self.writes, &later.reads)
            || meet(&self.reads, &later.writes)
    }
}
