//! Reading by index, and the gradient of it along a dim; `scatter` has those of reading by several indices.
//!
//! In all of them a negative index counts from the end, and an index outside is the loader's to refuse: it reads zeros
//! here, and its gradient goes nowhere. That also splits the indexed dim: a rank reads zeros where another has the
//! element, and what the ranks read adds up.

use super::scatter::{GatherElementsGrad, GatherNdGrad};
use super::*;
use crate::tensor::{Elements, offsets, strides};
use crate::{DType, Dim, Dims};

/// `out = data` with dim `dim` replaced by the dims of `indices`: `out[a.., i.., b..] = data[a.., indices[i..], b..]`
/// (ONNX Gather). Operands: `data`, integer `indices`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gather {
    /// The dim indexed.
    pub dim: u32,
}

/// The gradient of [`Gather`] in its data: zeros of the result type, with `updates` added at `indices` in row-major
/// order. Operands: `indices`, `updates`. The result type is declared (the dims of the data).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatherGrad {
    /// The dim indexed.
    pub dim: u32,
}

/// `out[i, j, k] = data[i, indices[i, j, k], k]` for `dim = 1` (ONNX GatherElements). Operands: `data`, integer
/// `indices`, equal in all dims but `dim`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatherElements {
    /// The dim indexed.
    pub dim: u32,
}

/// `out[b.., i.., r..] = data[b.., indices[b.., i.., :], r..]` (ONNX GatherND). Operands: `data`, integer `indices`,
/// whose last dim is bound: it says how many dims of the data are indexed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatherNd {
    /// Leading dims that `data` and `indices` share.
    pub batch_dims: u32,
}

/// The element that an index reads, in a dim of that size.
fn element(index: i64, size: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(size as i64)? } else { index };
    usize::try_from(index).ok().filter(|&index| index < size)
}

/// The element that an index into the global dim reads in a part of `size` elements, if it lies there.
pub(super) fn element_of_part(index: i64, span: Span, size: usize) -> Option<usize> {
    let element = element(index, span.size as usize)?.checked_sub(span.start as usize)?;
    (element < size).then_some(element)
}

/// The word of an indexed dim: what is read in its parts adds up, where there is a sum.
fn indexed_word(data: &Type) -> &'static str {
    if data.dtype == DType::Bool { "v^" } else { "v+" }
}

/// What is read is linear in the data, where there is a sum.
fn summable(factors: Factors, signature: &Signature) -> Factors {
    if signature.operands[0].dtype == DType::Bool { factors } else { factors.linear_in(&[0]) }
}

/// The elements at these offsets; zeros where there is none.
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

/// The dims of a gather's result.
fn gathered_dims(data: &Type, indices: &Type, dim: u32) -> Result<Dims, TypeError> {
    check_indices(indices)?;
    let dim = dim as usize;
    if dim >= data.ndim() {
        return Err(TypeError::new(format!("{data} has no dim {dim} to index")));
    }
    Ok(data.dims[..dim].iter().chain(&indices.dims).chain(&data.dims[dim + 1..]).cloned().collect())
}

/// The words of a gather: of the data (its indexed dim as `v`), of the indices, and of the result.
fn gather_words(dim: u32, data: usize, indices: usize, indexed: &str, suffix: &str) -> [String; 3] {
    let words = |name: &str, range: std::ops::Range<usize>, suffix: &str| {
        range.map(|i| format!("{name}{i}{suffix}")).collect::<Vec<_>>().join(" ")
    };
    let dim = dim as usize;
    let (before, after) = (words("d", 0..dim, ""), words("d", dim + 1..data, ""));
    let inner = words("i", 0..indices, suffix);
    [format!("{before} {indexed} {after}"), inner.clone(), format!("{before} {inner} {after}")]
}

