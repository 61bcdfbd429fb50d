//! Tensors on simulated ranks: split by their sharding, compared, and joined.
//!
//! Ranks that hold the same block share one tensor, so a value that is whole on all ranks is held and computed once. Sharing
//! follows from the computation and not from the types: two ranks share a result only if they computed it from shared operands.
//! Ranks that *should* hold the same numbers but computed them separately are compared ([`Ranks::agree`]). This comparison finds a
//! missing reduction.

use crate::tensor::Elements;
use crate::{AxisId, Mesh, Tensor, Type, block};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The part of a value on each rank.
pub(super) type ByRank = Vec<Arc<Tensor>>;

/// The ranks of a mesh.
pub(super) struct Ranks<'m> {
    pub(super) mesh: &'m Mesh,
    pub(super) count: usize,
}

/// Two ranks that should hold the same numbers but do not.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Disagreement {
    /// The first rank with this block.
    pub(super) first: usize,
    /// The rank that differs from it.
    pub(super) second: usize,
    /// The largest difference between their elements; NaN if an element of either is NaN.
    pub(super) difference: f64,
}

impl<'m> Ranks<'m> {
    pub(super) fn new(mesh: &'m Mesh) -> Self {
        Self { mesh, count: mesh.devices() as usize }
    }

    /// Returns the sizes of a rank's part. Panics if a dim does not divide; this is checked before a step.
    pub(super) fn local(&self, ty: &Type) -> Vec<usize> {
        let local = ty.local(self.mesh).expect("dims divide over the mesh");
        local.into_iter().map(|size| size as usize).collect()
    }

    /// Returns the offsets at which a rank's part begins in the global tensor.
    fn start(&self, ty: &Type, rank: usize) -> Vec<usize> {
        let spans = ty.spans(self.mesh, rank as u64).expect("dims divide over the mesh");
        spans.into_iter().map(|span| span.start as usize).collect()
    }

    /// Splits a global tensor into the parts of the ranks.
    pub(super) fn split(&self, ty: &Type, tensor: Tensor) -> ByRank {
        let local = self.local(ty);
        if local == tensor.sizes {
            let shared = Arc::new(tensor);
            return vec![shared; self.count];
        }
        let mut parts: BTreeMap<Vec<usize>, Arc<Tensor>> = BTreeMap::new();
        let mut part = |rank: usize| {
            let start = self.start(ty, rank);
            let cut = || Arc::new(block::read(&tensor, &start, &local));
            parts.entry(start.clone()).or_insert_with(cut).clone()
        };
        (0..self.count).map(&mut part).collect()
    }

    /// Joins parts, on which the ranks agree, into the global tensor.
    pub(super) fn join(&self, ty: &Type, mut parts: ByRank) -> Tensor {
        let sizes = ty.sizes().expect("dims are bound");
        let sizes: Vec<usize> = sizes.into_iter().map(|size| size as usize).collect();
        if sizes == parts[0].sizes {
            parts.truncate(1);
            let part = parts.swap_remove(0);
            return Arc::try_unwrap(part).unwrap_or_else(|shared| shared.as_ref().clone());
        }
        let mut whole = Tensor::splat(ty.dtype, sizes, 0.0);
        let mut written: BTreeSet<Vec<usize>> = BTreeSet::new();
        for (rank, part) in parts.iter().enumerate() {
            let start = self.start(ty, rank);
            if written.insert(start.clone()) {
                block::write(&mut whole, &start, part);
            }
        }
        whole
    }

    /// Checks that all ranks with the same block, and the same addend of a partial value, hold equal numbers. They must be equal
    /// bit by bit, because they were computed alike. NaN equals NaN.
    pub(super) fn agree(&self, ty: &Type, parts: &ByRank) -> Result<(), Disagreement> {
        let mut first: BTreeMap<(Vec<usize>, u64), usize> = BTreeMap::new();
        for rank in 0..self.count {
            let addend = self.mesh.place(rank as u64, ty.sharding.partial_axes());
            let seen = *first.entry((self.start(ty, rank), addend)).or_insert(rank);
            if let Some(difference) = difference(&parts[seen], &parts[rank]) {
                return Err(Disagreement { first: seen, second: rank, difference });
            }
        }
        Ok(())
    }

    /// Returns the axes along which two ranks have different coordinates.
    pub(super) fn apart(&self, first: usize, second: usize) -> Vec<AxisId> {
        let [first, second] = [first, second].map(|rank| self.mesh.coordinates(rank as u64));
        self.mesh.axes.keys().filter(|&axis| first[axis] != second[axis]).collect()
    }
}

/// Returns the largest difference between the elements of two tensors, or `None` if all are equal.
fn difference(first: &Arc<Tensor>, second: &Arc<Tensor>) -> Option<f64> {
    if Arc::ptr_eq(first, second) {
        return None;
    }
    let largest = |differences: &mut dyn Iterator<Item = f64>| {
        differences.reduce(|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) })
    };
    match (&first.elements, &second.elements) {
        (Elements::Float(x), Elements::Float(y)) => {
            let differ = |(x, y): &(&f64, &f64)| x.to_bits() != y.to_bits() && !(x.is_nan() && y.is_nan());
            largest(&mut x.iter().zip(y).filter(differ).map(|(x, y)| (x - y).abs()))
        }
        (Elements::Int(x), Elements::Int(y)) => {
            let pairs = x.iter().zip(y).filter(|(x, y)| x != y);
            largest(&mut pairs.map(|(x, y)| x.abs_diff(*y) as f64))
        }
        (Elements::Bool(x), Elements::Bool(y)) => (x != y).then_some(1.0),
        _ => Some(f64::NAN),
    }
}
