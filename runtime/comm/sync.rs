//! The locks that ranks meet through, and the bytes that they lend. The models of `loom/` compile their callers with
//! loom's locks and tracked bytes in place of these.

pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
pub(super) use std::thread::panicking;

/// The unit of lent memory.
pub(super) type Byte = u8;

/// Turns for which a rank looks again before it sleeps, some 400 µs: to wake a thread takes longer than most ranks are apart.
pub(super) const TURNS: u32 = 512;

/// Passes a turn. Other threads that wait for this core run.
pub(super) fn turn() {
    (0..16).for_each(|_| std::hint::spin_loop());
    std::thread::yield_now();
}
