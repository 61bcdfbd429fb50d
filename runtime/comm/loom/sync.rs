//! Loom's locks, its bytes that notice a write during a read, and simulated panics.

use std::cell::Cell;

pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};

/// The unit of lent memory.
pub(super) type Byte = loom::cell::UnsafeCell<u8>;

/// A rank sleeps at once: to look again before is the same to the other ranks.
pub(super) const TURNS: u32 = 0;

/// Passes a turn.
pub(super) fn turn() {}

loom::thread_local! {
    static PANICS: Cell<bool> = Cell::new(false);
}

/// Whether this rank is ending with a panic. Loom runs all ranks on one thread of the system, so a rank that unwinds would
/// make all ranks panic. A rank of a model sets a flag in place of a panic, and returns.
pub(super) fn panicking() -> bool {
    PANICS.with(Cell::get)
}

/// Makes [`panicking`] true for this rank.
pub(super) fn panic() {
    PANICS.with(|panics| panics.set(true));
}
