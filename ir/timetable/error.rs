//! The faults of a timetable.

use super::{Dependency, Task};
use std::fmt;

/// A fault of a timetable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimetableError {
    /// A chunk is placed on a rank that the timetable does not have.
    #[error(
        "stage {chunk} is placed on rank {rank}, but the timetable has {ranks} ranks, which count from 0"
    )]
    UnknownRank {
        /// The chunk.
        chunk: u32,
        /// The rank of the chunk in the placement.
        rank: u32,
        /// The number of ranks in the timetable.
        ranks: usize,
    },
    /// A task does not exist in the pipeline.
    #[error(
        "rank {rank} runs {task}, which does not exist: {stages} stages and {microbatches} microbatches count from 0"
    )]
    UnknownTask {
        /// The rank that runs the task.
        rank: usize,
        /// The task.
        task: Task,
        /// The number of chunks.
        stages: usize,
        /// The number of microbatches.
        microbatches: u32,
    },
    /// A dependency names a part that has no task in the timetable.
    #[error("the dependency {0} names a part of which the timetable has no task")]
    UnknownPart(Dependency),
    /// A task is in the list of a rank that does not own its chunk.
    #[error("rank {rank} runs {task}, but stage {} is on rank {owner}", task.part.chunk)]
    WrongRank {
        /// The rank that runs the task.
        rank: usize,
        /// The task.
        task: Task,
        /// The rank of its chunk.
        owner: u32,
    },
    /// A task occurs twice in the list of its rank.
    #[error("rank {rank} runs {task} twice")]
    Repeated {
        /// The rank.
        rank: usize,
        /// The task.
        task: Task,
    },
    /// A task is missing.
    #[error("rank {rank} never runs {task}")]
    Missing {
        /// The rank of its chunk.
        rank: u32,
        /// The task.
        task: Task,
    },
    /// Two microbatches of a part are in the wrong order, which would change the order of sums over microbatches.
    #[error(
        "rank {rank} runs {task} before {earlier}; a stage runs each phase in ascending order of microbatches"
    )]
    MicrobatchOrder {
        /// The rank.
        rank: usize,
        /// The task of the later microbatch, which comes first.
        task: Task,
        /// The task of the earlier microbatch.
        earlier: Task,
    },
    /// A task precedes a task of its own rank from which it reads.
    #[error("rank {rank} runs {task} before {needed}, from which it reads")]
    BeforeItsInput {
        /// The rank.
        rank: usize,
        /// The task.
        task: Task,
        /// The task from which it reads.
        needed: Task,
    },
    /// A task other than a forward task belongs to a later step of a stream.
    #[error(
        "rank {rank} runs {task} of a later step: a step has {microbatches} microbatches, and forward alone runs ahead of it"
    )]
    LaterStep {
        /// The rank.
        rank: usize,
        /// The task.
        task: Task,
        /// The microbatches of a step.
        microbatches: u32,
    },
    /// A forward task runs ahead of the update that computes its weights.
    #[error(
        "rank {rank} runs {task} {ahead} steps ahead, but stage {} reads the weights of {delay} update{} ago, which are not made yet", task.part.chunk, if *delay == 1 { "" } else { "s" }
    )]
    VersionNotMade {
        /// The rank.
        rank: usize,
        /// The task.
        task: Task,
        /// The number of steps that the task runs ahead of the step in whose list it is.
        ahead: u32,
        /// The number of updates between the weights that its stage reads and the newest weights.
        delay: u32,
    },
    /// Ranks wait for each other in a circle: each waits for the rank of the next entry, and the last for the rank of the first.
    #[error("the pipeline waits for ever: {}", join(.0))]
    Deadlock(Vec<Wait>),
}

/// A rank that waits for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The rank that waits.
    pub rank: usize,
    /// The task in which the rank waits.
    pub task: Task,
    /// The task for which the rank waits.
    pub needed: Task,
    /// The rank of the task `needed`.
    pub needed_rank: usize,
    /// The task in which the rank `needed_rank` waits.
    pub behind: Task,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, task, needed, needed_rank, behind } = self;
        let [stage, needed_stage] = [task, needed].map(|task| task.part.chunk);
        write!(f, "stage {stage} (rank {rank}) waits in {task} for {needed} of stage {needed_stage} ")?;
        write!(f, "(rank {needed_rank}), which stands behind {behind}")
    }
}

fn join(waits: &[Wait]) -> String {
    waits.iter().map(Wait::to_string).collect::<Vec<_>>().join("; ")
}
