//! The pieces of tensors that ranks exchange in a collective.

use super::Exchanged;
use super::block::Block;
use ir::DType;
use std::ops::Range;

/// The shares of a tensor for the ranks of a group: whole elements, of nearly equal length.
#[derive(Clone, Copy)]
pub(super) struct Shares {
    pub(super) dtype: DType,
    bytes: usize,
    count: usize,
}

impl Shares {
    /// Returns the shares of `count` ranks in the result of a tensor.
    pub(super) fn of(tensor: &Exchanged, count: usize) -> Self {
        Self { dtype: tensor.dtype, bytes: tensor.result.len(), count }
    }

    /// Returns the bytes of the share of a place.
    pub(super) fn at(&self, place: usize) -> Range<usize> {
        let width = self.dtype.bytes() as usize;
        let at = |place: usize| (self.bytes / width) * place / self.count * width;
        at(place)..at(place + 1)
    }

    /// Returns the bytes of the share of a place, counted from the end of the share of the earlier place `before`.
    pub(super) fn behind(&self, before: usize, place: usize) -> Range<usize> {
        let (end, share) = (self.at(before).end, self.at(place));
        share.start - end..share.end - end
    }
}

/// Cuts a tensor into parts of equal length.
pub(super) fn in_parts(tensor: &mut [u8], count: usize) -> Vec<&mut [u8]> {
    match tensor.len() / count {
        0 => (0..count).map(|_| Default::default()).collect(),
        length => tensor.chunks_exact_mut(length).collect(),
    }
}

/// The sizes of a tensor's parts in a collective.
pub(super) struct Shape {
    before: Vec<usize>,
    /// The sizes of the part that goes from one rank to another.
    pub(super) part: Vec<usize>,
    gathered: Option<usize>,
    split: Option<usize>,
}

impl Shape {
    pub(super) fn of(tensor: &Exchanged, count: usize) -> Self {
        let mut part = tensor.sizes.to_vec();
        if let Some(dim) = tensor.split {
            part[dim] /= count;
        }
        Self { before: tensor.sizes.to_vec(), part, gathered: tensor.gathered, split: tensor.split }
    }

    /// Returns the block of every part that a place gets.
    pub(super) fn share(&self, place: usize) -> Block {
        self.split.map_or_else(
            || Block::all(&self.before),
            |dim| Block::from(&self.before, dim, place * self.part[dim]),
        )
    }

    /// Returns the block of the result that comes from a place.
    pub(super) fn place(&self, place: usize, count: usize) -> Block {
        let Some(dim) = self.gathered else { return Block::all(&self.part) };
        let mut after = self.part.clone();
        after[dim] *= count;
        Block::from(&after, dim, place * self.part[dim])
    }
}

/// Returns the places of a group in the order of its ranks.
pub(super) fn by_rank(group: &[u64]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..group.len()).collect();
    places.sort_by_key(|&place| group[place]);
    places
}
