//! The bytes of the memories that a program takes.

use crate::lower::MemoryByClass;

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

impl Memory {
    /// Returns the bytes of all memory that is allocated on the device.
    pub fn peak(&self) -> u64 {
        self.arena + self.constants
    }
}
