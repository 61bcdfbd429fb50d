//! Operators that move elements and compute nothing: reshape, transpose, broadcast, slice, concat, pad.

use super::constant::Iota;
use super::indexing::GatherGrad;
use super::*;
use crate::tensor::{Elements, broadcast_strides, strides};
use crate::types::broadcast;
use crate::{DType, Dim, Dims, block};
use smallvec::SmallVec;

/// The same elements in row-major order, with the dims of the result type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reshape;

/// Dim `i` of the result is dim `permutation[i]` of the operand.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transpose {
    /// The operand's dim for each dim of the result.
    pub permutation: SmallVec<[u32; 4]>,
}

/// The operand stretched to the dims of the result type: missing leading dims and dims of size one are repeated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Broadcast;

/// Elements `start, start + step, …` of one dim, as many as the result type says. A negative step runs backwards.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice {
    /// The dim that is cut.
    pub dim: u32,
    /// The first element.
    pub start: i64,
    /// The distance between elements; not 0.
    pub step: i64,
}

/// The operands one after the other along a dim; the other dims are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Concat {
    /// The dim that grows.
    pub dim: u32,
}

/// Adds a constant before and after the elements of one dim. The number after them follows from the result type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pad {
    /// The dim that grows.
    pub dim: u32,
    /// The number of elements added before.
    pub before: u64,
    /// The value of the added elements.
    pub value: Float,
}

/// Returns the elements at these offsets.
fn gathered(tensor: &Tensor, offsets: Vec<usize>, sizes: Vec<usize>) -> Tensor {
    let elements = match &tensor.elements {
        Elements::Float(x) => Elements::Float(offsets.into_iter().map(|i| x[i]).collect()),
        Elements::Int(x) => Elements::Int(offsets.into_iter().map(|i| x[i]).collect()),
        Elements::Bool(x) => Elements::Bool(offsets.into_iter().map(|i| x[i]).collect()),
    };
    Tensor { dtype: tensor.dtype, sizes, elements }
}

/// Returns the product of dims, if it fits.
fn product(dims: &[Dim]) -> Option<Dim> {
    dims.iter().try_fold(Dim::known(1), |product, dim| product.product(dim))
}

/// Returns dim `dim` of a type, or an error if there is none.
fn dim_of(ty: &Type, dim: u32) -> Result<&Dim, TypeError> {
    ty.dims.get(dim as usize).ok_or_else(|| TypeError::new(format!("{ty} has no dim {dim}")))
}

impl Operator for Reshape {
    fn facts(&self) -> Facts {
        Operands::view(Movement::Reshaped).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let ([x], to) = (types.operands()?, types.declared()?);
        ensure!(
            product(&x.dims).is_some() && product(&x.dims) == product(&to.dims) && x.dtype == to.dtype,
            "{x} and {to} have different numbers of elements"
        );
        Ok(vec![Type::new(x.dtype, to.dims.clone())])
    }

    /// Dims are matched in runs of equal product. In a run, a dim of one side may be the merge of several dims of the other side.
    fn factors(&self, signature: &Signature) -> Factors {
        let (from, to) = (&signature.operands[0].dims, &signature.results[0].dims);
        let (operand, result) = reshape_words(from, to);
        Factors::rule(&format!("{operand} -> {result}"), signature).linear_in(&[0])
    }

    /// The gradient is reshaped to the operand's dims.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let dims = b.ty(node.operands[0]).dims.clone();
        Ok(vec![d[0].map(|dout| b.reshape(dout, dims)).transpose()?])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::streaming(signature, 0)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        vec![cx.operands[0].clone().reshaped(cx.sizes(0))]
    }
}

