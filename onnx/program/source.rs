//! Operators without operands: constants, equal elements, indices.

use super::attribute;
use super::constants::proto;
use super::draft::{Draft, TensorId};
use super::operators::{Results, one};
use super::tensors;
use bytes::Bytes;
use ir::ops::constant::{Constant, Iota, Splat};
use ir::{DType, Diagnostic, Dim, Dims, Node, Tensor, Type};

/// Writes a row of the data table.
pub(super) fn constant(draft: &mut Draft, node: &Node, op: &Constant) -> Results {
    let row = tensors::row(draft, op.data)?;
    let (from, to) = (&draft.module.data[op.data].ty.dims, &draft.ty(node.results[0]).dims);
    one(draft.reshape(row, from, to)?)
}

/// Writes equal elements: a scalar, or ConstantOfShape.
pub(super) fn splat(draft: &mut Draft, node: &Node, op: &Splat) -> Results {
    let ty = draft.ty(node.results[0]);
    let number = op.value.get();
    let rounded = Tensor::splat(ty.dtype, vec![1], number).rounded();
    if ty.ndim() == 0 {
        return one(draft.number(ty.dtype, number));
    }
    let shape = draft.shape(&ty.dims)?;
    if ty.dtype.is_float() && rounded.item() != number && !number.is_nan() {
        let number = draft.number(ty.dtype, number);
        return one(draft.push("Expand", &[number, shape], []));
    }
    let value = proto(&Type::of(ty.dtype, &[1]), Bytes::from(rounded.to_bytes()));
    one(draft.push("ConstantOfShape", &[shape], [attribute::tensor("value", value)]))
}

/// Writes the index along a dim: a Range of integers, repeated along the other dims.
pub(super) fn iota(draft: &mut Draft, node: &Node, op: &Iota) -> Results {
    let ty = draft.ty(node.results[0]);
    one(draft.places(ty.dtype, &ty.dims, op.dim as usize)?)
}

impl Draft<'_> {
    /// Writes the index along a dim, in a tensor of these dims.
    ///
    /// # Errors
    /// A size cannot be represented in ONNX.
    pub(super) fn places(&mut self, dtype: DType, dims: &[Dim], dim: usize) -> Result<TensorId, Diagnostic> {
        let [start, step] = [0.0, 1.0].map(|number| self.number(DType::I64, number));
        let size = self.scalar_size(&dims[dim])?;
        let places = self.push("Range", &[start, size, step], []);
        let places = self.cast(places, DType::I64, dtype);
        let mut along: Dims = std::iter::repeat_n(Dim::known(1), dims.len()).collect();
        along[dim] = dims[dim].clone();
        let places = self.reshape(places, &along[dim..=dim], &along)?;
        self.expand(places, &along, dims)
    }
}
