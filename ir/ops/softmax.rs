//! Softmax, its logarithm, and their gradients.
//!
//! To split the normalised dim, the operator is decomposed: the largest element and the sum become reductions. Sums are computed
//! in f32 if the type is narrower, as in the operators themselves.

use super::elementwise::{Binary, Compare, Select, Unary};
use super::loss::sum_dtype;
use super::reduce::{Reduce, ReduceKind, along, rows};
use super::*;
use crate::Formula;
use smallvec::SmallVec;

/// `y = eˣ / Σ eˣ` along a dim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Softmax {
    /// The normalised dim.
    pub dim: u32,
}

/// The gradient of [`Softmax`]: operands `y, d y`; `d x = y·(d y - Σ y·d y)`. A row whose `d y` is zero gives zeros even if `y` is
/// NaN ([`Softmax`] makes the whole row NaN). So a fully masked row that a `Where` replaces by zeros has a zero gradient and not
/// 0·NaN, as in PyTorch's `_safe_softmax`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SoftmaxGrad {
    /// The normalised dim.
    pub dim: u32,
}

/// `y = x - log Σ eˣ` along a dim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogSoftmax {
    /// The normalised dim.
    pub dim: u32,
}

/// Returns `log Σ eˣ`, shifted by the largest x. −∞ if every x is −∞, or if there is no x.
pub(super) fn logsumexp(x: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = x.clone().fold(f64::NEG_INFINITY, |a, b| Binary::Max.scalar(a, b));
    if largest == f64::NEG_INFINITY {
        return largest;
    }
    largest + x.map(|x| (x - largest).exp()).sum::<f64>().ln()
}

/// Returns `x` reduced along a dim, which is kept with size one.
pub(super) fn along_dim(kind: ReduceKind, x: impl Into<Formula>, dim: u32) -> Formula {
    let reduce = Reduce { kind, dims: SmallVec::from_slice(&[dim]), keep: true };
    Formula::node(reduce, [x.into()])
}

/// Adds nodes that compute [`logsumexp`] along a dim, which is kept with size one.
pub(super) fn logsumexp_nodes(b: &mut Builder, x: ValueId, dim: u32) -> Result<ValueId, TypeError> {
    let largest = b.build(along_dim(ReduceKind::Max, x, dim))?;
    // Rows with only −∞ are shifted by 0, so that the logarithm of the empty sum is −∞ and not NaN.
    let (lowest, zero) = (b.splat_like(x, f64::NEG_INFINITY)?, b.splat_like(x, 0.0)?);
    let shift = b.build(Select.of(Compare::Equal.of(largest, lowest), zero, largest))?;
    b.build(Unary::Log.of(along_dim(ReduceKind::Sum, Unary::Exp.of(x - shift), dim)) + shift)
}

/// Returns the type of the result. Checks that the operands are floats of one type and have that dim.
fn normalised<const N: usize>(dim: u32, types: &Inference) -> Result<Vec<Type>, TypeError> {
    let operands = types.operands::<N>()?;
    let first = operands[0];
    ensure!(first.dtype.is_float() && (dim as usize) < first.ndim(), "cannot normalise dim {dim} of {first}");
    match operands.iter().find(|ty| !ty.same_shape(first)) {
        Some(other) => Err(TypeError::new(format!("{first} and {other} have different types"))),
        None => Ok(vec![Type::new(first.dtype, first.dims.clone())]),
    }
}

/// Applies a function to each row along a dim. It takes the operands' rows and returns the row of the result.
fn by_rows(cx: &Interp, dim: u32, row: impl Fn(&[Vec<f64>]) -> Vec<f64>) -> Vec<Tensor> {
    let sizes = cx.sizes(0);
    let mut out = vec![0.0; sizes.iter().product()];
    for offsets in rows(&sizes, dim) {
        let pick = |tensor: &&Tensor| offsets.iter().map(|&i| tensor.floats()[i]).collect();
        let operands: Vec<Vec<f64>> = cx.operands.iter().map(pick).collect();
        offsets.iter().zip(row(&operands)).for_each(|(&i, y)| out[i] = y);
    }
    vec![Tensor::float(cx.results[0].dtype, sizes, out)]
}

