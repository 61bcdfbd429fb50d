//! The bytes of the memories that a program takes.

use serde::Serialize;

/// The bytes that a program takes of each memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The states, from the start of the arena.
    pub states: u64,
    /// The arena: states, and the largest size of all other buffers.
    pub arena: u64,
    /// The largest sum of the sizes of values that are alive at one time. No plan can be smaller.
    pub lower_bound: u64,
    /// Constants.
    pub constants: u64,
    /// Memory of the host: states that rest there, and values of nodes that compute there.
    pub host: TierMemory,
    /// The file: states that rest there.
    pub disk: TierMemory,
    /// The arena by classes, at the position where most of it is in use.
    pub by_class: MemoryByClass,
}

/// Bytes of a memory beside that of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierMemory {
    /// The states, from the start of the memory.
    pub states: u64,
    /// The whole memory: states, and the largest size of all other buffers.
    pub total: u64,
    /// The largest number of bytes that are alive at one time.
    pub lower_bound: u64,
}

/// The bytes of each class at the position where most bytes are alive. Their sum is the size of the arena. `inspect` writes them as JSON:
/// the names of the fields are the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryByClass {
    /// Parameters and buffers of the model, and the casts of weights that a step makes before its first microbatch.
    pub parameters: u64,
    /// States of the optimizer, counters, and positions of random numbers.
    pub optimizer: u64,
    /// Gradients that wait for the update, and sums over microbatches.
    pub gradients: u64,
    /// Results of forward that backward reads.
    pub activations: u64,
    /// Everything else: inputs, values that die before their phase ends, scratch, and gaps of the plan.
    pub workspace: u64,
}

impl MemoryByClass {
    /// Returns the sum over all classes.
    pub fn total(&self) -> u64 {
        let Self { parameters, optimizer, gradients, activations, workspace } = self;
        parameters + optimizer + gradients + activations + workspace
    }
}

impl Memory {
    /// Returns the bytes of all memory that is allocated on the device.
    pub fn peak(&self) -> u64 {
        self.arena + self.constants
    }
}
