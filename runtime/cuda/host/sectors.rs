//! Counts of the sectors of memory that kernels touch. A GPU reads and writes memory in sectors of 32 bytes: a warp whose threads touch
//! bytes far apart moves many bytes that nobody needs.
//!
//! Only packs are counted (`load` and `store` of `prelude.cuh`, and asynchronous copies), and only in global memory. Plain accesses
//! through a pointer are not. All bytes of a pack are one access; `tests/cuda/nvrtc/packs.rs` shows that a device takes one instruction
//! for 16 bytes of them, or for all of a smaller pack.

use super::Host;
use super::compile::Libraries;
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::{Arc, Mutex};

/// Sectors, summed over the accesses of warps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sectors {
    /// The sectors that were touched.
    pub touched: u64,
    /// The fewest sectors that can hold as many bytes: neighbours that begin at a sector.
    pub fewest: u64,
}

impl AddAssign for Sectors {
    fn add_assign(&mut self, other: Self) {
        self.touched += other.touched;
        self.fewest += other.fewest;
    }
}

/// The sectors of kernels, by their names. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Counts(Arc<Mutex<BTreeMap<String, Sectors>>>);

impl Counts {
    /// Adds the sectors of a launch.
    pub(super) fn add(&self, kernel: &str, sectors: Sectors) {
        let mut counts = self.0.lock().unwrap_or_else(|broken| broken.into_inner());
        *counts.entry(kernel.into()).or_default() += sectors;
    }

    /// Returns the sectors of each kernel that has run.
    pub fn by_kernel(&self) -> BTreeMap<String, Sectors> {
        self.0.lock().unwrap_or_else(|broken| broken.into_inner()).clone()
    }
}

impl Host {
    /// Returns a stand-in whose kernels count the sectors that they touch.
    pub fn counting(self, counts: &Counts) -> Self {
        Self { libraries: Libraries::counting(counts.clone()), ..self }
    }
}
