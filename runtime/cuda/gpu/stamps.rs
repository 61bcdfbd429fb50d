//! Moments on a GPU's streams, by the numbers under which they were stamped.

use super::handles::{Mark, Queue};
use crate::driver::DriverError;

/// Marks that record the time.
#[derive(Default)]
pub(super) struct Stamps(Vec<Mark>);

impl Stamps {
    /// Stamps the moment at which the queue has run its commands so far, under a number.
    pub(super) fn stamp(&mut self, number: usize, queue: &Queue) -> Result<(), DriverError> {
        while self.0.len() <= number {
            self.0.push(Mark::timed()?);
        }
        self.0[number].record(queue)
    }

    /// Returns the seconds from one stamp to another.
    pub(super) fn seconds(&self, from: usize, to: usize) -> Result<f64, DriverError> {
        let mark = |number: usize| {
            self.0.get(number).ok_or_else(|| DriverError(format!("there is no time stamp {number}")))
        };
        mark(to)?.seconds_after(mark(from)?)
    }
}
