//! What goes to the device and comes from it while it computes: nothing here waits for a computation that is going on.
//!
//! What is fed crosses on a queue of its own into memory beside the arena, and is put in its place when its turn comes. Two
//! such lanes take turns for each place, so that the next batch crosses while the device works on the one before.

use super::handles::{Mark, Memory, Pinned, Queue, refused};
use crate::cuda::driver::{Address, DriverError, Fetched};
use cudarc::driver::result;
use std::collections::HashMap;

/// The least that is pinned at once.
const LEAST: usize = 256;

/// Both directions.
pub(super) struct Exchange {
    /// By the place that they end in.
    lanes: HashMap<Address, Lanes>,
    /// What comes back.
    returns: Vec<Return>,
    /// Where copies to the device run beside computations.
    copies: Queue,
}

struct Lanes {
    both: [Lane; 2],
    next: usize,
}

struct Lane {
    /// On the host, and on the device.
    from: Pinned,
    landing: Memory,
    bytes: usize,
    /// It has come to the device: the host's side can be written again.
    arrived: Mark,
    /// It is in its place: the device's side can be.
    placed: Mark,
}

struct Return {
    memory: Pinned,
    capacity: usize,
    /// Bytes that are coming; none: nobody waits for it.
    bytes: Option<usize>,
    done: Mark,
}

impl Exchange {
    pub(super) fn new() -> Result<Self, DriverError> {
        Ok(Self { lanes: HashMap::new(), returns: vec![], copies: Queue::new(true)? })
    }

    /// Puts bytes in their place when their turn on `main` comes. They are the caller's again at once.
    #[allow(unsafe_code)]
    pub(super) fn feed(&mut self, main: &Queue, at: Address, bytes: &[u8]) -> Result<(), DriverError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let lanes = match self.lanes.get_mut(&at) {
            Some(lanes) if lanes.both[0].bytes >= bytes.len() => lanes,
            _ => {
                // What is in the old ones has to be in its place first.
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
        // SAFETY: the host's side stays as it is until `arrived` is reached, which is waited for above. The device's side is
        // as long, and its last bytes have been put in their place.
        unsafe { result::memcpy_htod_async(landing, staged, self.copies.0) }
            .map_err(refused("copying an input to the GPU"))?;
        lane.arrived.record(&self.copies)?;
        main.wait(&lane.arrived)?;
        // SAFETY: so many bytes are there, and the place is a program's.
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
            // SAFETY: nothing reads nor writes this memory until `done` is reached. The place is a program's.
            unsafe { result::memcpy_dtoh_async(to, at.0, main.0) }
                .map_err(refused("copying an output from the GPU"))?;
            staged = rest;
        }
        back.done.record(main)?;
        back.bytes = Some(total);
        Ok(Fetched(index))
    }

    /// Pinned memory of so many bytes that nobody waits for.
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

    /// What was fetched, when it has come.
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
        Ok(Self { from: Pinned::new(bytes)?, landing: Memory::new(bytes as u64)?, bytes, arrived, placed })
    }
}