/// Returns the words of a reshape's rule. Two runs of dims with the same product have common factors if one of the runs is a
/// single dim; any other run cannot be split.
fn reshape_words(from: &[Dim], to: &[Dim]) -> (String, String) {
    let (mut operand, mut result) = (Vec::new(), Vec::new());
    let (mut i, mut j, mut next) = (0, 0, 0);
    while i < from.len() || j < to.len() {
        let (i0, j0) = (i, j);
        // Extend the smaller run until the products agree. If they never agree because of unbound dims, the run takes all dims.
        let equal = |i: usize, j: usize| product(&from[i0..i]) == product(&to[j0..j]);
        (i, j) = ((i + 1).min(from.len()), (j + 1).min(to.len()));
        while !equal(i, j) && (i < from.len() || j < to.len()) {
            let smaller = product(&from[i0..i]).and_then(|p| product(&to[j0..j])?.quotient(&p)).is_some();
            if (smaller || j == to.len()) && i < from.len() { i += 1 } else { j += 1 }
        }
        // Trailing dims of size one belong to the last run.
        if i == from.len() {
            j = if to[j..].iter().all(Dim::is_one) { to.len() } else { j }
        }
        if j == to.len() {
            i = if from[i..].iter().all(Dim::is_one) { from.len() } else { i }
        }
        run_words(&from[i0..i], &to[j0..j], &mut next, &mut operand, &mut result);
    }
    (operand.join(" "), result.join(" "))
}

fn run_words(from: &[Dim], to: &[Dim], next: &mut u32, operand: &mut Vec<String>, result: &mut Vec<String>) {
    let mut name = || {
        *next += 1;
        format!("f{next}")
    };
    let large = |dims: &[Dim]| dims.iter().filter(|dim| !dim.is_one()).count();
    let word = |dim: &Dim, names: &mut dyn Iterator<Item = String>| {
        if dim.is_one() { "1".to_string() } else { names.next().expect("a name for every dim") }
    };
    let merged =
        |names: &[String]| if names.len() == 1 { names[0].clone() } else { format!("({})", names.join(" ")) };
    if large(from) == 1 || large(to) == 1 {
        let apart = if large(to) == 1 { from } else { to };
        let names: Vec<String> = (0..large(apart)).map(|_| name()).collect();
        for (dims, words) in [(from, operand), (to, result)] {
            let mut single =
                if large(dims) == names.len() { names.clone() } else { vec![merged(&names)] }.into_iter();
            words.extend(dims.iter().map(|dim| word(dim, &mut single)));
        }
    } else {
        for (dims, words) in [(from, operand), (to, result)] {
            let mut names = (0..large(dims)).map(|_| format!("{}^", name())).collect::<Vec<_>>().into_iter();
            words.extend(dims.iter().map(|dim| word(dim, &mut names)));
        }
    }
}

impl Operator for Transpose {
    fn facts(&self) -> Facts {
        Operands::view(Movement::Permuted).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        let mut sorted = self.permutation.clone();
        sorted.sort_unstable();
        ensure!(
            sorted.iter().copied().eq(0..x.ndim() as u32),
            "{:?} does not permute the dims of {x}",
            self.permutation
        );
        let dims = self.permutation.iter().map(|&i| x.dims[i as usize].clone());
        Ok(vec![Type::new(x.dtype, dims)])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        let words =
            |dims: &mut dyn Iterator<Item = u32>| dims.map(|i| format!("f{i}")).collect::<Vec<_>>().join(" ");
        let operand = words(&mut (0..self.permutation.len() as u32));
        let result = words(&mut self.permutation.iter().copied());
        Factors::rule(&format!("{operand} -> {result}"), signature).linear_in(&[0]).keeping_zeros()
    }

    /// The gradient is transposed by the inverse permutation.
    fn gradient(&self, b: &mut Builder, _: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let mut inverse = self.permutation.clone();
        self.permutation.iter().enumerate().for_each(|(i, &p)| inverse[p as usize] = i as u32);
        Ok(vec![d[0].map(|dout| b.transpose(dout, &inverse)).transpose()?])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::streaming(signature, 0)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (x, sizes) = (cx.operands[0], cx.sizes(0));
        let own = strides(&x.sizes);
        let permuted: Vec<usize> = self.permutation.iter().map(|&i| own[i as usize]).collect();
        let elements = x.elements.strided(&sizes, &permuted);
        vec![Tensor { dtype: x.dtype, sizes, elements }]
    }
}

