//! Finds the dims that may be cut: the rows of activations.
//!
//! The rows of a sample are its positions in a sequence, or the patches of an image. They are found from the inputs: all dims of a
//! batched input but the first (the samples), followed through the factors of every operator. Features are no rows: a contraction with
//! a weight sums over them. A partial sum that is cut over rows stays cut through all operators that treat rows alike. If features or
//! weights were cut, it would not.

use ir::{Factors, Module, ValueId};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::BitOr;

/// A set of dims of a tensor. Only the first 64 dims count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dims(u64);

impl Dims {
    /// Returns the set of all dims.
    pub(super) fn all(ndim: usize) -> Self {
        (0..ndim).collect()
    }

    /// Whether the set has a dim.
    pub(super) fn has(self, dim: usize) -> bool {
        dim < 64 && self.0 >> dim & 1 == 1
    }

    /// Whether the set is empty.
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Dims {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl FromIterator<usize> for Dims {
    fn from_iter<I: IntoIterator<Item = usize>>(dims: I) -> Self {
        Self(dims.into_iter().filter(|&dim| dim < 64).fold(0, |set, dim| set | 1 << dim))
    }
}

/// Returns the rows of batched inputs.
pub(super) fn batched(module: &Module) -> BTreeMap<ValueId, Dims> {
    let inputs = module.inputs.iter().filter(|input| input.batched);
    inputs.map(|input| (input.value, (1..module.ty(input.value).ndim()).collect())).collect()
}

/// Returns the rows of results, given the rows of operands.
pub(super) fn passed_on(factors: &Factors, operands: &[Dims]) -> SmallVec<[Dims; 3]> {
    let mut is_row = vec![false; factors.factors.len()];
    for (rows, dims) in operands.iter().zip(&factors.operands) {
        let marked = dims.iter().enumerate().filter(|(dim, _)| rows.has(*dim));
        marked.flat_map(|(_, dim)| dim).for_each(|&factor| is_row[factor as usize] = true);
    }
    let marked = |dims: &[ir::factors::DimFactors]| -> Dims {
        (0..dims.len()).filter(|&dim| dims[dim].iter().any(|&factor| is_row[factor as usize])).collect()
    };
    factors.results.iter().map(|dims| marked(dims)).collect()
}
