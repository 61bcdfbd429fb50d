//! Which dims may be cut: those that number the rows of activations.
//!
//! An activation's rows are what its samples consist of: positions of a sequence, patches of an image. They are found
//! from the inputs: the dims of a batched input but the first (the samples), followed through the factors of every
//! operator. Features are no rows: a contraction with a weight ends them. A partial sum that is cut over rows stays
//! cut through everything that treats rows alike, which cutting features or weights would not.

use ir::{Factors, Module, ValueId};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::BitOr;

/// Some dims of a tensor, the first 64 of which count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dims(u64);

impl Dims {
    /// Every dim.
    pub(super) fn all(ndim: usize) -> Self {
        (0..ndim).collect()
    }

    /// Whether a dim is one of them.
    pub(super) fn has(self, dim: usize) -> bool {
        dim < 64 && self.0 >> dim & 1 == 1
    }

    /// Whether there are none.
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

/// The rows of inputs.
pub(super) fn batched(module: &Module) -> BTreeMap<ValueId, Dims> {
    let inputs = module.inputs.iter().filter(|input| input.batched);
    inputs.map(|input| (input.value, (1..module.ty(input.value).ndim()).collect())).collect()
}

/// The rows of results, given those of operands.
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