impl Operator for Softmax {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(PrecisionClass::Full)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        normalised::<1>(self.dim, types)
    }

    fn factors(&self, signature: &Signature) -> Factors {
        let words = along(self.dim, signature.operands[0].ndim(), "~");
        Factors::rule(&format!("{words} -> {words}"), signature)
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let y = node.results[0];
        Ok(vec![d[0].map(|dy| b.one(SoftmaxGrad { dim: self.dim }, &[y, dy])).transpose()?])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 13)
    }

    /// A row with only −∞ gives NaN, as in the exporters' frameworks.
    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        by_rows(cx, self.dim, |operands| {
            let x = &operands[0];
            let largest = x.iter().copied().fold(f64::NEG_INFINITY, |a, b| Binary::Max.scalar(a, b));
            let exp: Vec<f64> = x.iter().map(|x| (x - largest).exp()).collect();
            let sum: f64 = exp.iter().sum();
            exp.into_iter().map(|x| x / sum).collect()
        })
    }

    fn partition(&self, b: &mut Builder, node: NodeRef) -> Result<Vec<ValueId>, TypeError> {
        let dtype = b.ty(node.operands[0]).dtype;
        let x = b.cast(node.operands[0], sum_dtype(dtype))?;
        let exp = b.build(Unary::Exp.of(x - along_dim(ReduceKind::Max, x, self.dim)))?;
        Ok(vec![b.build((exp / along_dim(ReduceKind::Sum, exp, self.dim)).cast(dtype))?])
    }
}

impl Operator for SoftmaxGrad {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Output, OperandRole::Gradient]).anywhere(PrecisionClass::Full)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        normalised::<2>(self.dim, types)
    }

    fn factors(&self, signature: &Signature) -> Factors {
        let words = along(self.dim, signature.operands[0].ndim(), "~");
        Factors::rule(&format!("{words}, {words} -> {words}"), signature).linear_in(&[1])
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::SECOND)
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 4)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        by_rows(cx, self.dim, |operands| {
            let pairs = || operands[0].iter().zip(&operands[1]);
            if operands[1].iter().all(|&dy| dy == 0.0) {
                return vec![0.0; operands[1].len()];
            }
            let dot: f64 = pairs().map(|(y, dy)| y * dy).sum();
            pairs().map(|(y, dy)| y * (dy - dot)).collect()
        })
    }

    fn partition(&self, b: &mut Builder, node: NodeRef) -> Result<Vec<ValueId>, TypeError> {
        let dtype = b.ty(node.operands[0]).dtype;
        let y = b.cast(node.operands[0], sum_dtype(dtype))?;
        let dy = b.cast(node.operands[1], sum_dtype(dtype))?;
        // Zero times NaN counts as zero. Testing for a zero row of `d y` as `interp` does would need all devices.
        let times = |b: &mut Builder, factor: ValueId| {
            let zero = b.splat_like(y, 0.0)?;
            b.build(Select.of(Compare::Equal.of(factor, zero), zero, y * factor))
        };
        let products = times(b, dy)?;
        let apart = b.build(dy - along_dim(ReduceKind::Sum, products, self.dim))?;
        let dx = times(b, apart)?;
        Ok(vec![b.cast(dx, dtype)?])
    }
}

impl Operator for LogSoftmax {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(PrecisionClass::Full)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        normalised::<1>(self.dim, types)
    }

    fn factors(&self, signature: &Signature) -> Factors {
        let words = along(self.dim, signature.operands[0].ndim(), "~");
        Factors::rule(&format!("{words} -> {words}"), signature)
    }

    /// d x = d y - eʸ·Σ d y
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let Some(dy) = d[0] else { return Ok(vec![None]) };
        let sum = b.build(along_dim(ReduceKind::Sum, dy, self.dim))?;
        Ok(vec![Some(b.build(dy - Unary::Exp.of(node.results[0]) * sum)?)])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 13)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        by_rows(cx, self.dim, |operands| {
            let sum = logsumexp(operands[0].iter().copied());
            operands[0].iter().map(|x| x - sum).collect()
        })
    }

    fn partition(&self, b: &mut Builder, node: NodeRef) -> Result<Vec<ValueId>, TypeError> {
        let dtype = b.ty(node.operands[0]).dtype;
        let x = b.cast(node.operands[0], sum_dtype(dtype))?;
        let sum = logsumexp_nodes(b, x, self.dim)?;
        Ok(vec![b.build((x - sum).cast(dtype))?])
    }
}
