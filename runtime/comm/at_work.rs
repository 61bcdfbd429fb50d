//! The presence of a rank among the others, from the beginning of its work to the end.

use super::meeting::World;
use super::sync::panicking;
use std::sync::Arc;

/// A rank at work. Dropping it marks the rank as done, and ranks that still wait for it get an error. If a panic drops it, all ranks end.
pub struct AtWork {
    world: Arc<World>,
    rank: u64,
}

impl AtWork {
    pub(super) fn new(world: Arc<World>, rank: u64) -> Self {
        Self { world, rank }
    }

    /// Returns the number of this rank.
    pub fn rank(&self) -> u64 {
        self.rank
    }

    /// Ends all ranks because this rank failed, whether they wait now or later.
    pub fn fail(self) {
        self.world.end(self.rank);
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        if panicking() {
            self.world.end(self.rank);
        }
        self.world.leave(self.rank);
    }
}
