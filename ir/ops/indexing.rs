//! Reading by index, and its gradient along one dim. `scatter` has the gradients of reading by several indices.
//!
//! In all operators a negative index counts from the end. An index outside of its dim reads zeros, and gradients at such an index
//! are dropped; bad indices of a file are refused by the loader. By the same rule the indexed dim can be split: a rank reads zeros
//! where another rank has the element, and the sum over the ranks is the element.

use super::scatter::{GatherElementsGrad, GatherNdGrad};
use super::*;
use crate::tensor::{Elements, offsets, strides};
use crate::{DType, Dim, Dims};

/// `out = data` with dim `dim` replaced by the dims of `indices`: `out[a.., i.., b..] = data[a.., indices[i..], b..]`
/// (ONNX Gather). Operands: `data`, integer `indices`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gather {
    /// The indexed dim.
    pub dim: u32,
}

/// The gradient of [`Gather`] in its data: zeros of the result type, with `updates` added at `indices` in row-major
/// order. Operands: `indices`, `updates`. The result type is declared (the dims of the data).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatherGrad {
    /// The indexed dim.
    pub dim: u32,
}

/// `out[i, j, k] = data[i, indices[i, j, k], k]` for `dim = 1` (ONNX GatherElements). Operands: `data`, integer `indices`, with
/// the dims of `data` except for `dim`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatherElements {
    /// The indexed dim.
    pub dim: u32,
}

/// `out[b.., i.., r..] = data[b.., indices[b.., i.., :], r..]` (ONNX GatherND). Operands: `data`, integer `indices`. The last dim
/// of the indices must be bound: its size is the number of indexed dims of the data.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatherNd {
    /// Leading dims that `data` and `indices` share.
    pub batch_dims: u32,
}

/// Returns the element that an index reads in a dim of this size; `None` if it is outside.
fn element(index: i64, size: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(size as i64)? } else { index };
    usize::try_from(index).ok().filter(|&index| index < size)
}

/// Returns the element that an index into the global dim reads in a part of `size` elements; `None` if it is not in the part.
pub(super) fn element_of_part(index: i64, span: Span, size: usize) -> Option<usize> {
    let element = element(index, span.size as usize)?.checked_sub(span.start as usize)?;
    (element < size).then_some(element)
}

/// Returns the factor word of an indexed dim. Numbers read from parts are summed; bools have no sum, so their dim is not split.
fn indexed_word(data: &Type) -> &'static str {
    if data.dtype == DType::Bool { "v^" } else { "v+" }
}

/// Declares reading as linear in the data, unless the data are bools, which have no sum.
fn summable(factors: Factors, signature: &Signature) -> Factors {
    if signature.operands[0].dtype == DType::Bool { factors } else { factors.linear_in(&[0]) }
}

/// Returns the elements at these offsets, and zeros for `None`.
fn read(data: &Tensor, offsets: &[Option<usize>], sizes: Vec<usize>) -> Tensor {
    fn pick<T: Copy>(elements: &[T], offsets: &[Option<usize>], zero: T) -> Vec<T> {
        offsets.iter().map(|offset| offset.map_or(zero, |i| elements[i])).collect()
    }
    let elements = match &data.elements {
        Elements::Float(x) => Elements::Float(pick(x, offsets, 0.0)),
        Elements::Int(x) => Elements::Int(pick(x, offsets, 0)),
        Elements::Bool(x) => Elements::Bool(pick(x, offsets, false)),
    };
    Tensor { dtype: data.dtype, sizes, elements }
}

/// Refuses indices that are not integers.
pub(super) fn check_indices(indices: &Type) -> Result<(), TypeError> {
    if indices.dtype.is_integer() {
        Ok(())
    } else {
        Err(TypeError::new(format!("the indices are {indices}, not integers")))
    }
}

