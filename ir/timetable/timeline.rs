//! The start and end times of the tasks of a timetable, for given costs.
//!
//! A rank runs one task after another. A receive blocks the rank until the result has arrived. A send takes no time of its rank,
//! and any number of transfers may be in flight at once.

use super::execution::{Progress, execute};
use super::{ChunkPhase, Dependency, Task, Timetable, TimetableError, check};
use std::ops::{Add, Sub};

/// The number type of costs and times: seconds as floats, or whole units in tests.
pub trait Seconds: Copy + Default + PartialOrd + Add<Output = Self> + Sub<Output = Self> {}

impl<T: Copy + Default + PartialOrd + Add<Output = T> + Sub<Output = T>> Seconds for T {}

/// The start and end of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskTime<T> {
    /// The time at which its rank starts to compute it, after all receives.
    pub start: T,
    /// The time at which it is finished.
    pub end: T,
}

/// The times of all tasks. The step starts at 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline<T> {
    /// For each rank, the times of its tasks in the order of the timetable.
    pub ranks: Vec<Vec<TaskTime<T>>>,
    /// The time at which the last task of all ranks is finished.
    pub makespan: T,
}

impl<T: Seconds> Timeline<T> {
    /// Runs a timetable. `task_cost` returns the time of a task of a part, `transfer_cost` the time of a dependency between
    /// different ranks. Costs must not be negative. The other arguments are those of [`check`].
    pub fn new(
        timetable: &Timetable,
        placement: &[u32],
        microbatches: u32,
        dependencies: &[Dependency],
        task_cost: impl Fn(ChunkPhase) -> T,
        transfer_cost: impl Fn(Dependency) -> T,
    ) -> Result<Self, TimetableError> {
        let task_cost = |task: Task| task_cost(task.part);
        Self::of_tasks(timetable, placement, microbatches, dependencies, task_cost, transfer_cost)
    }

    /// Runs a timetable as [`Self::new`] does; the tasks of a part may take different times.
    pub fn of_tasks(
        timetable: &Timetable,
        placement: &[u32],
        microbatches: u32,
        dependencies: &[Dependency],
        task_cost: impl Fn(Task) -> T,
        transfer_cost: impl Fn(Dependency) -> T,
    ) -> Result<Self, TimetableError> {
        check(timetable, placement, microbatches, dependencies)?;
        let progress = Progress::new(placement.len(), dependencies)?;
        let needs = Progress::new(placement.len(), dependencies)?;
        let mut ends = Ends { placement, by_part: vec![Vec::new(); needs.part_count()], parts: needs };
        let mut ranks: Vec<Vec<TaskTime<T>>> = vec![Vec::new(); timetable.ranks.len()];
        execute(timetable, placement, progress, |rank, task| {
            let free = ranks[rank].last().map_or(T::default(), |time| time.end);
            let start = later(free, ends.arrival(rank, task, &transfer_cost));
            let end = start + task_cost(task);
            ends.push(task, end);
            ranks[rank].push(TaskTime { start, end });
        })?;
        let last = ranks.iter().filter_map(|times| times.last());
        let makespan = last.fold(T::default(), |makespan, time| later(makespan, time.end));
        Ok(Self { ranks, makespan })
    }

    /// Returns the time during which a rank computes.
    pub fn busy(&self, rank: usize) -> T {
        self.ranks[rank].iter().fold(T::default(), |busy, time| busy + (time.end - time.start))
    }

    /// Returns the time of the step during which a rank does not compute: its bubble.
    pub fn idle(&self, rank: usize) -> T {
        self.makespan - self.busy(rank)
    }

    /// Returns the time between the start of a rank's first task and the end of its last task during which the rank does not
    /// compute. When steps follow each other without a barrier, only this time is lost.
    pub fn stalled(&self, rank: usize) -> T {
        let times = &self.ranks[rank];
        let ends = times.first().zip(times.last());
        ends.map_or(T::default(), |(first, last)| last.end - first.start - self.busy(rank))
    }
}

/// The end times of the finished tasks.
struct Ends<'a, T> {
    placement: &'a [u32],
    parts: Progress,
    /// The end times, by part and then by microbatch, because a part runs its microbatches in ascending order.
    by_part: Vec<Vec<T>>,
}

impl<T: Seconds> Ends<'_, T> {
    /// Returns the time at which all inputs of a task have arrived on its rank.
    fn arrival(&self, rank: usize, task: Task, transfer_cost: impl Fn(Dependency) -> T) -> T {
        let arrivals = self.parts.needs(task).filter_map(|needed| {
            let end = *self.by_part[self.parts.index(needed.part)?].get(needed.microbatch as usize)?;
            let is_own = self.placement[needed.part.chunk as usize] as usize == rank;
            let dependency = Dependency { from: needed.part, to: task.part };
            Some(if is_own { end } else { end + transfer_cost(dependency) })
        });
        arrivals.fold(T::default(), later)
    }

    fn push(&mut self, task: Task, end: T) {
        if let Some(index) = self.parts.index(task.part) {
            self.by_part[index].push(end);
        }
    }
}

fn later<T: PartialOrd>(a: T, b: T) -> T {
    if b > a { b } else { a }
}
