//! The timetable of an asynchronous schedule: steps follow each other without a flush.
//!
//! Such a timetable lists the tasks of one step of an unbroken stream. A forward task may belong to a later step: with m
//! microbatches per step, microbatch m + 1 is microbatch 1 of the next step. The forward tasks of microbatches before the first
//! one in the list run once, before the first step (the prologue). The last steps omit tasks of steps beyond the end, so the
//! pipeline drains.

use super::{ChunkPhase, Dependency, Task, Timetable, TimetableError, check};
use crate::Phase;
use std::collections::BTreeMap;

/// A task of a stream and its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTask {
    /// The task as it is in the timetable or in the prologue.
    pub task: Task,
    /// The step to whose list the task belongs, counted from the first step of the stream.
    pub step: u32,
}

impl StreamTask {
    /// Returns the microbatch, counted from the start of the stream.
    pub fn microbatch(self, microbatches: u32) -> u32 {
        self.step * microbatches + self.task.microbatch
    }
}

impl Timetable {
    /// Returns the forward tasks of a rank that run before its first step: those of microbatches before the first one in its list.
    pub fn prologue(&self, rank: usize) -> Vec<Task> {
        let mut first: BTreeMap<ChunkPhase, u32> = BTreeMap::new();
        let forward = self.ranks[rank].iter().filter(|task| task.part.phase == Phase::Forward);
        for task in forward {
            first.entry(task.part).or_insert(task.microbatch);
        }
        first.into_iter().flat_map(|(part, first)| (0..first).map(move |index| part.task(index))).collect()
    }

    /// Returns the tasks of a rank in a stream of `steps` steps with `microbatches` microbatches each: the prologue, and each
    /// step's list.
    pub fn stream(&self, rank: usize, microbatches: u32, steps: u32) -> Vec<StreamTask> {
        let prologue = self.prologue(rank).into_iter().map(|task| StreamTask { task, step: 0 });
        let of_steps =
            (0..steps).flat_map(|step| self.ranks[rank].iter().map(move |&task| StreamTask { task, step }));
        let is_there = |task: &StreamTask| task.microbatch(microbatches) < steps * microbatches;
        prologue.chain(of_steps).filter(is_there).collect()
    }

    /// Returns the timetable of so many steps, from the start of the stream until it has drained, as one long step.
    pub fn unrolled(&self, microbatches: u32, steps: u32) -> Self {
        let global = |task: StreamTask| task.task.part.task(task.microbatch(microbatches));
        let rank = |rank| self.stream(rank, microbatches, steps).into_iter().map(global).collect();
        Self { ranks: (0..self.ranks.len()).map(rank).collect() }
    }

    /// Returns the largest number of microbatches by which a task of a stream is ahead of a later task of its rank.
    fn spread(&self, microbatches: u32) -> u32 {
        let of_rank = |tasks: &Vec<Task>| {
            let last = tasks.iter().map(|task| task.microbatch).max().unwrap_or(0);
            // The tasks before the list belong to earlier steps.
            let (mut newest, mut spread) = (last.saturating_sub(microbatches), 0);
            for task in tasks {
                newest = newest.max(task.microbatch);
                spread = spread.max(newest - task.microbatch);
            }
            spread
        };
        self.ranks.iter().map(of_rank).max().unwrap_or(0)
    }

    /// Returns the largest number of steps by which a forward task runs ahead of its step.
    pub fn steps_ahead(&self, microbatches: u32) -> u32 {
        let tasks = self.ranks.iter().flatten();
        tasks.map(|task| task.microbatch / microbatches.max(1)).max().unwrap_or(0)
    }
}

/// Proves that the stream of a timetable can run for any number of steps: it satisfies the invariants of [`check`], and no forward
/// task runs further ahead than the versions of its stage's weights allow. `delays` has, for each chunk, the number of updates
/// between the weights that it reads and the newest weights.
///
/// Checking a finite number of steps is enough. Suppose that ranks wait for each other in a circle; these ranks are all different.
/// From one of them to the next, the microbatch of the waiting task grows by at most the spread, which is how far an earlier task
/// of a rank may be ahead of a later one. The growth around the circle is 0, so all its tasks lie within ranks · spread
/// microbatches, and every step of the stream has the same tasks.
pub fn check_stream(
    timetable: &Timetable,
    placement: &[u32],
    microbatches: u32,
    delays: &[u32],
    dependencies: &[Dependency],
) -> Result<(), TimetableError> {
    let stages = placement.len();
    for (rank, &task) in timetable
        .ranks
        .iter()
        .enumerate()
        .flat_map(|(rank, tasks)| tasks.iter().map(move |task| (rank, task)))
    {
        let ahead = task.microbatch / microbatches.max(1);
        let Some(&delay) = delays.get(task.part.chunk as usize) else {
            return Err(TimetableError::UnknownTask { rank, task, stages, microbatches });
        };
        if ahead > 0 && task.part.phase != Phase::Forward {
            return Err(TimetableError::LaterStep { rank, task, microbatches });
        }
        if ahead > delay {
            return Err(TimetableError::VersionNotMade { rank, task, ahead, delay });
        }
    }
    let longest = (timetable.ranks.len() as u32).saturating_mul(timetable.spread(microbatches) + 1);
    let steps = longest.div_ceil(microbatches.max(1)) + timetable.steps_ahead(microbatches) + 1;
    let unrolled = timetable.unrolled(microbatches, steps);
    check(&unrolled, placement, steps.saturating_mul(microbatches), dependencies)
}
