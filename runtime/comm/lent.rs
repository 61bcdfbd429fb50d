//! Bytes that one rank lets others read: the only place of the communicator where a borrow crosses threads.

use super::sync::Byte;
use std::marker::PhantomData;

/// A slice whose borrow the compiler does not check. [`super::meeting`] guarantees the condition of [`Lent::get`]: no rank leaves a
/// collective before all ranks have stopped reading.
pub(super) struct Lent {
    start: *const Byte,
    len: usize,
    bytes: PhantomData<*const [Byte]>,
}

// SAFETY: a `Lent` is a shared slice of bytes, which several threads may read at once.
#[allow(unsafe_code)]
unsafe impl Send for Lent {}
// SAFETY: the same reason.
#[allow(unsafe_code)]
unsafe impl Sync for Lent {}

impl Lent {
    pub(super) fn new(bytes: &[Byte]) -> Self {
        Self { start: bytes.as_ptr(), len: bytes.len(), bytes: PhantomData }
    }

    /// Returns the bytes.
    ///
    /// # Safety
    /// The slice that was lent is still borrowed, and stays borrowed as long as the result is used.
    #[allow(unsafe_code)]
    pub(super) unsafe fn get<'a>(&self) -> &'a [Byte] {
        // SAFETY: pointer and length come from a slice, which by the caller's promise is still borrowed.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}
