//! The amounts of work that keep a GPU of a given size busy.

use crate::target::Multiprocessors;

impl Multiprocessors {
    /// Returns the threads that all multiprocessors hold at once: 2,048 on each.
    pub(super) fn threads(self) -> usize {
        2048 * self.0.max(1) as usize
    }

    /// Returns the fewest blocks that keep all multiprocessors busy: two on each.
    pub(super) fn blocks(self) -> usize {
        2 * self.0.max(1) as usize
    }
}
