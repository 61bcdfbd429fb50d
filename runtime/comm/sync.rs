//! The locks that ranks meet through, and the bytes that they lend. The models of `loom/` compile their callers with
//! loom's locks and tracked bytes in place of these.

pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
pub(super) use std::thread::panicking;

/// The unit of lent memory.
pub(super) type Byte = u8;