/// For each element of a gather's result, in order: where in the data it is read. The indexed dim lies in the global
/// one as `span` says.
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
    fn operands(&self) -> Operands {
        Operands::new(&[OperandRole::Data, OperandRole::Indices])
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

/// The cost of reading by index: of the data only what is read.
fn reading(signature: &Signature) -> Cost {
    let bytes = signature.results[0].bytes().unwrap_or(0);
    let indices = signature.operands[1].bytes().unwrap_or(0);
    Cost { flops: 0, read: bytes.saturating_add(indices), written: bytes }
}

impl Operator for GatherGrad {
    fn operands(&self) -> Operands {
        Operands::new(&[OperandRole::Indices, OperandRole::Gradient])
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let ([indices, updates], data) = (types.operands()?, types.declared()?);
        let dims = gathered_dims(data, indices, self.dim)?;
        if updates.dtype != data.dtype || updates.dims != dims || !data.dtype.is_float() {
            return Err(TypeError::new(format!("the updates {updates} at {indices} do not fit {data}")));
        }
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
    fn operands(&self) -> Operands {
        Operands::new(&[OperandRole::Data, OperandRole::Indices])
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [data, indices] = types.operands()?;
        check_indices(indices)?;
        let dim = self.dim as usize;
        let others = |ty: &Type| {
            ty.dims.iter().enumerate().filter(|(i, _)| *i != dim).map(|(_, d)| d.clone()).collect()
        };
        let (left, right): (Dims, Dims) = (others(data), others(indices));
        if dim >= data.ndim() || data.ndim() != indices.ndim() || left != right {
            return Err(TypeError::new(format!("the indices {indices} and {data} differ outside dim {dim}")));
        }
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

/// The words of a tensor of which one dim has this word, the others each their own.
pub(super) fn words_but(ndim: usize, dim: u32, word: &str) -> String {
    let word = |i| if i == dim as usize { word.to_string() } else { format!("f{i}") };
    (0..ndim).map(word).collect::<Vec<_>>().join(" ")
}

/// For each index, in order, the element of data of these sizes that it stands for. The indexed dim lies in the global
/// one as `span` says.
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
    /// How many dims of the data are indexed, checked.
    pub(super) fn indexed(&self, data: &Type, indices: &Type) -> Result<usize, TypeError> {
        check_indices(indices)?;
        let batch = self.batch_dims as usize;
        let indexed = indices.dims.last().and_then(Dim::size).and_then(|size| usize::try_from(size).ok());
        let Some(indexed) = indexed.filter(|_| batch < indices.ndim()) else {
            return Err(TypeError::new(format!(
                "the indices {indices} need a bound last dim after {batch} others"
            )));
        };
        if indexed.checked_add(batch).is_none_or(|used| used > data.ndim()) {
            return Err(TypeError::new(format!("{data} has fewer than {batch} + {indexed} dims")));
        }
        if data.dims[..batch] != indices.dims[..batch] {
            return Err(TypeError::new(format!("{data} and {indices} differ in their first {batch} dims")));
        }
        Ok(indexed)
    }
}

impl Operator for GatherNd {
    fn operands(&self) -> Operands {
        Operands::new(&[OperandRole::Data, OperandRole::Indices])
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

/// The words of the data, of the indices, and of what is read: `b.. v^.. r..`, `b.. i.. q^` and `b.. i.. r..`, with a
/// suffix on each `i`.
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

/// For each element that is read at these indices, in order, where it is in data of these sizes.
pub(super) fn nd_offsets(data: &[usize], indices: &Tensor, batch: usize) -> Vec<Option<usize>> {
    let indexed = indices.sizes[indices.sizes.len() - 1];
    let own = strides(data);
    let inner: usize = data[batch + indexed..].iter().product();
    let positions: usize = indices.sizes[..indices.sizes.len() - 1].iter().product();
    let batches: usize = data[..batch].iter().product();
    let mut out = Vec::new();
    for position in 0..positions {
        // Positions of one batch element follow each other.
        let first = position / (positions / batches) * data[batch..].iter().product::<usize>();
        let coordinates = &indices.ints()[position * indexed..(position + 1) * indexed];
        let start = coordinates.iter().enumerate().try_fold(first, |start, (i, &index)| {
            Some(start + element(index, data[batch + i])? * own[batch + i])
        });
        out.extend((0..inner).map(|i| start.map(|start| start + i)));
    }
    out
}
