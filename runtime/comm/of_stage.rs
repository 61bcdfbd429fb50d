//! The ranks of one stage of a pipeline as a world of their own.

use super::{CollectiveKind, CommError, Communicator, Exchanged};
use ir::timetable::Task;
use std::sync::Arc;

/// A rank among the ranks of its stage, which count from 0 in collectives. Messages go to ranks of all stages.
pub struct OfStage {
    inner: Arc<dyn Communicator>,
    /// The number of the stage's first rank among all ranks.
    first: u64,
}

impl OfStage {
    /// Makes a rank of the stage whose first rank is `first`.
    pub fn new(inner: Arc<dyn Communicator>, first: u64) -> Self {
        Self { inner, first }
    }

    fn among_all(&self, group: &[u64]) -> Vec<u64> {
        group.iter().map(|rank| rank + self.first).collect()
    }
}

impl Communicator for OfStage {
    fn rank(&self) -> u64 {
        self.inner.rank() - self.first
    }

    fn comes_from(&self, origin: &Arc<str>) {
        self.inner.comes_from(origin);
    }

    fn turns_to(&self, task: Option<Task>) {
        self.inner.turns_to(task);
    }

    fn collective(
        &self,
        kind: CollectiveKind,
        group: &[u64],
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError> {
        self.inner.collective(kind, &self.among_all(group), tensors)
    }

    fn send(&self, to: u64, channel: u32, bytes: &[u8]) -> Result<(), CommError> {
        self.inner.send(to, channel, bytes)
    }

    fn receive(&self, from: u64, channel: u32, bytes: &mut [u8]) -> Result<(), CommError> {
        self.inner.receive(from, channel, bytes)
    }
}
