//! Places of tensors. All devices have the same place, or each device's part of a larger tensor has a place of its own.

use super::BlockId;
use crate::layout::Layout;
use ir::{AxisId, DType, Mesh, Tier};
use smallvec::SmallVec;
use std::mem;
use std::ops::Range;

/// A tensor in the memory of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The memory.
    pub region: Region,
    /// The start of the tensor's buffer in its region, in bytes.
    pub base: u64,
    /// The element type.
    pub dtype: DType,
    /// The layout of the elements, from the buffer's start.
    pub layout: Layout,
    /// The distances from the first device's elements to those of other devices, if a device takes its part of a larger tensor.
    pub by_rank: RankSteps,
}

/// The distances between the parts of devices in a tensor.
pub type RankSteps = SmallVec<[RankStep; 1]>;

/// A distance between parts: a device's part begins this number of elements farther for each place along some axes ([`Mesh::place`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankStep {
    /// The axes, major first.
    pub axes: SmallVec<[AxisId; 2]>,
    /// The number of elements.
    pub elements: isize,
}

/// The memories of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Region {
    /// Values that change: states, inputs, and results.
    Arena,
    /// Constants.
    Constants,
    /// A block of the present microbatch in the arena. Its address depends on its slot.
    Block(BlockId),
    /// Memory of the host, beside that of the device.
    Host,
    /// A block of the present microbatch in memory of the host.
    HostBlock(BlockId),
    /// A file.
    Disk,
}

impl Region {
    /// Whether the region is a part of the arena.
    pub fn is_in_arena(self) -> bool {
        matches!(self, Self::Arena | Self::Block(_))
    }

    /// Whether the region is a part of the host's memory.
    pub fn is_on_host(self) -> bool {
        matches!(self, Self::Host | Self::HostBlock(_))
    }

    /// Whether the region is beside the memory of the device: on the host, or in a file.
    pub fn is_beside_device(self) -> bool {
        self.is_on_host() || self == Self::Disk
    }

    /// Returns the region of values that lie in a tier.
    pub fn of_tier(tier: Tier) -> Self {
        match tier {
            Tier::Device => Self::Arena,
            Tier::Host => Self::Host,
            Tier::Disk => Self::Disk,
        }
    }

    /// Returns the start of the region in its memory. `bases` has the start of each block of the present microbatch.
    pub fn start(self, bases: &[u64]) -> u64 {
        match self {
            Self::Arena | Self::Constants | Self::Host | Self::Disk => 0,
            Self::Block(block) | Self::HostBlock(block) => bases[block as usize],
        }
    }
}

impl View {
    /// Returns a tensor with the same place on all devices.
    pub fn whole(region: Region, base: u64, dtype: DType, layout: Layout) -> Self {
        Self { region, base, dtype, layout, by_rank: RankSteps::new() }
    }

    /// Replaces the place by that on one rank.
    pub(super) fn put_on_rank(&mut self, mesh: &Mesh, rank: u64) {
        for RankStep { axes, elements } in mem::take(&mut self.by_rank) {
            self.layout.offset += mesh.place(rank, &axes) as isize * elements;
        }
    }

    /// Returns the bytes that the view spans, from the start of its region. If they depend on the device, they are those of the first
    /// device.
    pub fn bytes(&self) -> Range<u64> {
        let (span, width) = (self.layout.span(), self.dtype.bytes());
        self.base + span.start as u64 * width..self.base + span.end as u64 * width
    }
}
