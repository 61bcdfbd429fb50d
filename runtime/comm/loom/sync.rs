//! Loom's locks, its bytes that notice a read beside a write, and panics that only look like one.

use std::cell::Cell;

pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};

/// The unit of lent memory.
pub(super) type Byte = loom::cell::UnsafeCell<u8>;

loom::thread_local! {
    static PANICS: Cell<bool> = Cell::new(false);
}

/// Whether this rank is ending with a panic. Loom runs all ranks on one thread of the system, where one that unwinds would
/// make all of them panic; so a rank says that it panics, and returns.
pub(super) fn panicking() -> bool {
    PANICS.with(Cell::get)
}

/// Lets this rank go on as one that unwinds.
pub(super) fn panic() {
    PANICS.with(|panics| panics.set(true));
}
