//! The part of a pipeline in a program: the turns of its rank, the memory that outlives a turn, and messages to other ranks.

use super::InputSlot;
use ir::Phase;
use ir::timetable::{Part, Task};
use std::ops::Range;

/// What a pipeline rank does in the microbatches of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankPipeline {
    /// The pipeline rank.
    pub rank: u32,
    /// The number of pipeline ranks.
    pub ranks: u32,
    /// The microbatches of a step.
    pub microbatches: u32,
    /// The blocks of memory that one part of a microbatch leaves to another.
    pub blocks: Vec<Block>,
    /// The parts of all microbatches, in order.
    pub turns: Vec<Turn>,
}

/// Memory that lives from one part of a microbatch to another. Each microbatch has its own, in a slot of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The parts that touch it. It is alive from the first of them to the last, in the order of the timetable.
    pub parts: Vec<Part>,
    /// Bytes.
    pub bytes: u64,
}

/// The index of a block in [`RankPipeline::blocks`].
pub type BlockId = u32;

/// A part of one microbatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The part and the microbatch.
    pub task: Task,
    /// Its instructions in the section `microbatch`.
    pub instructions: Range<usize>,
    /// Where the blocks of the microbatch begin in the arena. A block that is not alive has no place: [`Turn::NOWHERE`].
    pub bases: Vec<u64>,
}

impl Turn {
    /// Whether an input is fed before this turn: to the forward phase of its stage.
    pub fn feeds(&self, input: &InputSlot) -> bool {
        self.task.part == Part { phase: Phase::Forward, chunk: input.stage }
    }

    /// The place of a block that is not alive.
    pub const NOWHERE: u64 = u64::MAX;
}

/// A message from one pipeline rank to another: between ranks that have the same place in their stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The pipeline rank that sends it.
    pub from: u32,
    /// The pipeline rank that receives it.
    pub to: u32,
    /// The transfer whose messages keep their order among themselves: the number of its node in the whole program.
    pub channel: u32,
}
