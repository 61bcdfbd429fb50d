//! When each task of a timetable starts and ends, for given costs.
//!
//! A rank runs one task after another. A receive blocks the rank until the result has arrived; a send costs its rank nothing,
//! and any number of transfers may be under way at once.

use super::execution::{Progress, execute};
use super::{Dependency, Part, Task, Timetable, TimetableError, check};
use std::ops::{Add, Sub};

/// A number that costs and times are given in: seconds as floats, or whole units in tests.
pub trait Seconds: Copy + Default + PartialOrd + Add<Output = Self> + Sub<Output = Self> {}

impl<T: Copy + Default + PartialOrd + Add<Output = T> + Sub<Output = T>> Seconds for T {}

/// Start and end of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskTime<T> {
    /// When its rank starts to compute it, after all receives.
    pub start: T,
    /// When it is done.
    pub end: T,
}

/// The times of all tasks. The step starts at 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline<T> {
    /// For each rank the times of its tasks, in the order of the timetable.
    pub ranks: Vec<Vec<TaskTime<T>>>,
    /// When the last task of all ranks is done.
    pub makespan: T,
}

impl<T: Seconds> Timeline<T> {
    /// Runs a timetable. `task_cost` is the time that a task of a part takes, `transfer_cost` that of a dependency whose
    /// parts are on different ranks. Costs must not be negative. The arguments before them are those of [`check`].
    pub fn new(
        timetable: &Timetable,
        placement: &[u32],
        microbatches: u32,
        dependencies: &[Dependency],
        task_cost: impl Fn(Part) -> T,
        transfer_cost: impl Fn(Dependency) -> T,
    ) -> Result<Self, TimetableError> {
        let task_cost = |task: Task| task_cost(task.part);
        Self::of_tasks(timetable, placement, microbatches, dependencies, task_cost, transfer_cost)
    }

    /// As [`Self::new`], where the tasks of a part may take different times.
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

    /// The time that a rank computes.
    pub fn busy(&self, rank: usize) -> T {
        self.ranks[rank].iter().fold(T::default(), |busy, time| busy + (time.end - time.start))
    }

    /// The time of the step in which a rank does not compute: its bubble.
    pub fn idle(&self, rank: usize) -> T {
        self.makespan - self.busy(rank)
    }

    /// The time between the start of the first task of a rank and the end of its last task in which it does not compute.
    /// Steps that follow each other without a barrier lose this time alone.
    pub fn stalled(&self, rank: usize) -> T {
        let times = &self.ranks[rank];
        let ends = times.first().zip(times.last());
        ends.map_or(T::default(), |(first, last)| last.end - first.start - self.busy(rank))
    }
}

/// The ends of the tasks that are done.
struct Ends<'a, T> {
    placement: &'a [u32],
    parts: Progress,
    /// By part, then by microbatch, since a part runs its microbatches in ascending order.
    by_part: Vec<Vec<T>>,
}

impl<T: Seconds> Ends<'_, T> {
    /// When everything that a task reads has arrived on its rank.
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
