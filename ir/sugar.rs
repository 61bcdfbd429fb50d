//! Short forms for what gradients, imports and passes build most: arithmetic, scalars, shapes.

use crate::edit::Builder;
use crate::ops::Float;
use crate::ops::constant::Splat;
use crate::ops::elementwise::{Binary, Cast};
use crate::ops::reduce::{Reduce, ReduceKind};
use crate::ops::shape::{Broadcast, Reshape, Slice, Transpose};
use crate::{DType, Dim, Dims, Type, TypeError, ValueId};
use smallvec::SmallVec;

impl Builder<'_> {
    /// `x + y`
    pub fn add(&mut self, x: ValueId, y: ValueId) -> Result<ValueId, TypeError> {
        self.one(Binary::Add, &[x, y])
    }

    /// `x · y`
    pub fn mul(&mut self, x: ValueId, y: ValueId) -> Result<ValueId, TypeError> {
        self.one(Binary::Mul, &[x, y])
    }

    /// A scalar of that type and value.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> Result<ValueId, TypeError> {
        self.splat(Type::scalar(dtype), value)
    }

    /// A tensor of equal elements.
    pub fn splat(&mut self, ty: Type, value: f64) -> Result<ValueId, TypeError> {
        self.one_typed(Splat { value: Float::new(value) }, &[], ty)
    }

    /// A scalar of the element type of `like`; broadcasting makes it fit wherever `like` does.
    pub fn splat_like(&mut self, like: ValueId, value: f64) -> Result<ValueId, TypeError> {
        self.scalar(self.ty(like).dtype, value)
    }

    /// `x · factor`
    pub fn scale(&mut self, x: ValueId, factor: f64) -> Result<ValueId, TypeError> {
        let factor = self.splat_like(x, factor)?;
        self.mul(x, factor)
    }

    /// `x` with these dims, or `x` itself if it has them.
    pub fn reshape(&mut self, x: ValueId, dims: impl IntoIterator<Item = Dim>) -> Result<ValueId, TypeError> {
        let ty = Type::new(self.ty(x).dtype, dims);
        if ty.dims == self.ty(x).dims { Ok(x) } else { self.one_typed(Reshape, &[x], ty) }
    }

    /// `x` stretched to these dims, or `x` itself if it has them.
    pub fn broadcast(
        &mut self,
        x: ValueId,
        dims: impl IntoIterator<Item = Dim>,
    ) -> Result<ValueId, TypeError> {
        let ty = Type::new(self.ty(x).dtype, dims);
        if ty.dims == self.ty(x).dims { Ok(x) } else { self.one_typed(Broadcast, &[x], ty) }
    }

    /// `x` with its dims permuted: dim `i` of the result is dim `permutation[i]` of `x`.
    pub fn transpose(&mut self, x: ValueId, permutation: &[u32]) -> Result<ValueId, TypeError> {
        if permutation.iter().enumerate().all(|(i, &p)| i == p as usize) {
            return Ok(x);
        }
        self.one(Transpose { permutation: SmallVec::from_slice(permutation) }, &[x])
    }

    /// `x[.., start .. start + length, ..]` along a dim.
    pub fn slice(&mut self, x: ValueId, dim: u32, start: u64, length: Dim) -> Result<ValueId, TypeError> {
        let mut ty = Type::new(self.ty(x).dtype, self.ty(x).dims.clone());
        match ty.dims.get_mut(dim as usize) {
            Some(size) if *size == length && start == 0 => return Ok(x),
            Some(size) => *size = length,
            None => return Err(TypeError::new(format!("{ty} has no dim {dim} to slice"))),
        }
        self.one_typed(Slice { dim, start: start as i64, step: 1 }, &[x], ty)
    }

    /// The sum over dims, which go.
    pub fn sum(&mut self, x: ValueId, dims: &[u32]) -> Result<ValueId, TypeError> {
        let dims = SmallVec::from_slice(dims);
        if dims.is_empty() {
            Ok(x)
        } else {
            self.one(Reduce { kind: ReduceKind::Sum, dims, keep: false }, &[x])
        }
    }

    /// `x` converted, or `x` itself if it is of that type.
    pub fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId, TypeError> {
        if self.ty(x).dtype == to { Ok(x) } else { self.one(Cast { to }, &[x]) }
    }

    /// The gradient of a broadcast: `x` summed over the dims in which `like` was stretched, in the dims of `like`.
    pub fn sum_to_like(&mut self, x: ValueId, like: ValueId) -> Result<ValueId, TypeError> {
        let (from, to) = (self.ty(x).dims.clone(), self.ty(like).dims.clone());
        if from == to {
            return Ok(x);
        }
        // `x` itself may be narrower than the result whose gradient it stands for.
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