/// Returns the dims of a gather's result.
fn gathered_dims(data: &Type, indices: &Type, dim: u32) -> Result<Dims, TypeError> {
    check_indices(indices)?;
    let dim = dim as usize;
    ensure!(dim < data.ndim(), "{data} has no dim {dim} to index");
    Ok(data.dims[..dim].iter().chain(&indices.dims).chain(&data.dims[dim + 1..]).cloned().collect())
}

/// Returns the factor words of a gather: of the data (its indexed dim has the word `indexed`), of the indices, and of the result.
fn gather_words(dim: u32, data: usize, indices: usize, indexed: &str, suffix: &str) -> [String; 3] {
    let words = |name: &str, range: std::ops::Range<usize>, suffix: &str| {
        range.map(|i| format!("{name}{i}{suffix}")).collect::<Vec<_>>().join(" ")
    };
    let dim = dim as usize;
    let (before, after) = (words("d", 0..dim, ""), words("d", dim + 1..data, ""));
    let inner = words("i", 0..indices, suffix);
    [format!("{before} {indexed} {after}"), inner.clone(), format!("{before} {inner} {after}")]
}

/// Returns, for each element of a gather's result in order, its offset in the data. `span` is the range of the data's indexed dim
/// in the global dim.
fn gather_offsets(data: &[usize], indices: &[i64], dim: u32, span: Span) -> Vec<Option<usize>> {
    let dim = dim as usize;
    let (size, inner) = (data[dim], data[dim + 1..].iter().product::<usize>());
    let mut out = Vec::new();
    for outer in 0..data[..dim].iter().product() {
        for &index in indices {
            let start = element_of_part(index, span, size).map(|index| (outer * size + index) * inner);
            out.extend((0..inner).map(|i| start.map(|start| start + i)));
        }
    }
    out
}

impl Operator for Gather {
    // Depends on the place of a part: indices count along the whole dim.
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data, OperandRole::Indices]).by_place(PrecisionClass::Lookup)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [data, indices] = types.operands()?;
        Ok(vec![Type::new(data.dtype, gathered_dims(data, indices, self.dim)?)])
    }

    /// `"d.. v+ d.., i.. -> d.. i.. d.."`
    fn factors(&self, signature: &Signature) -> Factors {
        let indexed = indexed_word(&signature.operands[0]);
        let [data, indices] = [0, 1].map(|i| signature.operands[i].ndim());
        let [data, indices, out] = gather_words(self.dim, data, indices, indexed, "");
        summable(Factors::rule(&format!("{data}, {indices} -> {out}"), signature), signature).keeping_zeros()
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let (data, indices) = (node.operands[0], node.operands[1]);
        let Some(dout) = d[0].filter(|_| b.ty(data).dtype.is_float()) else { return Ok(vec![None; 2]) };
        let ty = Type::new(b.ty(data).dtype, b.ty(data).dims.clone());
        Ok(vec![Some(b.one_typed(GatherGrad { dim: self.dim }, &[indices, dout], ty)?), None])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        reading(signature)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (data, indices) = (cx.operands[0], cx.operands[1].ints());
        let span = cx.operand_span(0, self.dim as usize);
        vec![read(data, &gather_offsets(&data.sizes, indices, self.dim, span), cx.sizes(0))]
    }
}

/// Returns the cost of reading by index. Only the elements of the data that are read count.
fn reading(signature: &Signature) -> Cost {
    let bytes = signature.results[0].bytes().unwrap_or(0);
    let indices = signature.operands[1].bytes().unwrap_or(0);
    Cost { flops: 0, read: bytes.saturating_add(indices), written: bytes }
}

