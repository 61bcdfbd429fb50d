//! Slots for the blocks of memory that outlive a task.
//!
//! A block belongs to a chunk and a microbatch. The task of one phase writes it, and the task of a later phase reads it for the
//! last time: from forward to backward, from forward to weight, or from backward to weight. All chunks of a rank take the blocks
//! of one such class from one pool. Blocks that are alive together need different slots. Giving each block the lowest free slot,
//! in order of their starts, needs as many slots as blocks are alive at once, and no assignment needs fewer (interval graphs are
//! perfect; Golumbic, Algorithmic Graph Theory and Perfect Graphs, chapter 8).

use super::Task;
use crate::Phase;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// The chunk and the microbatch to which a block of memory belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// The chunk.
    pub chunk: u32,
    /// The microbatch.
    pub microbatch: u32,
}

/// The slots of one class of blocks on one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// The number of slots.
    pub count: u32,
    /// The slot of each block, counted from 0.
    pub of: BTreeMap<Block, u32>,
}

/// A fault of an assignment of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotError {
    /// A block has no slot.
    #[error("the block that {task} starts has no slot")]
    NoSlot {
        /// The task.
        task: Task,
    },
    /// A slot lies outside the pool.
    #[error(
        "the block that {task} starts is in slot {slot}, and the pool has {count} slots, which count from 0"
    )]
    Outside {
        /// The task.
        task: Task,
        /// The slot.
        slot: u32,
        /// The number of slots.
        count: u32,
    },
    /// A slot is assigned to a block while another block in it is alive.
    #[error("{task} starts a block in slot {slot}, where the block of stage {}, microbatch {} is still alive", alive.chunk, alive.microbatch)]
    Reused {
        /// The task that starts the second block.
        task: Task,
        /// The slot.
        slot: u32,
        /// The block that is alive.
        alive: Block,
    },
}

impl Task {
    /// Returns the memory block of the task's chunk and microbatch.
    pub fn block(self) -> Block {
        Block { chunk: self.part.chunk, microbatch: self.microbatch }
    }
}

/// Assigns slots to the blocks that live from the task of phase `from` to the end of the task of phase `to`. `tasks` has the tasks
/// of one rank. A block that no task ends lives to the end of the list.
pub fn slots(tasks: &[Task], from: Phase, to: Phase) -> Slots {
    let mut slots = Slots::default();
    let mut free = BinaryHeap::new();
    for task in tasks {
        if task.part.phase == from {
            let slot = free.pop().map_or(slots.count, |Reverse(slot)| slot);
            slots.count = slots.count.max(slot + 1);
            slots.of.insert(task.block(), slot);
        } else if task.part.phase == to {
            free.extend(slots.of.get(&task.block()).map(|&slot| Reverse(slot)));
        }
    }
    slots
}

/// Proves that no two blocks are alive in the same slot. See [`slots`] for the arguments.
pub fn check_slots(tasks: &[Task], from: Phase, to: Phase, slots: &Slots) -> Result<(), SlotError> {
    let mut alive: BTreeMap<u32, Block> = BTreeMap::new();
    for &task in tasks {
        if task.part.phase == from {
            let slot = *slots.of.get(&task.block()).ok_or(SlotError::NoSlot { task })?;
            if slot >= slots.count {
                return Err(SlotError::Outside { task, slot, count: slots.count });
            }
            if let Some(alive) = alive.insert(slot, task.block()) {
                return Err(SlotError::Reused { task, slot, alive });
            }
        } else if task.part.phase == to
            && let Some(slot) = slots.of.get(&task.block())
            && alive.get(slot) == Some(&task.block())
        {
            alive.remove(slot);
        }
    }
    Ok(())
}
