//! The checker of timetables. A timetable that it accepts satisfies:
//!
//! 1. Every chunk is on a rank of the timetable, and every task on the rank of its chunk.
//! 2. For each chunk and microbatch there is one forward task, one backward task unless there are none (an evaluation), and one
//!    weight task if there are any.
//! 3. Each part runs in ascending order of microbatches, so that every sum over microbatches has one order.
//! 4. On its own rank, a task comes after the tasks from which it reads.
//! 5. With blocking receives and sends that do not block, no rank waits for ever.

use super::execution::{Progress, execute};
use super::{ChunkPhase, Dependency, TASK_PHASES, Task, Timetable, TimetableError};
use crate::Phase;

/// Proves that a timetable can run, in time linear in the number of tasks. `placement` has the rank of each chunk.
pub fn check(
    timetable: &Timetable,
    placement: &[u32],
    microbatches: u32,
    dependencies: &[Dependency],
) -> Result<(), TimetableError> {
    owners(timetable, placement, microbatches)?;
    exactly_once(timetable, placement, microbatches)?;
    has_weight_tasks(timetable, dependencies)?;
    own_inputs(timetable, placement, Progress::new(placement.len(), dependencies)?)?;
    execute(timetable, placement, Progress::new(placement.len(), dependencies)?, |_, _| {})
}

/// Checks invariant 1.
fn owners(timetable: &Timetable, placement: &[u32], microbatches: u32) -> Result<(), TimetableError> {
    let ranks = timetable.ranks.len();
    if let Some((chunk, &rank)) = (0..).zip(placement).find(|(_, rank)| **rank as usize >= ranks) {
        return Err(TimetableError::UnknownRank { chunk, rank, ranks });
    }
    for (rank, task) in tasks(timetable) {
        let is_phase = TASK_PHASES.iter().any(|(phase, _)| *phase == task.part.phase);
        let stages = placement.len();
        match placement.get(task.part.chunk as usize) {
            Some(&owner) if is_phase && task.microbatch < microbatches => {
                if owner as usize != rank {
                    return Err(TimetableError::WrongRank { rank, task, owner });
                }
            }
            _ => return Err(TimetableError::UnknownTask { rank, task, stages, microbatches }),
        }
    }
    Ok(())
}

/// Checks invariants 2 and 3: the microbatches of a part are 0, 1, 2 and so on.
fn exactly_once(timetable: &Timetable, placement: &[u32], microbatches: u32) -> Result<(), TimetableError> {
    let mut progress = Progress::new(placement.len(), &[])?;
    for (rank, task) in tasks(timetable) {
        let next = progress.done(task.part);
        if task.microbatch < next {
            return Err(TimetableError::Repeated { rank, task });
        }
        if task.microbatch > next {
            return Err(skipped(timetable, rank, task, task.part.task(next)));
        }
        progress.finish(task);
    }
    for (chunk, &rank) in (0..).zip(placement) {
        for phase in timetable.phases() {
            let part = ChunkPhase::new(phase, chunk);
            let done = progress.done(part);
            if done < microbatches {
                return Err(TimetableError::Missing { rank, task: part.task(done) });
            }
        }
    }
    Ok(())
}

/// Returns the fault of a rank that runs a task before the task of an earlier microbatch, or without that task.
fn skipped(timetable: &Timetable, rank: usize, task: Task, earlier: Task) -> TimetableError {
    if timetable.ranks[rank].contains(&earlier) {
        TimetableError::MicrobatchOrder { rank, task, earlier }
    } else {
        TimetableError::Missing { rank: rank as u32, task: earlier }
    }
}

/// Refuses dependencies on weight tasks in a timetable without weight tasks.
fn has_weight_tasks(timetable: &Timetable, dependencies: &[Dependency]) -> Result<(), TimetableError> {
    let is_weight = |dependency: &&Dependency| {
        [dependency.from, dependency.to].iter().any(|part| part.phase == Phase::Weight)
    };
    match dependencies.iter().find(is_weight) {
        Some(&dependency) if !timetable.splits_backward() => Err(TimetableError::UnknownPart(dependency)),
        _ => Ok(()),
    }
}

/// Checks invariant 4.
fn own_inputs(
    timetable: &Timetable,
    placement: &[u32],
    mut progress: Progress,
) -> Result<(), TimetableError> {
    for (rank, task) in tasks(timetable) {
        let own = |needed: &Task| placement[needed.part.chunk as usize] as usize == rank;
        let missing = |needed: &Task| progress.done(needed.part) <= needed.microbatch;
        if let Some(needed) = progress.needs(task).find(|needed| own(needed) && missing(needed)) {
            return Err(TimetableError::BeforeItsInput { rank, task, needed });
        }
        progress.finish(task);
    }
    Ok(())
}

/// Returns every task with its rank.
fn tasks(timetable: &Timetable) -> impl Iterator<Item = (usize, Task)> {
    let ranks = timetable.ranks.iter().enumerate();
    ranks.flat_map(|(rank, tasks)| tasks.iter().map(move |&task| (rank, task)))
}
