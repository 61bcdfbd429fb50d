//! The part of a pipeline in a program: the turns of its rank, the memory that outlives a turn, and messages to other ranks.

use super::InputSlot;
use ir::timetable::{ChunkPhase, Task};
use ir::{Phase, Tier};
use std::ops::Range;

/// The work of a pipeline rank in the microbatches of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankPipeline {
    /// The pipeline rank.
    pub rank: u32,
    /// The number of pipeline ranks.
    pub ranks: u32,
    /// The microbatches of a step.
    pub microbatches: u32,
    /// The blocks of memory that carry values from one part of a microbatch to another.
    pub blocks: Vec<Block>,
    /// Whether steps follow each other without a flush.
    pub is_asynchronous: bool,
    /// The number of forward tasks that the rank runs ahead of its step in an unbroken stream of steps; 0 in a synchronous schedule.
    pub ahead: u32,
    /// The number of steps after which the slots of an unbroken stream repeat; 1 in a synchronous schedule.
    pub period: u32,
    /// The turns of all microbatches, in order. In an unbroken stream: first the turns that run ahead of the first step, and then those of
    /// `period` steps.
    pub turns: Vec<Turn>,
}

impl RankPipeline {
    /// Returns the turns of a step by index: step `step` of a stream of `steps` steps. Between the first and the last step of a stream, no
    /// rank waits for all others. Forward tasks of microbatches beyond the step's own belong to a later step; they are left out if the
    /// stream has no such step.
    pub fn turns_of(&self, step: u64, steps: u64) -> Vec<usize> {
        let each = (self.turns.len() - self.ahead as usize) / (self.period as usize).max(1);
        let start = self.ahead as usize + (step % u64::from(self.period).max(1)) as usize * each;
        let before = if step == 0 { 0..self.ahead as usize } else { 0..0 };
        let left = (steps - step) * u64::from(self.microbatches);
        let is_there = |&turn: &usize| u64::from(self.turns[turn].task.microbatch) < left;
        before.chain(start..start + each).filter(is_there).collect()
    }
}

/// Memory that lives from one part of a microbatch to another. Each microbatch has its own block, in a slot of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The parts that touch the block. It is alive from the first of them to the last, in the order of the timetable.
    pub parts: Vec<ChunkPhase>,
    /// The size in bytes.
    pub bytes: u64,
    /// The memory in which it lies: the device's or the host's.
    pub tier: Tier,
}

/// The index of a block in [`RankPipeline::blocks`].
pub type BlockId = u32;

/// A part of one microbatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The part and the microbatch.
    pub task: Task,
    /// The turn's instructions in the section `microbatch`.
    pub instructions: Range<usize>,
    /// The address of each block of the microbatch in its memory. A block that is not alive has [`Turn::NOWHERE`].
    pub bases: Vec<u64>,
}

impl Turn {
    /// Returns whether an input is written before this turn: inputs go to the forward part of their stage.
    pub fn feeds(&self, input: &InputSlot) -> bool {
        self.task.part == ChunkPhase { phase: Phase::Forward, chunk: input.stage }
    }

    /// The address of a block that is not alive.
    pub const NOWHERE: u64 = u64::MAX;
}

/// A message from one pipeline rank to another, between ranks with the same place in their stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The pipeline rank that sends it.
    pub from: u32,
    /// The pipeline rank that receives it.
    pub to: u32,
    /// The transfer of the message, as the number of its node in the whole program. Messages of one transfer keep their order.
    pub channel: u32,
}