impl Operator for GatherGrad {
    // Depends on the place of a part: indices count along the whole dim.
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Indices, OperandRole::Gradient]).by_place(PrecisionClass::Full)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let ([indices, updates], data) = (types.operands()?, types.declared()?);
        let dims = gathered_dims(data, indices, self.dim)?;
        ensure!(
            updates.dtype == data.dtype && updates.dims == dims && data.dtype.is_float(),
            "the updates {updates} at {indices} do not fit {data}"
        );
        Ok(vec![Type::new(data.dtype, data.dims.clone())])
    }

    /// `"i+.., d.. i+.. d.. -> d.. v d.."`
    fn factors(&self, signature: &Signature) -> Factors {
        let (indices, data) = (signature.operands[0].ndim(), signature.results[0].ndim());
        let [data, indices, out] = gather_words(self.dim, data, indices, "v", "+");
        Factors::rule(&format!("{indices}, {out} -> {data}"), signature).linear_in(&[1]).keeping_zeros()
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::SECOND)
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.operands[1], 1)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (indices, updates, sizes) = (cx.operands[0].ints(), cx.operands[1].floats(), cx.sizes(0));
        let mut out = vec![0.0; sizes.iter().product()];
        let offsets = gather_offsets(&sizes, indices, self.dim, cx.result_span(0, self.dim as usize));
        for (offset, update) in offsets.into_iter().zip(updates) {
            if let Some(i) = offset {
                out[i] += update;
            }
        }
        vec![Tensor::float(cx.results[0].dtype, sizes, out)]
    }
}

impl Operator for GatherElements {
    // Depends on the place of a part: indices count along the whole dim.
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data, OperandRole::Indices]).by_place(PrecisionClass::Lookup)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [data, indices] = types.operands()?;
        check_indices(indices)?;
        let dim = self.dim as usize;
        let others = |ty: &Type| {
            ty.dims.iter().enumerate().filter(|(i, _)| *i != dim).map(|(_, d)| d.clone()).collect()
        };
        let (left, right): (Dims, Dims) = (others(data), others(indices));
        ensure!(
            dim < data.ndim() && data.ndim() == indices.ndim() && left == right,
            "the indices {indices} and {data} differ outside dim {dim}"
        );
        Ok(vec![Type::new(data.dtype, indices.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        let data = &signature.operands[0];
        let [data, indices] = [indexed_word(data), "i"].map(|word| words_but(data.ndim(), self.dim, word));
        summable(Factors::rule(&format!("{data}, {indices} -> {indices}"), signature), signature)
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let (data, indices) = (node.operands[0], node.operands[1]);
        let Some(dout) = d[0].filter(|_| b.ty(data).dtype.is_float()) else { return Ok(vec![None; 2]) };
        let ty = Type::new(b.ty(data).dtype, b.ty(data).dims.clone());
        Ok(vec![Some(b.one_typed(GatherElementsGrad { dim: self.dim }, &[indices, dout], ty)?), None])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        reading(signature)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (data, dim) = (cx.operands[0], self.dim as usize);
        let offsets = element_offsets(&data.sizes, cx.operands[1], dim, cx.operand_span(0, dim));
        vec![read(data, &offsets, cx.sizes(0))]
    }
}

/// Returns the words of a tensor in which dim `dim` has the word `word` and every other dim its own word.
pub(super) fn words_but(ndim: usize, dim: u32, word: &str) -> String {
    let word = |i| if i == dim as usize { word.to_string() } else { format!("f{i}") };
    (0..ndim).map(word).collect::<Vec<_>>().join(" ")
}

/// Returns, for each index in order, the offset of its element in data of these sizes. `span` is the range of the data's indexed
/// dim in the global dim.
pub(super) fn element_offsets(
    data: &[usize],
    indices: &Tensor,
    dim: usize,
    span: Span,
) -> Vec<Option<usize>> {
    let own = strides(data);
    let mut others = own.clone();
    others[dim] = 0;
    let starts = offsets(&indices.sizes, &others);
    let at =
        |(&index, start): (&i64, usize)| Some(start + element_of_part(index, span, data[dim])? * own[dim]);
    indices.ints().iter().zip(starts).map(at).collect()
}

impl GatherNd {
    /// Returns the number of indexed dims of the data, after checking the types.
    pub(super) fn indexed(&self, data: &Type, indices: &Type) -> Result<usize, TypeError> {
        check_indices(indices)?;
        let batch = self.batch_dims as usize;
        let indexed = indices.dims.last().and_then(Dim::size).and_then(|size| usize::try_from(size).ok());
        let Some(indexed) = indexed.filter(|_| batch < indices.ndim()) else {
            return Err(TypeError::new(format!(
                "the indices {indices} need a bound last dim after {batch} others"
            )));
        };
        ensure!(
            indexed.checked_add(batch).is_some_and(|used| used <= data.ndim()),
            "{data} has fewer than {batch} + {indexed} dims"
        );
        ensure!(
            data.dims[..batch] == indices.dims[..batch],
            "{data} and {indices} differ in their first {batch} dims"
        );
        Ok(indexed)
    }
}

impl Operator for GatherNd {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data, OperandRole::Indices]).anywhere(PrecisionClass::Lookup)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [data, indices] = types.operands()?;
        let indexed = self.indexed(data, indices)?;
        let positions = &indices.dims[..indices.ndim() - 1];
        let rest = &data.dims[self.batch_dims as usize + indexed..];
        Ok(vec![Type::new(data.dtype, positions.iter().chain(rest).cloned())])
    }

    /// `"b.. v^.. r.., b.. i.. q^ -> b.. i.. r.."`
    fn factors(&self, signature: &Signature) -> Factors {
        let [data, indices, out] = nd_words(self, &signature.operands[0], &signature.operands[1], "");
        summable(Factors::rule(&format!("{data}, {indices} -> {out}"), signature), signature)
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let (data, indices) = (node.operands[0], node.operands[1]);
        let Some(dout) = d[0].filter(|_| b.ty(data).dtype.is_float()) else { return Ok(vec![None; 2]) };
        let ty = Type::new(b.ty(data).dtype, b.ty(data).dims.clone());
        let op = GatherNdGrad { batch_dims: self.batch_dims };
        Ok(vec![Some(b.one_typed(op, &[indices, dout], ty)?), None])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        reading(signature)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let data = cx.operands[0];
        let offsets = nd_offsets(&data.sizes, cx.operands[1], self.batch_dims as usize);
        vec![read(data, &offsets, cx.sizes(0))]
    }
}

