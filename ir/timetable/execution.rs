//! Runs a timetable without costs, to find out which tasks can start.

use super::{ChunkPhase, Dependency, TASK_PHASES, Task, Timetable, TimetableError, Wait};
use std::collections::{BTreeMap, VecDeque};

/// The number of finished tasks of each part, and the parts from which each part reads.
///
/// A part runs its microbatches in ascending order, so one number tells which of its tasks are finished.
pub(super) struct Progress {
    chunks: usize,
    done: Vec<u32>,
    needs: Vec<Vec<ChunkPhase>>,
}

impl Progress {
    /// Starts with no finished task. Dependencies on chunks and phases that no task can have are an error.
    pub(super) fn new(chunks: usize, dependencies: &[Dependency]) -> Result<Self, TimetableError> {
        let parts = chunks * TASK_PHASES.len();
        let mut progress = Self { chunks, done: vec![0; parts], needs: vec![Vec::new(); parts] };
        for &dependency in dependencies {
            let unknown = || TimetableError::UnknownPart(dependency);
            progress.index(dependency.from).ok_or_else(unknown)?;
            let to = progress.index(dependency.to).ok_or_else(unknown)?;
            progress.needs[to].push(dependency.from);
        }
        Ok(progress)
    }

    /// Returns the number of parts, which is the length of a table indexed by [`Progress::index`].
    pub(super) fn part_count(&self) -> usize {
        self.done.len()
    }

    /// Returns the index of a part in a table of all parts.
    pub(super) fn index(&self, part: ChunkPhase) -> Option<usize> {
        let phase = TASK_PHASES.iter().position(|(phase, _)| *phase == part.phase)?;
        let chunk = part.chunk as usize;
        (chunk < self.chunks).then_some(phase * self.chunks + chunk)
    }

    /// Returns the number of finished tasks of a part.
    pub(super) fn done(&self, part: ChunkPhase) -> u32 {
        self.index(part).map_or(0, |index| self.done[index])
    }

    /// Counts a task as finished.
    pub(super) fn finish(&mut self, task: Task) {
        if let Some(index) = self.index(task.part) {
            self.done[index] += 1;
        }
    }

    /// Returns the tasks from which a task reads.
    pub(super) fn needs(&self, task: Task) -> impl Iterator<Item = Task> {
        let parts = self.index(task.part).map_or(&[][..], |index| &self.needs[index]);
        parts.iter().map(move |part| part.task(task.microbatch))
    }

    /// Returns the first unfinished task from which a task reads.
    pub(super) fn missing(&self, task: Task) -> Option<Task> {
        self.needs(task).find(|needed| self.done(needed.part) <= needed.microbatch)
    }
}

/// Runs every task as soon as the tasks from which it reads are finished, and calls `visit` for each task in that order. The lists
/// must hold each task once, the microbatches of a part in ascending order, and no task before its input on its own rank.
pub(super) fn execute(
    timetable: &Timetable,
    placement: &[u32],
    mut progress: Progress,
    mut visit: impl FnMut(usize, Task),
) -> Result<(), TimetableError> {
    let mut next = vec![0; timetable.ranks.len()];
    let mut ready: VecDeque<usize> = (0..next.len()).collect();
    // Each rank has at most one entry. The key is the needed task, so a finished task wakes exactly the ranks that wait for it.
    let mut waiting: BTreeMap<Task, Vec<usize>> = BTreeMap::new();
    while let Some(rank) = ready.pop_front() {
        while let Some(&task) = timetable.ranks[rank].get(next[rank]) {
            if let Some(needed) = progress.missing(task) {
                waiting.entry(needed).or_default().push(rank);
                break;
            }
            visit(rank, task);
            progress.finish(task);
            next[rank] += 1;
            ready.extend(waiting.remove(&task).unwrap_or_default());
        }
    }
    if waiting.is_empty() {
        Ok(())
    } else {
        Err(TimetableError::Deadlock(circle(timetable, placement, &next, &waiting)))
    }
}

/// Returns ranks that wait for each other in a circle. Every waiting rank waits for a task of another waiting rank, so following
/// these ranks leads back to a rank that was visited before.
fn circle(
    timetable: &Timetable,
    placement: &[u32],
    next: &[usize],
    waiting: &BTreeMap<Task, Vec<usize>>,
) -> Vec<Wait> {
    let mut needs = vec![None; next.len()];
    for (&needed, ranks) in waiting {
        ranks.iter().for_each(|&rank| needs[rank] = Some(needed));
    }
    let stands = |rank: usize| timetable.ranks[rank].get(next[rank]).copied();
    let wait = |rank: usize| {
        let needed: Task = needs[rank]?;
        let needed_rank = placement[needed.part.chunk as usize] as usize;
        Some(Wait { rank, task: stands(rank)?, needed, needed_rank, behind: stands(needed_rank)? })
    };
    let mut waits: Vec<Wait> = Vec::new();
    let mut place = vec![None; next.len()];
    let mut rank = needs.iter().position(Option::is_some);
    while let Some(at) = rank {
        if let Some(start) = place[at] {
            return waits.split_off(start);
        }
        place[at] = Some(waits.len());
        let found = wait(at);
        rank = found.map(|wait| wait.needed_rank);
        waits.extend(found);
    }
    waits
}
