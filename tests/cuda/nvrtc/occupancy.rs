//! The number of threads of a kernel that a multiprocessor holds at once, and a table of these numbers by file and architecture.
//!
//! The numbers are those of the CUDA programming guide, "Technical Specifications per Compute Capability", and of NVIDIA's
//! occupancy calculator.

use cuda::limits::REGISTERS;
use cuda::nvrtc::Resources;
use std::collections::BTreeMap;
use std::fmt;

/// The most warps and blocks of a multiprocessor, from sm_80 on except in smaller siblings (sm_86, sm_89, sm_120).
const WARPS: u32 = 64;
const BLOCKS: u32 = 32;

/// The parts of a multiprocessor, each with its share of the registers. All registers of a warp are in one part.
const PARTS: u32 = 4;

/// Bytes of shared memory that the driver reserves for each block.
const RESERVED: u32 = 1024;

/// The unit of a block's shared memory.
const SHARED_UNIT: u32 = 128;

/// The shared memory of a multiprocessor.
fn shared_of(architecture: &str) -> u32 {
    let kib = if architecture == "sm_80" { 164 } else { 228 };
    kib * 1024
}

/// The threads of a kernel, in blocks of `threads` threads, that a multiprocessor holds at once.
pub(super) fn resident(architecture: &str, resources: Resources, threads: u32) -> u32 {
    let warps = threads.div_ceil(32);
    if warps == 0 {
        return 0;
    }
    let of_warp = Resources { shared: 0, ..resources }.registers_of_block(32);
    let by_registers = REGISTERS / PARTS / of_warp.max(1) * PARTS / warps;
    let shared = (resources.shared + RESERVED).next_multiple_of(SHARED_UNIT);
    let by_shared = shared_of(architecture) / shared;
    by_registers.min(by_shared).min(WARPS / warps).min(BLOCKS) * threads
}

/// The resources of the kernels of a file, for an architecture.
#[derive(Clone, Copy, Debug)]
struct Row {
    kernels: usize,
    /// The most registers of a thread.
    registers: u32,
    /// The most bytes of a block's shared memory.
    shared: u32,
    /// The most bytes of a thread's local memory.
    local: u32,
    /// The fewest threads that a multiprocessor holds.
    resident: u32,
}

/// The resources of kernels, by file and architecture.
#[derive(Debug, Default)]
pub(super) struct Table(BTreeMap<(&'static str, String), Row>);

impl Table {
    /// Adds a kernel with blocks of `threads` threads.
    pub(super) fn add(&mut self, file: &'static str, architecture: &str, resources: Resources, threads: u32) {
        let none = Row { kernels: 0, registers: 0, shared: 0, local: 0, resident: u32::MAX };
        let row = self.0.entry((file, architecture.to_owned())).or_insert(none);
        row.kernels += 1;
        row.registers = row.registers.max(resources.registers);
        row.shared = row.shared.max(resources.shared);
        row.local = row.local.max(resources.stack);
        row.resident = row.resident.min(resident(architecture, resources, threads));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [file, architecture] = ["file", "for"];
        writeln!(f, "{file:22} {architecture:8} kernels  registers  shared  local  least threads at once")?;
        for ((file, architecture), row) in &self.0 {
            let Row { kernels, registers, shared, local, resident } = row;
            writeln!(
                f,
                "{file:22} {architecture:8} {kernels:7}  {registers:9}  {shared:6}  {local:5}  {resident:21}"
            )?;
        }
        Ok(())
    }
}