/// Returns the words of the data, of the indices and of the result: `b.. v^.. r..`, `b.. i.. q^` and `b.. i.. r..`, with a suffix
/// on each `i`.
pub(super) fn nd_words(gather: &GatherNd, data: &Type, indices: &Type, suffix: &str) -> [String; 3] {
    let batch = gather.batch_dims as usize;
    let indexed = gather.indexed(data, indices).expect("infer has accepted the types");
    let words = |name: &str, count: usize, suffix: &str| {
        (0..count).map(|i| format!("{name}{i}{suffix}")).collect::<Vec<_>>().join(" ")
    };
    let (shared, positions) = (words("b", batch, ""), words("i", indices.ndim() - 1 - batch, suffix));
    let rest = words("r", data.ndim() - batch - indexed, "");
    let whole = words("v", indexed, "^");
    [
        format!("{shared} {whole} {rest}"),
        format!("{shared} {positions} q^"),
        format!("{shared} {positions} {rest}"),
    ]
}

/// Returns, for each element read at these indices in order, its offset in data of these sizes.
pub(super) fn nd_offsets(data: &[usize], indices: &Tensor, batch: usize) -> Vec<Option<usize>> {
    let indexed = indices.sizes[indices.sizes.len() - 1];
    let own = strides(data);
    let inner: usize = data[batch + indexed..].iter().product();
    let positions: usize = indices.sizes[..indices.sizes.len() - 1].iter().product();
    let batches: usize = data[..batch].iter().product();
    let mut out = Vec::new();
    for position in 0..positions {
        // The positions of a batch element are consecutive.
        let first = position / (positions / batches) * data[batch..].iter().product::<usize>();
        let coordinates = &indices.ints()[position * indexed..(position + 1) * indexed];
        let start = coordinates.iter().enumerate().try_fold(first, |start, (i, &index)| {
            Some(start + element(index, data[batch + i])? * own[batch + i])
        });
        out.extend((0..inner).map(|i| start.map(|start| start + i)));
    }
    out
}
