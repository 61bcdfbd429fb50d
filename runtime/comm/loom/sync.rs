//! Loom's locks, loom's bytes (which detect a write during a read), and simulated panics.

use std::cell::Cell;

pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};

/// The unit of lent memory.
pub(super) type Byte = loom::cell::UnsafeCell<u8>;

/// Zero: a rank sleeps at once. Looking again first would make no difference to the other ranks.
pub(super) const TURNS: u32 = 0;

/// Ends a turn: does nothing here.
pub(super) fn turn() {}

loom::thread_local! {
    static PANICS: Cell<bool> = Cell::new(false);
}

/// Returns whether this rank is ending with a panic. Loom runs all ranks on one system thread, so a rank that unwinds would make all ranks
/// panic. A rank of a model sets a flag instead of panicking, and returns.
pub(super) fn panicking() -> bool {
    PANICS.with(Cell::get)
}

/// Makes [`panicking`] true for this rank.
pub(super) fn panic() {
    PANICS.with(|panics| panics.set(true));
}
