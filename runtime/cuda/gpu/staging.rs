//! Copies between host and device through pinned memory: while one part is copied, the next is prepared.

use super::handles::{Mark, Pinned, Queue, refused};
use crate::driver::{Address, DriverError};
use cudarc::driver::result;

/// The bytes of a part: so many that the start of a copy takes no time in comparison.
const PART: usize = 4 << 20;

/// Two parts that alternate.
pub(super) struct Staging {
    parts: [StagingBuffer; 2],
    next: usize,
}

/// A buffer of pinned memory.
struct StagingBuffer {
    memory: Pinned,
    /// The end of the last copy from or to the buffer.
    done: Mark,
}

impl Staging {
    pub(super) fn new() -> Result<Self, DriverError> {
        let part = || Ok::<_, DriverError>(StagingBuffer { memory: Pinned::new(PART)?, done: Mark::new()? });
        Ok(Self { parts: [part()?, part()?], next: 0 })
    }

    /// Returns the next part, when the device has finished with it.
    fn take(&mut self) -> Result<usize, DriverError> {
        let index = self.next;
        self.next = (index + 1) % self.parts.len();
        self.parts[index].done.reached()?;
        Ok(index)
    }

    /// Copies bytes to the device. The caller may reuse them at once, but the device may still be copying.
    #[allow(unsafe_code)]
    pub(super) fn write(&mut self, queue: &Queue, at: Address, bytes: &[u8]) -> Result<(), DriverError> {
        for (number, chunk) in bytes.chunks(PART).enumerate() {
            let index = self.take()?;
            let part = &mut self.parts[index];
            let staged = &mut part.memory.bytes()[..chunk.len()];
            staged.copy_from_slice(chunk);
            let to = at.0 + (number * PART) as u64;
            // SAFETY: the part stays unchanged until `done` is reached: it is written only after `take`. The device's memory belongs to
            // a program.
            unsafe { result::memcpy_htod_async(to, staged, queue.0) }
                .map_err(|error| refused(&copying(chunk.len(), "to", to))(error))?;
            part.done.record(queue)?;
        }
        Ok(())
    }

    /// Copies bytes from the device.
    #[allow(unsafe_code)]
    pub(super) fn read(&mut self, queue: &Queue, at: Address, bytes: &mut [u8]) -> Result<(), DriverError> {
        let mut coming: Option<(usize, &mut [u8])> = None;
        for (number, chunk) in bytes.chunks_mut(PART).enumerate() {
            let index = self.take()?;
            let part = &mut self.parts[index];
            let staged = &mut part.memory.bytes()[..chunk.len()];
            let from = at.0 + (number * PART) as u64;
            // SAFETY: nothing reads or writes the part until `done` is reached.
            unsafe { result::memcpy_dtoh_async(staged, from, queue.0) }
                .map_err(|error| refused(&copying(staged.len(), "from", from))(error))?;
            part.done.record(queue)?;
            if let Some(earlier) = coming.replace((index, chunk)) {
                self.arrive(earlier)?;
            }
        }
        coming.map_or(Ok(()), |last| self.arrive(last))
    }

    fn arrive(&mut self, (index, to): (usize, &mut [u8])) -> Result<(), DriverError> {
        self.parts[index].done.reached()?;
        to.copy_from_slice(&self.parts[index].memory.bytes()[..to.len()]);
        Ok(())
    }
}

fn copying(bytes: usize, direction: &str, at: u64) -> String {
    format!("copying {bytes} bytes {direction} {at:#x} on the GPU")
}
