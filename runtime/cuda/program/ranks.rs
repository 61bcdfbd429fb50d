//! What a program for several GPUs has besides: numbers that differ between ranks, and what ranks exchange.

use super::Start;
use ir::{AxisId, DType, Mesh, PartialKind, Type};
use smallvec::SmallVec;
use std::fmt;

/// A number that differs between the ranks of a mesh, so that all have the same commands: what it is on the rank 0, and, for
/// each dim that is cut into parts, a step for every index before the rank's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByRank {
    /// What it is on the rank 0.
    pub first: i64,
    /// The dims that are cut.
    pub cuts: SmallVec<[Cut; 2]>,
}

/// A dim that is cut into parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The axes that split it, first one major.
    pub axes: SmallVec<[AxisId; 2]>,
    /// Its size on each rank.
    pub part: u64,
    /// Indices are counted up to this, and begin again: the dim's size, or a whole part of it.
    pub whole: u64,
    /// What an index counts.
    pub step: i64,
}

impl ByRank {
    /// What it is on a rank.
    pub fn on(&self, mesh: &Mesh, rank: u64) -> i64 {
        let before = |cut: &Cut| {
            let index = mesh.place(rank, &cut.axes) * cut.part;
            index.checked_rem(cut.whole).unwrap_or_default() as i64 * cut.step
        };
        self.first + self.cuts.iter().map(before).sum::<i64>()
    }
}

impl Cut {
    /// A dim of a tensor of which a rank has so much.
    pub fn of(ty: &Type, dim: usize, part: usize) -> Self {
        let axes = SmallVec::from_slice(ty.sharding.axes(dim));
        Self { axes, part: part as u64, whole: ty.dims[dim].size().unwrap_or(part as u64), step: 1 }
    }
}

/// What the ranks of a group exchange. Every tensor lies in pieces, one after the other; pieces are alike, and there is one
/// for each rank of the group where there are several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// Which; one that communicates.
    pub kind: ir::ops::collective::Collective,
    /// The axes of its groups ([`Mesh::group`]), first one major.
    pub axes: SmallVec<[AxisId; 2]>,
    /// How pieces combine, where they do.
    pub reduced: Option<PartialKind>,
    /// The tensors that travel together.
    pub tensors: Vec<Pieces>,
}

impl Collective {
    /// Whether the tensors of both can travel together.
    pub(in crate::cuda) fn is_like(&self, other: &Self) -> bool {
        (self.kind, &self.axes, self.reduced) == (other.kind, &other.axes, other.reduced)
    }
}

/// A tensor that travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Element type.
    pub dtype: DType,
    /// Elements of a piece.
    pub count: usize,
    /// Where it is: a piece, or one for each rank.
    pub from: Start,
    /// Where it goes: a piece, or one of each rank.
    pub to: Start,
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
