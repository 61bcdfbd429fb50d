//! Memory of the host that was lent to the stand-in. It is apart from the stand-in's own memory: only copies reach both.

use super::State;
use crate::driver::{Address, CopyTask, DriverError};
use std::ops::Range;
use std::ptr;

impl State {
    /// Copies bytes from or to the host.
    pub(super) fn copy(&self, CopyTask { from, to, bytes }: CopyTask) -> Result<(), DriverError> {
        let bytes = bytes as usize;
        match (self.lent(from, bytes), self.lent(to, bytes)) {
            (Some(from), None) => self.bytes(to, Some(bytes))?.copy_from_slice(from),
            (None, Some(to)) => to.copy_from_slice(self.bytes(from, Some(bytes))?),
            _ => return Err(DriverError("a copy that is not between the host and the device".into())),
        }
        Ok(())
    }

    /// Returns bytes of lent memory, if all of them lie in it.
    #[allow(unsafe_code)]
    pub(super) fn lent<'a>(&self, at: Address, bytes: usize) -> Option<&'a mut [u8]> {
        let is_within = |lent: &Range<u64>| lent.start <= at.0 && at.0 + bytes as u64 <= lent.end;
        self.lent.iter().find(|lent| is_within(lent))?;
        let start = ptr::with_exposed_provenance_mut(at.0 as usize);
        // SAFETY: the memory outlives the driver, and commands that touch it run one after the other.
        Some(unsafe { std::slice::from_raw_parts_mut(start, bytes) })
    }
}
