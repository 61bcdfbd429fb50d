//! Short forms for nodes that gradients, imports and passes often build: scalars, shapes, sums. Arithmetic is a [`Formula`].

use crate::edit::Builder;
use crate::ops::Float;
use crate::ops::constant::Splat;
use crate::ops::elementwise::Cast;
use crate::ops::reduce::{Reduce, ReduceKind};
use crate::ops::shape::{Broadcast, Reshape, Slice, Transpose};
use crate::{DType, Dim, Dims, Formula, Type, TypeError, ValueId};
use smallvec::SmallVec;

impl Builder<'_> {
    /// Builds a scalar of that type and value.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> Result<ValueId, TypeError> {
        self.splat(Type::scalar(dtype), value)
    }

    /// Builds a tensor of equal elements.
    pub fn splat(&mut self, ty: Type, value: f64) -> Result<ValueId, TypeError> {
        self.one_typed(Splat { value: Float::new(value) }, &[], ty)
    }

    /// Builds a scalar of the element type of `like`. By broadcasting it can be combined with `like`.
    pub fn splat_like(&mut self, like: ValueId, value: f64) -> Result<ValueId, TypeError> {
        self.scalar(self.ty(like).dtype, value)
    }

    /// Reshapes `x` to these dims; returns `x` itself if it has them.
    pub fn reshape(
        &mut self,
        x: impl Into<Formula>,
        dims: impl IntoIterator<Item = Dim>,
    ) -> Result<ValueId, TypeError> {
        let x = self.build(x)?;
        let ty = Type::new(self.ty(x).dtype, dims);
        if ty.dims == self.ty(x).dims { Ok(x) } else { self.one_typed(Reshape, &[x], ty) }
    }

    /// Stretches `x` to these dims; returns `x` itself if it has them.
    pub fn broadcast(
        &mut self,
        x: impl Into<Formula>,
        dims: impl IntoIterator<Item = Dim>,
    ) -> Result<ValueId, TypeError> {
        let x = self.build(x)?;
        let ty = Type::new(self.ty(x).dtype, dims);
        if ty.dims == self.ty(x).dims { Ok(x) } else { self.one_typed(Broadcast, &[x], ty) }
    }

    /// Permutes the dims of `x`: dim `i` of the result is dim `permutation[i]` of `x`.
    pub fn transpose(&mut self, x: ValueId, permutation: &[u32]) -> Result<ValueId, TypeError> {
        if permutation.iter().enumerate().all(|(i, &p)| i == p as usize) {
            return Ok(x);
        }
        self.one(Transpose { permutation: SmallVec::from_slice(permutation) }, &[x])
    }

    /// Cuts `x[.., start .. start + length, ..]` along a dim.
    pub fn slice(&mut self, x: ValueId, dim: u32, start: u64, length: Dim) -> Result<ValueId, TypeError> {
        let mut ty = Type::new(self.ty(x).dtype, self.ty(x).dims.clone());
        match ty.dims.get_mut(dim as usize) {
            Some(size) if *size == length && start == 0 => return Ok(x),
            Some(size) => *size = length,
            None => return Err(TypeError::new(format!("{ty} has no dim {dim} to slice"))),
        }
        self.one_typed(Slice { dim, start: start as i64, step: 1 }, &[x], ty)
    }

    /// Sums over dims, which are removed.
    pub fn sum(&mut self, x: impl Into<Formula>, dims: &[u32]) -> Result<ValueId, TypeError> {
        let x = self.build(x)?;
        let dims = SmallVec::from_slice(dims);
        if dims.is_empty() {
            Ok(x)
        } else {
            self.one(Reduce { kind: ReduceKind::Sum, dims, keep: false }, &[x])
        }
    }

    /// Converts `x`; returns `x` itself if it already has that type.
    pub fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId, TypeError> {
        if self.ty(x).dtype == to { Ok(x) } else { self.one(Cast { to }, &[x]) }
    }

    /// Builds the gradient of a broadcast: `x` summed over the dims in which `like` was stretched, with the dims of `like`.
    pub fn sum_to_like(&mut self, x: impl Into<Formula>, like: ValueId) -> Result<ValueId, TypeError> {
        let x = self.build(x)?;
        let (from, to) = (self.ty(x).dims.clone(), self.ty(like).dims.clone());
        if from == to {
            return Ok(x);
        }
        // `x` itself may be narrower than the result of which it is the gradient.
        let wide = crate::types::broadcast(&from, &to)?;
        let x = self.broadcast(x, wide.clone())?;
        let missing = wide.len() - to.len();
        let stretched = |i: usize| i < missing || (to[i - missing].is_one() && !wide[i].is_one());
        let summed: Vec<u32> = (0..wide.len()).filter(|&i| stretched(i)).map(|i| i as u32).collect();
        let sum = self.sum(x, &summed)?;
        let dims: Dims = to;
        self.reshape(sum, dims)
    }
}