impl Operator for Broadcast {
    fn facts(&self) -> Facts {
        Operands::view(Movement::Repeated).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let ([x], to) = (types.operands()?, types.declared()?);
        ensure!(
            x.dtype == to.dtype && broadcast(&x.dims, &to.dims)? == to.dims,
            "{x} does not broadcast to {to}"
        );
        Ok(vec![Type::new(x.dtype, to.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::elementwise(signature).linear_in(&[0])
    }

    /// The gradient is summed over the stretched dims.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        Ok(vec![d[0].map(|dout| b.sum_to_like(dout, node.operands[0])).transpose()?])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::streaming(signature, 0)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (x, sizes) = (cx.operands[0], cx.sizes(0));
        let elements = x.elements.strided(&sizes, &broadcast_strides(&x.sizes, &sizes));
        vec![Tensor { dtype: x.dtype, sizes, elements }]
    }
}

impl Slice {
    /// Returns zeros with the elements of the gradient at the places from which they were cut.
    fn scattered(&self, b: &mut Builder, node: NodeRef, dout: ValueId) -> Result<ValueId, TypeError> {
        let (ty, length) =
            (b.ty(node.operands[0]).clone(), b.ty(node.results[0]).dims[self.dim as usize].clone());
        let count = b.one_typed(Iota { dim: 0 }, &[], Type::new(DType::I64, [length]))?;
        let places = b.build(count * self.step as f64 + self.start as f64)?;
        b.one_typed(GatherGrad { dim: self.dim }, &[places, dout], Type::new(ty.dtype, ty.dims))
    }
}

impl Operator for Slice {
    fn facts(&self) -> Facts {
        Operands::view(Movement::Cut).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let ([x], to) = (types.operands()?, types.declared()?);
        let size = dim_of(x, self.dim)?;
        let mut dims: Dims = x.dims.clone();
        dims[self.dim as usize] = dim_of(to, self.dim)?.clone();
        ensure!(
            x.dtype == to.dtype && dims == to.dims && self.step != 0 && self.start >= 0,
            "a slice of {x} along dim {} from {} with step {} cannot be {to}",
            self.dim,
            self.start,
            self.step
        );
        // With unbound dims the last element cannot be checked until they are bound.
        if let (Some(size), Some(length)) = (size.size(), dims[self.dim as usize].size()) {
            let last = i128::from(self.start) + i128::from(self.step) * (i128::from(length) - 1);
            if length > 0 && !(0..i128::from(size)).contains(&last)
                || i128::from(self.start) > i128::from(size)
            {
                return Err(TypeError::new(format!("elements {}..={last} are not all in {x}", self.start)));
            }
        }
        Ok(vec![Type::new(x.dtype, dims)])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        let words = |cut: &str| {
            let word = |i| if i == self.dim as usize { cut.to_string() } else { format!("f{i}") };
            (0..signature.operands[0].ndim()).map(word).collect::<Vec<_>>().join(" ")
        };
        Factors::rule(&format!("{} -> {}", words("x^"), words("y^")), signature).linear_in(&[0])
    }

    /// The gradient is padded with zeros, also between its elements if the step is not 1.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let Some(dout) = d[0] else { return Ok(vec![None]) };
        if self.step != 1 {
            return Ok(vec![Some(self.scattered(b, node, dout)?)]);
        }
        let ty = b.ty(node.operands[0]).clone();
        let pad = Pad { dim: self.dim, before: self.start as u64, value: Float::new(0.0) };
        Ok(vec![Some(b.one_typed(pad, &[dout], ty)?)])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        let bytes = signature.results[0].bytes().unwrap_or(0);
        Cost { flops: 0, read: bytes, written: bytes }
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (x, sizes, dim) = (cx.operands[0], cx.sizes(0), self.dim as usize);
        if self.step == 1 {
            let mut start = vec![0; sizes.len()];
            start[dim] = self.start as usize;
            return vec![block::read(x, &start, &sizes)];
        }
        let own = strides(&x.sizes);
        // The index along the cut dim is computed separately, because the step may be negative.
        let mut offsets = vec![0];
        for (i, &size) in sizes.iter().enumerate() {
            let index = |k: usize| if i == dim { (self.start + self.step * k as i64) as usize } else { k };
            let steps: Vec<usize> = (0..size).map(|k| index(k) * own[i]).collect();
            offsets = offsets.iter().flat_map(|base| steps.iter().map(move |step| base + step)).collect();
        }
        vec![gathered(x, offsets, sizes)]
    }
}

impl Operator for Concat {
    fn facts(&self) -> Facts {
        Operands::any(&[OperandRole::Data]).moving(Movement::Joined).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [first, rest @ ..] = types.operands else {
            return Err(TypeError::new("takes at least one operand"));
        };
        let dim = self.dim as usize;
        let mut total = dim_of(first, self.dim)?.clone();
        for ty in rest {
            let mut same = ty.dims.clone();
            let size = std::mem::replace(
                same.get_mut(dim).ok_or_else(|| TypeError::new(format!("{ty} has no dim {dim}")))?,
                first.dims[dim].clone(),
            );
            ensure!(
                same == first.dims && ty.dtype == first.dtype,
                "{first} and {ty} differ outside dim {dim}"
            );
            let sum = total.size().and_then(|total| total.checked_add(size.size()?));
            total =
                Dim::known(sum.ok_or_else(|| TypeError::new(format!("dim {dim} of {ty} must be bound")))?);
        }
        let mut dims = first.dims.clone();
        dims[dim] = total;
        Ok(vec![Type::new(first.dtype, dims)])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        let words = |tensor: usize| {
            let word = |i| if i == self.dim as usize { format!("x{tensor}^") } else { format!("f{i}") };
            (0..signature.results[0].ndim()).map(word).collect::<Vec<_>>().join(" ")
        };
        let count = signature.operands.len();
        let operands: Vec<_> = (0..count).map(words).collect();
        let all: Vec<u32> = (0..count as u32).collect();
        Factors::rule(&format!("{} -> {}", operands.join(", "), words(count)), signature).linear_in(&all)
    }

