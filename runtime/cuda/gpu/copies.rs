//! How long copies take that nothing else does besides, and how much memory of a GPU is free.

use super::handles::{Context, Memory, Pinned, Queue, refused};
use crate::cuda::check::{Copies, Direction};
use crate::cuda::driver::{Address, DriverError};
use cudarc::driver::result;
use std::time::{Duration, Instant};

/// Bytes of the GPU of a number that are free, and all. The driver is there: see [`crate::cuda::probe`].
///
/// # Errors
/// The GPU is not to be had.
pub fn memory(ordinal: usize) -> Result<(u64, u64), DriverError> {
    context(ordinal)?.memory()
}

/// How long these copies take on the GPU of a number, together, each time. The driver is there.
///
/// # Errors
/// What the driver refuses.
pub fn time(ordinal: usize, copies: Copies) -> Result<Vec<Duration>, DriverError> {
    let context = context(ordinal)?;
    let times = Places::new(copies.bytes)?.time(copies);
    // What was lent is given back by now.
    drop(context);
    times
}

fn context(ordinal: usize) -> Result<Context, DriverError> {
    Context::new(i32::try_from(ordinal).map_err(|error| DriverError(error.to_string()))?)
}

/// What is copied from and to.
struct Places {
    // Given back in this order: the driver waits for what uses its memory.
    device: [Memory; 2],
    host: Pinned,
    queue: Queue,
}

impl Places {
    fn new(bytes: usize) -> Result<Self, DriverError> {
        let queue = Queue::new(true)?;
        let memory = || {
            let memory = Memory::new(bytes as u64)?;
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
        // The first was to warm up.
        times.remove(0);
        Ok(times)
    }

    #[allow(unsafe_code)]
    fn copy(&mut self, copies: Copies) -> Result<(), DriverError> {
        let [Address(first), Address(second)] = [self.device[0].at, self.device[1].at];
        let (host, queue) = (&mut self.host.bytes()[..copies.bytes], self.queue.0);
        // SAFETY: all three places have so many bytes, and live until the queue is empty: `time` waits for that, and else
        // they are given back by calls that wait themselves.
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
