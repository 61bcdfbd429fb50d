//! Measures copies on a GPU that does nothing else, and the free memory of a GPU.

use super::handles::{Allocation, Context, Pinned, Queue, refused};
use crate::driver::{Address, DriverError};
use cudarc::driver::result;
use std::time::{Duration, Instant};

/// The source and the destination of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From pinned memory of the host to the device.
    ToDevice,
    /// From the device to pinned memory of the host.
    FromDevice,
    /// Within the device's memory.
    WithinDevice,
}

/// Copies that are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// The source and the destination.
    pub direction: Direction,
    /// The bytes of each copy.
    pub bytes: usize,
    /// The number of copies that are timed together, one after the other.
    pub together: usize,
    /// The number of repetitions, after a first one to warm up.
    pub repeats: usize,
}

/// Returns the free bytes and all bytes of the GPU with this number. The driver must be open: see [`crate::probe`].
///
/// # Errors
/// The GPU cannot be used.
pub fn memory(ordinal: usize) -> Result<(u64, u64), DriverError> {
    context(ordinal)?.memory()
}

/// Measures the time that these copies take together on the GPU with this number, for each repetition. The driver must be open.
///
/// # Errors
/// The driver refuses a call.
pub fn time(ordinal: usize, copies: Copies) -> Result<Vec<Duration>, DriverError> {
    let context = context(ordinal)?;
    let times = Places::new(copies.bytes)?.time(copies);
    // Everything in the context is released by now.
    drop(context);
    times
}

fn context(ordinal: usize) -> Result<Context, DriverError> {
    Context::new(i32::try_from(ordinal).map_err(|error| DriverError(error.to_string()))?)
}

/// The sources and destinations of copies.
struct Places {
    // Released in this order: the driver waits for commands that use its memory.
    device: [Allocation; 2],
    host: Pinned,
    queue: Queue,
}

impl Places {
    fn new(bytes: usize) -> Result<Self, DriverError> {
        let queue = Queue::new(true)?;
        let memory = || {
            let memory = Allocation::new(bytes as u64)?;
            memory.clear(bytes as u64, &queue)?;
            Ok::<_, DriverError>(memory)
        };
        let device = [memory()?, memory()?];
        Ok(Self { device, host: Pinned::new(bytes)?, queue })
    }

    fn time(mut self, copies: Copies) -> Result<Vec<Duration>, DriverError> {
        let mut times = Vec::new();
        for _ in 0..=copies.repeats {
            self.queue.finish()?;
            let start = Instant::now();
            for _ in 0..copies.together {
                self.copy(copies)?;
            }
            self.queue.finish()?;
            times.push(start.elapsed());
        }
        // The first repetition is a warm-up.
        times.remove(0);
        Ok(times)
    }

    #[allow(unsafe_code)]
    fn copy(&mut self, copies: Copies) -> Result<(), DriverError> {
        let [Address(first), Address(second)] = [self.device[0].at, self.device[1].at];
        let (host, queue) = (&mut self.host.bytes()[..copies.bytes], self.queue.0);
        // SAFETY: all three places have this number of bytes, and live until the queue is empty: `time` waits for that, and otherwise
        // they are released by calls that wait themselves.
        let copied = unsafe {
            match copies.direction {
                Direction::ToDevice => result::memcpy_htod_async(first, host, queue),
                Direction::FromDevice => result::memcpy_dtoh_async(host, first, queue),
                Direction::WithinDevice => result::memcpy_dtod_async(second, first, copies.bytes, queue),
            }
        };
        copied.map_err(|error| refused(&format!("copying {} bytes", copies.bytes))(error))
    }
}
