//! Places of tensors: the same on all devices, or, for a device's part of a larger tensor, farther on each.

use super::BlockId;
use crate::layout::Layout;
use ir::{AxisId, DType, Mesh, Tier};
use smallvec::SmallVec;
use std::mem;
use std::ops::Range;

/// A tensor in the memory of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Which memory.
    pub region: Region,
    /// Where its buffer starts in its region, in bytes.
    pub base: u64,
    /// Element type.
    pub dtype: DType,
    /// Where the elements are, from the buffer's start.
    pub layout: Layout,
    /// How much farther they are on other devices than the first, where a device takes its part of a larger tensor.
    pub by_rank: RankSteps,
}

/// The distances by which the parts of devices lie apart in a tensor.
pub type RankSteps = SmallVec<[RankStep; 1]>;

/// A device's part begins so many elements farther for each place along some axes ([`Mesh::place`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankStep {
    /// The axes, first one major.
    pub axes: SmallVec<[AxisId; 2]>,
    /// The elements.
    pub elements: isize,
}

/// The memories of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Region {
    /// What changes: states, inputs, everything computed.
    Arena,
    /// What does not.
    Constants,
    /// A block of the present microbatch, which lies in the arena, in another place for each slot.
    Block(BlockId),
    /// Memory of the host, beside that of the device.
    Host,
    /// A block of the present microbatch in memory of the host.
    HostBlock(BlockId),
    /// A file.
    Disk,
}

impl Region {
    /// Whether it is a part of the arena.
    pub fn is_in_arena(self) -> bool {
        matches!(self, Self::Arena | Self::Block(_))
    }

    /// Whether it is a part of the host's memory.
    pub fn is_on_host(self) -> bool {
        matches!(self, Self::Host | Self::HostBlock(_))
    }

    /// Whether it is beside the memory of the device: on the host, or in a file.
    pub fn is_beside_device(self) -> bool {
        self.is_on_host() || self == Self::Disk
    }

    /// The region of values that lie in a tier.
    pub fn of_tier(tier: Tier) -> Self {
        match tier {
            Tier::Device => Self::Arena,
            Tier::Host => Self::Host,
            Tier::Disk => Self::Disk,
        }
    }

    /// Where it begins in its memory, if the blocks of the present microbatch begin at `bases`.
    pub fn start(self, bases: &[u64]) -> u64 {
        match self {
            Self::Arena | Self::Constants | Self::Host | Self::Disk => 0,
            Self::Block(block) | Self::HostBlock(block) => bases[block as usize],
        }
    }
}

impl View {
    /// A tensor that lies alike on all devices.
    pub(crate) fn whole(region: Region, base: u64, dtype: DType, layout: Layout) -> Self {
        Self { region, base, dtype, layout, by_rank: RankSteps::new() }
    }

    /// Fixes its place to that on a rank.
    pub(super) fn put_on_rank(&mut self, mesh: &Mesh, rank: u64) {
        for RankStep { axes, elements } in mem::take(&mut self.by_rank) {
            self.layout.offset += mesh.place(rank, &axes) as isize * elements;
        }
    }

    /// The bytes it spans, from the start of its region. Where that depends on the device, those of the first one.
    pub fn bytes(&self) -> Range<u64> {
        let (span, width) = (self.layout.span(), self.dtype.bytes());
        self.base + span.start as u64 * width..self.base + span.end as u64 * width
    }
}
