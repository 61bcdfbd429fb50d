//! Copies to and from the device while it computes. Nothing here waits for a computation in progress, unless an input outgrows its
//! lanes.
//!
//! Bytes that are fed cross on a queue of their own into memory beside the arena, and are copied to their place when their turn comes.
//! Each place has two such lanes that alternate, so that the next batch crosses while the device works on the present one.

use super::handles::{Allocation, Mark, Pinned, Queue, refused};
use crate::driver::{Address, DriverError, Fetched};
use cudarc::driver::result;
use std::collections::HashMap;

/// The size in bytes of the smallest pinned buffer.
const LEAST: usize = 256;

/// The copies in both directions.
pub(super) struct Exchange {
    /// The lanes, by the place in which they end.
    lanes: HashMap<Address, Lanes>,
    /// The buffers for bytes that come back.
    returns: Vec<Return>,
    /// The queue on which copies to the device run beside computations.
    copies: Queue,
}

struct Lanes {
    both: [Lane; 2],
    next: usize,
}

struct Lane {
    /// The memory on the host; `landing` is the memory on the device.
    from: Pinned,
    landing: Allocation,
    bytes: usize,
    /// Reached when the bytes have arrived on the device: the host's memory can then be written again.
    arrived: Mark,
    /// Reached when the bytes are in their place: the device's memory can then be written again.
    placed: Mark,
}

struct Return {
    memory: Pinned,
    capacity: usize,
    /// The number of bytes that are coming. `None` if nobody waits for the buffer.
    bytes: Option<usize>,
    done: Mark,
}

impl Exchange {
    pub(super) fn new() -> Result<Self, DriverError> {
        Ok(Self { lanes: HashMap::new(), returns: vec![], copies: Queue::new(true)? })
    }

    /// Copies bytes to their place when their turn on `main` comes. The caller may reuse them at once.
    #[allow(unsafe_code)]
    pub(super) fn feed(&mut self, main: &Queue, at: Address, bytes: &[u8]) -> Result<(), DriverError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let lanes = match self.lanes.get_mut(&at) {
            Some(lanes) if lanes.both[0].bytes >= bytes.len() => lanes,
            _ => {
                // The bytes in the old lanes have to be in their place first.
                main.finish()?;
                let both = [Lane::new(bytes.len())?, Lane::new(bytes.len())?];
                self.lanes.entry(at).insert_entry(Lanes { both, next: 0 }).into_mut()
            }
        };
        let lane = &mut lanes.both[lanes.next];
        lanes.next = 1 - lanes.next;
        lane.arrived.reached()?;
        let staged = &mut lane.from.bytes()[..bytes.len()];
        staged.copy_from_slice(bytes);
        self.copies.wait(&lane.placed)?;
        let landing = lane.landing.at.0;
        // SAFETY: the host's memory stays unchanged until `arrived` is reached, which is waited for above. The device's memory is as
        // long, and its previous bytes are in their place.
        unsafe { result::memcpy_htod_async(landing, staged, self.copies.0) }
            .map_err(refused("copying an input to the GPU"))?;
        lane.arrived.record(&self.copies)?;
        main.wait(&lane.arrived)?;
        // SAFETY: this number of bytes is there, and the place belongs to a program.
        unsafe { result::memcpy_dtod_async(at.0, landing, bytes.len(), main.0) }
            .map_err(refused("putting an input in its place"))?;
        lane.placed.record(main)
    }

    /// Copies bytes to the host when their turn on `main` comes.
    #[allow(unsafe_code)]
    pub(super) fn fetch(
        &mut self,
        main: &Queue,
        places: &[(Address, usize)],
    ) -> Result<Fetched, DriverError> {
        let total = places.iter().map(|(_, bytes)| bytes).sum();
        let index = self.free_return(total)?;
        let back = &mut self.returns[index];
        let mut staged = &mut back.memory.bytes()[..total];
        for &(at, bytes) in places {
            let (to, rest) = staged.split_at_mut(bytes);
            // SAFETY: nothing reads or writes this memory until `done` is reached. The place belongs to a program.
            unsafe { result::memcpy_dtoh_async(to, at.0, main.0) }
                .map_err(refused("copying an output from the GPU"))?;
            staged = rest;
        }
        back.done.record(main)?;
        back.bytes = Some(total);
        Ok(Fetched(index))
    }

    /// Returns a buffer of at least this size for which nobody waits.
    fn free_return(&mut self, bytes: usize) -> Result<usize, DriverError> {
        let fits = |back: &Return| back.bytes.is_none() && back.capacity >= bytes;
        if let Some(index) = self.returns.iter().position(fits) {
            return Ok(index);
        }
        let capacity = bytes.max(LEAST);
        let memory = Pinned::new(capacity)?;
        self.returns.push(Return { memory, capacity, bytes: None, done: Mark::new()? });
        Ok(self.returns.len() - 1)
    }

    /// Waits for the fetched bytes and returns them.
    pub(super) fn collect(&mut self, Fetched(index): Fetched) -> Result<Vec<u8>, DriverError> {
        let gone = || DriverError("the fetched bytes were already collected".into());
        let back = self.returns.get_mut(index).ok_or_else(gone)?;
        let bytes = back.bytes.take().ok_or_else(gone)?;
        back.done.reached()?;
        Ok(back.memory.bytes()[..bytes].to_vec())
    }
}

impl Lane {
    fn new(bytes: usize) -> Result<Self, DriverError> {
        let (arrived, placed) = (Mark::new()?, Mark::new()?);
        Ok(Self {
            from: Pinned::new(bytes)?,
            landing: Allocation::new(bytes as u64)?,
            bytes,
            arrived,
            placed,
        })
    }
}
