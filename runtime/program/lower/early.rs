//! Early updates: in a step's last microbatch, an update runs as soon as its gradient is complete, among the instructions of backward. If
//! the step has only one microbatch, this frees the memory of the gradient.
//!
//! The module keeps its phases; only the order of the instructions changes. The section `update` then begins within backward, before the
//! first instruction of the update that reads a gradient. The remaining instructions of backward run in that section, in every microbatch.
//! The section `microbatch` keeps the whole forward phase and all outputs of a microbatch, so the loss is checked before any weight
//! changes.
//!
//! A node of the update that depends on a gradient runs as soon as it can, so that the gradient dies. A new value of a state waits for
//! every reader of the old value in backward, and for every reader of a cast or another value that `prepare` made from it. Other nodes of
//! the update, such as those of the learning rate, run just before their first reader. Chains join only nodes that run at the same place.
//! Only memory depends on this order: `commit` and `renew` check the instructions themselves, and write no state and no cast in place that
//! a later instruction still reads.

use super::fuse::Item;
use crate::Section;
use cranelift_entity::{EntitySet, SecondaryMap};
use ir::ops::collective::Collective;
use ir::{Module, NodeId, Op, Phase, ValueId};

/// The items of a program in the order in which they run, with the nodes of backward that run in the section `update`.
#[derive(Debug, Default)]
pub(super) struct Early {
    pub(super) items: Vec<Item>,
    pub(super) moved: EntitySet<NodeId>,
}

/// Moves the items of the update into backward.
pub(super) fn order(module: &Module, items: Vec<Item>) -> Early {
    let (prepare, others) = split(module, items, Section::Prepare);
    let (microbatch, update) = split(module, others, Section::Microbatch);
    let Some(slots) = slots(module, [&prepare, &microbatch, &update]) else {
        let items = prepare.into_iter().chain(microbatch).chain(update).collect();
        return Early { items, moved: EntitySet::new() };
    };
    let start = slots.iter().copied().min().unwrap_or(microbatch.len());
    let mut moved = EntitySet::new();
    let behind = microbatch.iter().skip(start + 1);
    behind.for_each(|item| moved.extend(item.nodes().iter().copied()));
    let mut after: Vec<Vec<Item>> = vec![vec![]; microbatch.len()];
    update.into_iter().zip(slots).for_each(|(item, slot)| after[slot].push(item));
    let interleaved = microbatch.into_iter().zip(after);
    let interleaved = interleaved.flat_map(|(item, after)| [item].into_iter().chain(after));
    Early { items: prepare.into_iter().chain(interleaved).collect(), moved }
}

/// Returns the slot of each node of the update among these nodes, as if each were an item of its own.
pub(super) fn slots_of_nodes(module: &Module, nodes: &[NodeId]) -> SecondaryMap<NodeId, usize> {
    let items = nodes.iter().map(|&node| Item::Node(node)).collect();
    let (prepare, others) = split(module, items, Section::Prepare);
    let (microbatch, update) = split(module, others, Section::Microbatch);
    let mut found = SecondaryMap::new();
    for (item, slot) in update.iter().zip(slots(module, [&prepare, &microbatch, &update]).unwrap_or_default())
    {
        found[item.nodes()[0]] = slot;
    }
    found
}

/// Returns the items of a section, and the other items.
fn split(module: &Module, items: Vec<Item>, section: Section) -> (Vec<Item>, Vec<Item>) {
    items.into_iter().partition(|item| item.section(module) == section)
}

