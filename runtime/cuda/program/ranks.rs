//! Numbers that differ between the ranks of a program for several GPUs, and the collectives of such a program.

use super::ValueStart;
use ir::{AxisId, DType, Mesh, PartialKind, Type};
use smallvec::SmallVec;
use std::fmt;

/// A number that differs between the ranks of a mesh, so that all ranks have the same commands: the number on rank 0, and, for each dim
/// that is cut into parts, a step for every index before the rank's part. For example, a dim of 8 rows of 64 bytes that is split over
/// `tp=2` has a cut with part 4, whole 8 and step 64: rank 1 adds 4 · 64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByRank {
    /// The number on rank 0.
    pub first: i64,
    /// The dims that are cut.
    pub cuts: SmallVec<[CutDim; 2]>,
}

/// A dim that is cut into parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutDim {
    /// The axes that split the dim, the major axis first.
    pub axes: SmallVec<[AxisId; 2]>,
    /// The dim's size on each rank.
    pub part: u64,
    /// The number at which indices begin again at 0: the dim's size, or a whole part of it.
    pub whole: u64,
    /// The number that each index adds.
    pub step: i64,
}

impl ByRank {
    /// Returns the number of a rank.
    pub fn on(&self, mesh: &Mesh, rank: u64) -> i64 {
        let before = |cut: &CutDim| {
            let index = mesh.place(rank, &cut.axes) * cut.part;
            index.checked_rem(cut.whole).unwrap_or_default() as i64 * cut.step
        };
        self.first + self.cuts.iter().map(before).sum::<i64>()
    }
}

impl CutDim {
    /// Returns the cut of a tensor's dim of which each rank has `part` indices.
    pub fn of(ty: &Type, dim: usize, part: usize) -> Self {
        let axes = SmallVec::from_slice(ty.sharding.axes(dim));
        Self { axes, part: part as u64, whole: ty.dims[dim].size().unwrap_or(part as u64), step: 1 }
    }
}

/// A collective between the ranks of a group. Every tensor lies in equal pieces, one after the other: either one piece, or one for each
/// rank of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// The kind, which is one that communicates.
    pub kind: ir::ops::collective::Collective,
    /// The axes of its groups ([`Mesh::group`]), the major axis first.
    pub axes: SmallVec<[AxisId; 2]>,
    /// The reduction that combines pieces, if the kind has one.
    pub reduced: Option<PartialKind>,
    /// The tensors that travel together.
    pub tensors: Vec<Pieces>,
}

impl Collective {
    /// Whether the tensors of both collectives can travel together.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        (self.kind, &self.axes, self.reduced) == (other.kind, &other.axes, other.reduced)
    }
}

/// A tensor of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// The element type.
    pub dtype: DType,
    /// The number of elements of a piece.
    pub count: usize,
    /// The source: one piece, or one for each rank.
    pub from: ValueStart,
    /// The destination: one piece, or one from each rank.
    pub to: ValueStart,
}

/// `all_reduce Sum over [axis0] f32 x 4096`
impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", ir::Op::from(self.kind).name())?;
        self.reduced.map_or(Ok(()), |kind| write!(f, " {kind:?}"))?;
        write!(f, " over {:?}", self.axes.as_slice())?;
        self.tensors.iter().try_for_each(|pieces| write!(f, " {} x {}", pieces.dtype, pieces.count))
    }
}
