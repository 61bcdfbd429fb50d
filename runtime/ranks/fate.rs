//! The end of ranks: if one rank fails, all end, and its error is reported with its number.

use comm::CommError;
use comm::local::AtWork;
use ir::timetable::Task;
use program::device::DeviceError;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// A function that ends everything outside of their communicators that other ranks wait for. Its argument is the rank that failed.
pub type Abort = Box<dyn Fn(u64) + Send + Sync>;

/// An error with which a rank ends.
pub trait RankError: From<DeviceError> + Send {
    /// Returns the error of the rank's device, if it is one.
    fn device(&self) -> Option<&DeviceError>;

    /// Adds the number of the rank, and its task in a pipeline, to an error that concerns this rank alone.
    fn of_rank(self, rank: u64, task: Option<Task>) -> Self;
}

impl RankError for DeviceError {
    fn device(&self) -> Option<&DeviceError> {
        Some(self)
    }

    fn of_rank(self, rank: u64, task: Option<Task>) -> Self {
        Self::Rank { rank, task, source: Box::new(self) }
    }
}

/// The state of the ranks: whether they can go on.
pub(super) struct Fate {
    abort: Abort,
    /// Whether a rank has failed. States of different ranks may then come from different steps.
    ended: AtomicBool,
}

impl Fate {
    pub(super) fn new(abort: Abort) -> Self {
        Self { abort, ended: AtomicBool::new(false) }
    }

    /// Returns an error if a rank has failed.
    pub(super) fn alive(&self) -> Result<(), DeviceError> {
        if self.ended.load(Ordering::Relaxed) { Err(DeviceError::Ended) } else { Ok(()) }
    }

    /// Ends all ranks because this one failed.
    pub(super) fn end(&self, rank: u64) {
        self.ended.store(true, Ordering::Relaxed);
        (self.abort)(rank);
    }
}

/// Runs the work of a rank. A panic ends all ranks, as an error does.
pub(super) fn one<R, E: RankError>(
    at_work: AtWork,
    fate: &Fate,
    work: impl FnOnce() -> Result<R, E>,
) -> Result<R, E> {
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(panic).into()));
    if result.is_err() {
        let rank = at_work.rank();
        at_work.fail();
        fate.end(rank);
    }
    result
}

pub(super) fn panicked(panic: Box<dyn Any + Send>) -> DeviceError {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    DeviceError::Panicked { message: text.unwrap_or_else(|| "without a message".to_owned()) }
}

/// Returns all results, or the error of the rank that failed first. If that is not known, returns the first error that a rank has of its
/// own. `task` returns the task of a pipeline in which a rank was.
pub(super) fn first_error<R, E: RankError>(
    results: Vec<Result<R, E>>,
    ended: Option<CommError>,
    task: impl Fn(usize) -> Option<Task>,
) -> Result<Vec<R>, E> {
    let failed = |rank: &usize| results.get(*rank).is_some_and(Result::is_err);
    let own = |rank: &usize| {
        let device = results[*rank].as_ref().err().and_then(RankError::device);
        !matches!(device, Some(DeviceError::Communication(CommError::Ended { .. })))
    };
    let first = match ended {
        Some(CommError::Ended { rank }) => Some(rank as usize).filter(failed),
        _ => None,
    };
    let mut all = (0..results.len()).filter(failed);
    let rank = first.or_else(|| all.clone().find(own)).or_else(|| all.next());
    let told = results.into_iter().enumerate().filter(|(index, _)| rank.is_none_or(|rank| rank == *index));
    told.map(|(rank, result)| result.map_err(|error| error.of_rank(rank as u64, task(rank)))).collect()
}
