//! Copies between host and device, through memory of the host that the device reaches by itself: a copy of one part goes on
//! while the next is laid ready.

use super::handles::{Mark, Pinned, Queue, refused};
use crate::cuda::driver::{Address, DriverError};
use cudarc::driver::result;

/// Bytes of a part: enough that starting a copy takes no time in comparison.
const PART: usize = 4 << 20;

/// Two parts that take turns.
pub(super) struct Staging {
    parts: [StagingBuffer; 2],
    next: usize,
}

/// A buffer of pinned memory.
struct StagingBuffer {
    memory: Pinned,
    /// Where the last copy from or to it ends.
    done: Mark,
}

impl Staging {
    pub(super) fn new() -> Result<Self, DriverError> {
        let part = || Ok::<_, DriverError>(StagingBuffer { memory: Pinned::new(PART)?, done: Mark::new()? });
        Ok(Self { parts: [part()?, part()?], next: 0 })
    }

    /// The part whose turn it is, when the device is done with it.
    fn take(&mut self) -> Result<usize, DriverError> {
        let index = self.next;
        self.next = (index + 1) % self.parts.len();
        self.parts[index].done.reached()?;
        Ok(index)
    }

    /// Has bytes copied to the device. They are the caller's again at once; the device may still be at it.
    #[allow(unsafe_code)]
    pub(super) fn write(&mut self, queue: &Queue, at: Address, bytes: &[u8]) -> Result<(), DriverError> {
        for (number, chunk) in bytes.chunks(PART).enumerate() {
            let index = self.take()?;
            let part = &mut self.parts[index];
            let staged = &mut part.memory.bytes()[..chunk.len()];
            staged.copy_from_slice(chunk);
            let to = at.0 + (number * PART) as u64;
            // SAFETY: the part stays as it is until `done` is reached: nothing writes it without having taken it. The
            // device's memory is that of a program.
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
            // SAFETY: nothing reads nor writes the part until `done` is reached.
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
