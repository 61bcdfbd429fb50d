//! The timetable of a pipeline: for each pipeline rank, the ordered list of its tasks.
//!
//! A timetable is data. A schedule makes it, [`check`] proves that it can run, [`Timeline`] computes its times, and [`Slots`]
//! computes the number of memory blocks that it needs. Its text has one line per rank: `rank 0: F0.0 F0.1 B0.0 B0.1`.
//!
//! The program is cut into chunks, numbered in the order in which a microbatch passes through them. A pipeline rank owns one or
//! more chunks; the placement has the rank of each chunk. Messages call a chunk a stage.

mod check;
mod error;
mod execution;
mod slots;
mod stream;
#[cfg(test)]
mod tests;
mod text;
mod timeline;

pub use check::check;
pub use error::{TimetableError, Wait};
pub use slots::{Block, SlotError, Slots, check_slots, slots};
pub use stream::{StreamTask, check_stream};
pub use text::TimetableTextError;
pub use timeline::{Seconds, TaskTime, Timeline};

use crate::Phase;

/// The phases of a task, with their letters in text.
pub const TASK_PHASES: [(Phase, char); 3] =
    [(Phase::Forward, 'F'), (Phase::Backward, 'B'), (Phase::Weight, 'W')];

/// A phase of a chunk, which is the program that a task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkPhase {
    /// Forward, backward or weight.
    pub phase: Phase,
    /// The chunk.
    pub chunk: u32,
}

/// A part for one microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Task {
    /// The part that the task runs.
    pub part: ChunkPhase,
    /// The microbatch, counted from 0.
    pub microbatch: u32,
}

/// For each pipeline rank, its tasks in the order in which it runs them.
///
/// A schedule that does not split backward has no weight tasks: its backward tasks compute the gradients of parameters too.
/// A schedule that splits backward has one weight task for each chunk and microbatch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Timetable {
    /// The tasks by rank.
    pub ranks: Vec<Vec<Task>>,
}

/// A dependency: for each microbatch, the task of part `to` reads a result of the task of part `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dependency {
    /// The part that computes the result.
    pub from: ChunkPhase,
    /// The part that reads it.
    pub to: ChunkPhase,
}

impl ChunkPhase {
    /// Makes the part of a phase and a chunk.
    pub fn new(phase: Phase, chunk: u32) -> Self {
        Self { phase, chunk }
    }

    /// Returns the task of this part for a microbatch.
    pub fn task(self, microbatch: u32) -> Task {
        Task { part: self, microbatch }
    }
}

impl Task {
    /// Makes the task of a phase, a chunk and a microbatch.
    pub fn new(phase: Phase, chunk: u32, microbatch: u32) -> Self {
        ChunkPhase::new(phase, chunk).task(microbatch)
    }

    /// Returns the task as text: `backward of stage 0, microbatch 3`.
    pub fn in_words(self) -> String {
        let Self { part: ChunkPhase { phase, chunk }, microbatch } = self;
        format!("{} of stage {chunk}, microbatch {microbatch}", phase.long_name())
    }
}

impl Timetable {
    /// Whether gradients of parameters are separate tasks.
    pub fn splits_backward(&self) -> bool {
        self.ranks.iter().flatten().any(|task| task.part.phase == Phase::Weight)
    }

    /// Returns the phases of a microbatch. An evaluation has only forward.
    pub fn phases(&self) -> Vec<Phase> {
        let has = |phase| self.ranks.iter().flatten().any(|task| task.part.phase == phase);
        let weight = has(Phase::Weight);
        let phases = [
            (Phase::Forward, true),
            (Phase::Backward, weight || has(Phase::Backward)),
            (Phase::Weight, weight),
        ];
        phases.into_iter().filter(|(_, has)| *has).map(|(phase, _)| phase).collect()
    }

    /// Returns the number of tasks of all ranks.
    pub fn task_count(&self) -> usize {
        self.ranks.iter().map(Vec::len).sum()
    }
}

impl Dependency {
    /// Returns the dependencies of a chain of chunks, in which each chunk reads only activations of the chunk before it.
    pub fn chain(chunks: u32, splits_backward: bool) -> Vec<Self> {
        let [forward, backward, weight] =
            TASK_PHASES.map(|(phase, _)| move |chunk| ChunkPhase::new(phase, chunk));
        let mut dependencies = Vec::new();
        let mut push = |from, to| dependencies.push(Self { from, to });
        for chunk in 0..chunks {
            if chunk > 0 {
                push(forward(chunk - 1), forward(chunk));
                push(backward(chunk), backward(chunk - 1));
            }
            push(forward(chunk), backward(chunk));
            if splits_backward {
                push(backward(chunk), weight(chunk));
            }
        }
        dependencies
    }
}
