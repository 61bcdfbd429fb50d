//! How ranks end: where one fails all do, and what is reported is its error, with its number.

use crate::comm::CommError;
use crate::comm::local::AtWork;
use crate::device::DeviceError;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends what ranks wait for beyond their threads; it is given the rank that has failed.
pub(crate) type Abort = Box<dyn Fn(u64) + Send + Sync>;

/// Whether the ranks go on.
pub(super) struct Fate {
    abort: Abort,
    /// Whether a rank has failed: states may be those of different steps.
    ended: AtomicBool,
}

impl Fate {
    pub(super) fn new(abort: Abort) -> Self {
        Self { abort, ended: AtomicBool::new(false) }
    }

    /// Refuses when a rank has failed.
    pub(super) fn alive(&self) -> Result<(), DeviceError> {
        if self.ended.load(Ordering::Relaxed) { Err(DeviceError::Ended) } else { Ok(()) }
    }

    /// Ends all ranks, since this one has failed.
    pub(super) fn end(&self, rank: u64) {
        self.ended.store(true, Ordering::Relaxed);
        (self.abort)(rank);
    }

    /// What a rank was asked for beside its thread. A device that tells late what went wrong tells it here.
    pub(super) fn of_rank<R>(&self, rank: usize, result: Result<R, DeviceError>) -> Result<R, DeviceError> {
        result.map_err(|error| {
            self.end(rank as u64);
            with_rank(rank, error)
        })
    }
}

fn with_rank(rank: usize, error: DeviceError) -> DeviceError {
    DeviceError::Rank { rank: rank as u64, source: Box::new(error) }
}

/// A rank's work. A panic ends all ranks, as an error does.
pub(super) fn one<D, R>(
    device: &mut D,
    at_work: AtWork,
    run: &impl Fn(&mut D) -> Result<R, DeviceError>,
    fate: &Fate,
) -> Result<R, DeviceError> {
    let result = catch_unwind(AssertUnwindSafe(|| run(device))).unwrap_or_else(|panic| Err(panicked(panic)));
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

/// All results, or the error of the rank that failed first, else of the first that has one of its own.
pub(super) fn first_error<R>(
    results: Vec<Result<R, DeviceError>>,
    ended: Option<CommError>,
) -> Result<Vec<R>, DeviceError> {
    let failed = |rank: &usize| results.get(*rank).is_some_and(Result::is_err);
    let own =
        |rank: &usize| !matches!(results[*rank], Err(DeviceError::Communication(CommError::Ended { .. })));
    let first = match ended {
        Some(CommError::Ended { rank }) => Some(rank as usize).filter(failed),
        _ => None,
    };
    let mut all = (0..results.len()).filter(failed);
    let rank = first.or_else(|| all.clone().find(own)).or_else(|| all.next());
    let told = results.into_iter().enumerate().filter(|(index, _)| rank.is_none_or(|rank| rank == *index));
    told.map(|(rank, result)| result.map_err(|error| with_rank(rank, error))).collect()
}
