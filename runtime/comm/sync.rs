//! The locks through which ranks meet, and the bytes that they lend. The models of `loom/` compile the callers of this module with loom's
//! locks and tracked bytes instead.

pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
pub(super) use std::thread::panicking;

/// The unit of lent memory.
pub(super) type Byte = u8;

/// The number of turns in which a rank looks again before it sleeps, about 400 µs: waking a thread takes longer than ranks usually wait for
/// each other.
pub(super) const TURNS: u32 = 512;

/// Ends a turn. Other threads that wait for this core can run.
pub(super) fn turn() {
    (0..16).for_each(|_| std::hint::spin_loop());
    std::thread::yield_now();
}