    /// Each operand gets its slice of the gradient.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let Some(dout) = d[0] else { return Ok(vec![None; node.operands.len()]) };
        let mut start = 0;
        let mut gradients = Vec::new();
        for &operand in node.operands {
            let length = b.ty(operand).dims[self.dim as usize].clone();
            gradients.push(Some(b.slice(dout, self.dim, start, length.clone())?));
            start +=
                length.size().ok_or(GradientError::Undefined("a dim that is concatenated must be bound"))?;
        }
        Ok(gradients)
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::streaming(signature, 0)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (sizes, dim) = (cx.sizes(0), self.dim as usize);
        let mut start = vec![0; sizes.len()];
        let mut out = Tensor::splat(cx.results[0].dtype, sizes, 0.0);
        for operand in cx.operands {
            block::write(&mut out, &start, operand);
            start[dim] += operand.sizes[dim];
        }
        assert_eq!(start[dim], out.sizes[dim], "the operands fill the result");
        vec![out]
    }
}

impl Operator for Pad {
    fn facts(&self) -> Facts {
        Operands::view(Movement::Padded).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let ([x], to) = (types.operands()?, types.declared()?);
        let size = dim_of(x, self.dim)?;
        let mut dims: Dims = x.dims.clone();
        dims[self.dim as usize] = dim_of(to, self.dim)?.clone();
        let fits = match (size.size(), dims[self.dim as usize].size()) {
            (Some(size), Some(padded)) => size.checked_add(self.before).is_some_and(|least| least <= padded),
            _ => true,
        };
        ensure!(
            x.dtype == to.dtype && dims == to.dims && fits,
            "padding {x} with {} elements at the start of dim {} cannot give {to}",
            self.before,
            self.dim
        );
        Ok(vec![Type::new(x.dtype, dims)])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        let words = |cut: &str| {
            let word = |i| if i == self.dim as usize { cut.to_string() } else { format!("f{i}") };
            (0..signature.operands[0].ndim()).map(word).collect::<Vec<_>>().join(" ")
        };
        let factors = Factors::rule(&format!("{} -> {}", words("x^"), words("y^")), signature);
        if self.value.get() == 0.0 { factors.linear_in(&[0]) } else { factors }
    }

    /// The gradient is the slice at the operand's place.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let length = b.ty(node.operands[0]).dims[self.dim as usize].clone();
        Ok(vec![d[0].map(|dout| b.slice(dout, self.dim, self.before, length)).transpose()?])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::streaming(signature, 0)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let sizes = cx.sizes(0);
        let mut start = vec![0; sizes.len()];
        start[self.dim as usize] = self.before as usize;
        let mut out = Tensor::splat(cx.results[0].dtype, sizes, self.value.get());
        block::write(&mut out, &start, cx.operands[0]);
        vec![out]
    }
}