/// Returns the slot of each item of the update: the index of the item of backward after which it runs. `None` if no item of the update
/// depends on backward.
///
/// The first slot is in backward, behind all items that make an output. From the last item to the first: an item with an operand from
/// backward runs as soon as it can; any other item waits for its first reader, if it has one.
fn slots(module: &Module, [prepare, microbatch, update]: [&[Item]; 3]) -> Option<Vec<usize>> {
    let is_backward = |item: &Item| module.node(item.nodes()[0]).phase == Phase::Backward;
    let backward = microbatch.iter().position(is_backward)?;
    let waits = waits(module, prepare, microbatch, update);
    let reports = |item: &Item| {
        module.outputs.iter().any(|output| results(module, item).any(|value| value == output.value))
    };
    let reported = microbatch.iter().rposition(reports).unwrap_or(0);
    let first = waits.iter().map(|wait| wait.slot().max(reported)).filter(|&slot| slot >= backward).min()?;
    let mut slots = vec![0; update.len()];
    let mut reader: SecondaryMap<ValueId, Option<usize>> = SecondaryMap::new();
    for (index, (item, wait)) in update.iter().zip(&waits).enumerate().rev() {
        let earliest = wait.slot().max(first);
        let readers = results(module, item).filter_map(|value| reader[value]).min();
        slots[index] = match readers {
            Some(readers) if wait.operands < backward => readers.max(earliest),
            _ => earliest,
        };
        for operand in item.nodes().iter().flat_map(|&node| &module.node(node).operands) {
            reader[*operand] = Some(reader[*operand].map_or(slots[index], |other| other.min(slots[index])));
        }
    }
    Some(slots)
}

/// The items of the microbatch that an item of the update waits for.
struct Wait {
    /// The last item that makes an operand, directly or through other items of the update; 0 if there is none.
    operands: usize,
    /// The last item that reads the old value of a state whose new value is a result; 0 if there is none.
    overwrites: usize,
}

impl Wait {
    fn slot(&self) -> usize {
        self.operands.max(self.overwrites)
    }
}

fn waits(module: &Module, prepare: &[Item], microbatch: &[Item], update: &[Item]) -> Vec<Wait> {
    let mut read = last_readers(module, microbatch);
    // A value that `prepare` makes from others counts as read by its own readers, because it may share the memory of the others.
    for node in prepare.iter().rev().flat_map(|item| item.nodes().iter().rev()) {
        let node = module.node(*node);
        let last = node.results.iter().map(|&result| read[result]).max().unwrap_or(0);
        node.operands.iter().for_each(|&operand| read[operand] = read[operand].max(last));
    }
    let mut overwritten: SecondaryMap<ValueId, usize> = SecondaryMap::new();
    for state in module.states.values() {
        if let Some(new) = state.output {
            overwritten[new] = overwritten[new].max(read[state.input]);
        }
    }
    let mut made: SecondaryMap<ValueId, usize> = SecondaryMap::new();
    for (index, item) in microbatch.iter().enumerate() {
        results(module, item).for_each(|value| made[value] = index);
    }
    let wait = |item: &Item| {
        let operands = item.nodes().iter().flat_map(|&node| &module.node(node).operands);
        let operands = operands.map(|&operand| made[operand]).max().unwrap_or(0);
        let overwrites = results(module, item).map(|value| overwritten[value]).max().unwrap_or(0);
        let wait = Wait { operands, overwrites };
        results(module, item).for_each(|value| made[value] = wait.slot());
        wait
    };
    update.iter().map(wait).collect()
}

/// Returns for each value the index of the last of these items that reads the value or a view of it; 0 if there is none.
fn last_readers(module: &Module, items: &[Item]) -> SecondaryMap<ValueId, usize> {
    let mut read: SecondaryMap<ValueId, usize> = SecondaryMap::new();
    for (index, item) in items.iter().enumerate().rev() {
        for &node in item.nodes().iter().rev() {
            let node = module.node(node);
            // A device's part of a weight can be a view.
            let is_slice = matches!(node.op, Op::Collective(Collective::AllSlice));
            let is_view = node.op.movement().is_layout() || is_slice;
            let views = node.results.iter().filter(|_| is_view).map(|&result| read[result]);
            let last = views.fold(index, usize::max);
            node.operands.iter().for_each(|&operand| read[operand] = read[operand].max(last));
        }
    }
    read
}

fn results<'m>(module: &'m Module, item: &'m Item) -> impl Iterator<Item = ValueId> + 'm {
    item.nodes().iter().flat_map(|&node| module.node(node).results.iter().copied())
}
