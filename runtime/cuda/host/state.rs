//! The queues and the memory of the stand-in: the command that comes next, and the bytes at an address.

use super::{Queued, State};
use crate::driver::{Address, DriverError};
use crate::program::Stream;

impl State {
    /// Returns the next command of a stream, unless it waits for an event.
    pub(super) fn take(&mut self, stream: Stream) -> Option<Queued> {
        let queue = self.queues.get_mut(&stream)?;
        if let Queued::Wait(event, count) = queue.front()?
            && self.marked.get(event).copied().unwrap_or_default() < *count
        {
            return None;
        }
        queue.pop_front()
    }

    /// Returns the memory from an address on: this number of bytes, or all bytes.
    pub(super) fn bytes<'a>(&self, at: Address, bytes: Option<usize>) -> Result<&'a mut [u8], DriverError> {
        let memories = self.memory.iter().map(|memory| (memory.start(), memory.all()));
        for (start, all) in memories.chain(self.guards.memories()) {
            let Some(offset) = at.0.checked_sub(start.0).filter(|&offset| offset <= all.len() as u64) else {
                continue;
            };
            let left = &mut all[offset as usize..];
            let count = bytes.unwrap_or(left.len());
            if count <= left.len() {
                return Ok(&mut left[..count]);
            }
        }
        Err(DriverError(format!("{bytes:?} bytes at {:#x} are not in the device's memory", at.0)))
    }
}
