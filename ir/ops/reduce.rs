//! Reductions over dims, and the running sum.

use super::elementwise::{Binary, wrap};
use super::scatter::hits;
use super::*;
use crate::tensor::{Elements, offsets, strides};
use crate::{DType, Dim, Dims};
use smallvec::SmallVec;

/// A reduction over some dims, which are removed, or kept with size one if `keep`. Sum, maximum and minimum of floats and
/// integers; mean of floats. The gradient of a maximum or minimum is shared equally among equal elements.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reduce {
    /// The function of the reduction.
    pub kind: ReduceKind,
    /// The reduced dims, ascending.
    pub dims: SmallVec<[u32; 4]>,
    /// Whether reduced dims are kept with size one.
    pub keep: bool,
}

/// The function of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReduceKind {
    /// Sum.
    Sum,
    /// Mean.
    Mean,
    /// Maximum.
    Max,
    /// Minimum.
    Min,
}

impl Attribute for ReduceKind {
    fn print(&self) -> String {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Max => "max",
            Self::Min => "min",
        }
        .into()
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Sum, Self::Mean, Self::Max, Self::Min].into_iter().find(|kind| kind.print() == text)
    }
}

/// The running sum along a dim (ONNX CumSum), from the first element or, with `reverse`, from the last. With `exclusive`, a sum
/// does not include its own element. Floats and integers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CumulativeSum {
    /// The dim along which the sum runs.
    pub dim: u32,
    /// Whether a sum excludes its own element.
    pub exclusive: bool,
    /// Whether the sum starts at the last element.
    pub reverse: bool,
}

impl Reduce {
    /// Returns the dims of the result. With `keep`, reduced dims have size one.
    fn result_dims(&self, dims: &[Dim], keep: bool) -> Dims {
        let reduced = |i: usize| self.dims.contains(&(i as u32));
        let all = dims.iter().enumerate();
        all.filter(|(i, _)| keep || !reduced(*i))
            .map(|(i, dim)| if reduced(i) { Dim::known(1) } else { dim.clone() })
            .collect()
    }

    /// Returns the number of elements that are reduced to one; `None` while a dim is unbound.
    fn count(&self, dims: &[Dim]) -> Option<u64> {
        self.dims.iter().try_fold(1u64, |count, &i| count.checked_mul(dims[i as usize].size()?))
    }
}

impl Operator for Reduce {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(match self.kind {
            ReduceKind::Sum | ReduceKind::Mean => PrecisionClass::Full,
            ReduceKind::Max | ReduceKind::Min => PrecisionClass::Follow,
        })
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        let kind = self.kind.print();
        if x.dtype == DType::Bool || (self.kind == ReduceKind::Mean && !x.dtype.is_float()) {
            return Err(TypeError::new(format!("cannot reduce {x} by {kind}")));
        }
        let ascending = self.dims.windows(2).all(|pair| pair[0] < pair[1]);
        ensure!(
            ascending && self.dims.last().is_none_or(|&last| (last as usize) < x.ndim()),
            "{:?} are not dims of {x}, ascending",
            self.dims
        );
        let extreme = matches!(self.kind, ReduceKind::Max | ReduceKind::Min);
        ensure!(
            !extreme || self.dims.iter().all(|&i| x.dims[i as usize].size() != Some(0)),
            "the {kind} of zero elements is undefined: dims {:?} of {x}",
            self.dims
        );
        Ok(vec![Type::new(x.dtype, self.result_dims(&x.dims, self.keep))])
    }

    /// A mean is split as a sum, because means of parts cannot be added without their counts.
    fn factors(&self, signature: &Signature) -> Factors {
        let suffix = match self.kind {
            ReduceKind::Sum => "+",
            ReduceKind::Mean => "~",
            ReduceKind::Max => " max",
            ReduceKind::Min => " min",
        };
        let (mut operand, mut result) = (Vec::new(), Vec::new());
        for i in 0..signature.operands[0].ndim() as u32 {
            let reduced = self.dims.contains(&i);
            operand.push(if reduced { format!("f{i}{suffix}") } else { format!("f{i}") });
            if !reduced {
                result.push(format!("f{i}"));
            } else if self.keep {
                result.push("1".into());
            }
        }
        let factors = Factors::rule(&format!("{} -> {}", operand.join(" "), result.join(" ")), signature);
        match self.kind {
            ReduceKind::Sum => factors.linear_in(&[0]).keeping_zeros(),
            ReduceKind::Mean => factors.linear_in(&[0]),
            ReduceKind::Max | ReduceKind::Min => factors,
        }
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let (x, y) = (node.operands[0], node.results[0]);
        let Some(dy) = d[0].filter(|_| b.ty(x).dtype.is_float()) else { return Ok(vec![None]) };
        let dims = b.ty(x).dims.clone();
        let kept = self.result_dims(&dims, true);
        let dy = b.reshape(dy, kept.clone())?;
        let dx = match self.kind {
            ReduceKind::Sum => b.broadcast(dy, dims)?,
            ReduceKind::Mean => {
                let count = self
                    .count(&dims)
                    .ok_or(GradientError::Undefined("a dim that is averaged must be bound"))?;
                b.broadcast(dy * (1.0 / count as f64), dims)?
            }
            ReduceKind::Max | ReduceKind::Min => {
                let y = b.reshape(y, kept)?;
                let hit = hits(b, x, y)?;
                let hits =
                    b.one(Self { kind: ReduceKind::Sum, dims: self.dims.clone(), keep: true }, &[hit])?;
                b.build(hit * (dy / hits))?
            }
        };
        Ok(vec![Some(dx)])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.operands[0], 1)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (x, sizes, dtype) = (cx.operands[0], cx.sizes(0), cx.results[0].dtype);
        let reduced = |i: usize| self.dims.contains(&(i as u32));
        let kept: Vec<usize> =
            x.sizes.iter().enumerate().map(|(i, &n)| if reduced(i) { 1 } else { n }).collect();
        let mut steps = strides(&kept);
        steps.iter_mut().enumerate().filter(|(i, _)| reduced(*i)).for_each(|(_, step)| *step = 0);
        let len = sizes.iter().product();
        let count: usize = self.dims.iter().map(|&i| x.sizes[i as usize]).product();
        vec![match &x.elements {
            Elements::Float(elements) => {
                let (start, combine): (f64, fn(f64, f64) -> f64) = match self.kind {
                    ReduceKind::Sum | ReduceKind::Mean => (0.0, |a, b| a + b),
                    ReduceKind::Max => (f64::NEG_INFINITY, |a, b| Binary::Max.scalar(a, b)),
                    ReduceKind::Min => (f64::INFINITY, |a, b| Binary::Min.scalar(a, b)),
                };
                let mut out = vec![start; len];
                fold(&mut out, elements, &x.sizes, &steps, combine);
                if self.kind == ReduceKind::Mean {
                    out.iter_mut().for_each(|x| *x /= count as f64);
                }
                Tensor::float(dtype, sizes, out)
            }
            Elements::Int(elements) => {
                let (start, combine): (i64, fn(i64, i64) -> i64) = match self.kind {
                    ReduceKind::Sum | ReduceKind::Mean => (0, i64::wrapping_add),
                    ReduceKind::Max => (i64::MIN, i64::max),
                    ReduceKind::Min => (i64::MAX, i64::min),
                };
                let mut out = vec![start; len];
                fold(&mut out, elements, &x.sizes, &steps, combine);
                Tensor::int(dtype, sizes, out.into_iter().map(|x| wrap(dtype, x)).collect())
            }
            Elements::Bool(_) => unreachable!("infer has checked the types"),
        }]
    }

    /// Builds a mean as the sum divided by the number of elements in the global tensor.
    fn partition(&self, b: &mut Builder, node: NodeRef) -> Result<Vec<ValueId>, TypeError> {
        let x = node.operands[0];
        let count = self.count(&b.ty(x).dims);
        let count = count.ok_or_else(|| TypeError::new("a dim that is averaged must be bound"))?;
        let sum = b.one(Self { kind: ReduceKind::Sum, ..self.clone() }, &[x])?;
        Ok(vec![b.build(sum / count as f64)?])
    }
}

impl Operator for CumulativeSum {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(PrecisionClass::Full)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        ensure!(
            x.dtype != DType::Bool && (self.dim as usize) < x.ndim(),
            "cannot run along dim {} of {x}",
            self.dim
        );
        Ok(vec![Type::new(x.dtype, x.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        let words = along(self.dim, signature.operands[0].ndim(), "^");
        Factors::rule(&format!("{words} -> {words}"), signature).linear_in(&[0])
    }

    /// The running sum of the gradient from the other end.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let Some(dy) = d[0].filter(|_| b.ty(node.operands[0]).dtype.is_float()) else {
            return Ok(vec![None]);
        };
        Ok(vec![Some(b.one(Self { reverse: !self.reverse, ..self.clone() }, &[dy])?)])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.operands[0], 1)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (x, dtype) = (cx.operands[0], cx.results[0].dtype);
        let mut out = x.clone();
        for mut row in rows(&x.sizes, self.dim) {
            if self.reverse {
                row.reverse();
            }
            match &mut out.elements {
                Elements::Float(elements) => run(elements, &row, self.exclusive, 0.0, |sum, x| sum + x),
                Elements::Int(elements) => {
                    run(elements, &row, self.exclusive, 0, |sum, x| wrap(dtype, sum.wrapping_add(x)))
                }
                Elements::Bool(_) => unreachable!("infer has checked the types"),
            }
        }
        vec![out]
    }
}

/// Combines every element, in row-major order, with the element of `out` at the offset that `steps` give.
fn fold<T: Copy>(out: &mut [T], elements: &[T], sizes: &[usize], steps: &[usize], combine: fn(T, T) -> T) {
    let (outer, inner) = sizes.split_at(sizes.len().saturating_sub(1));
    let (outer_steps, inner_steps) = steps.split_at(outer.len());
    let (size, step) = (inner.first().copied().unwrap_or(1), inner_steps.first().copied().unwrap_or(0));
    for (start, row) in offsets(outer, outer_steps).into_iter().zip(elements.chunks_exact(size.max(1))) {
        row.iter().enumerate().for_each(|(i, &x)| out[start + i * step] = combine(out[start + i * step], x));
    }
}

/// Replaces the elements at the offsets of `row` by their running sum.
fn run<T: Copy>(elements: &mut [T], row: &[usize], exclusive: bool, zero: T, add: impl Fn(T, T) -> T) {
    let mut sum = zero;
    for &i in row {
        let with = add(sum, elements[i]);
        elements[i] = if exclusive { sum } else { with };
        sum = with;
    }
}

/// Returns a word for each dim. The word of `dim` ends in `suffix` (`^`, `~`); the other dims can be split.
pub(super) fn along(dim: u32, ndim: usize, suffix: &str) -> String {
    let word = |i| if i == dim as usize { format!("f{i}{suffix}") } else { format!("f{i}") };
    (0..ndim).map(word).collect::<Vec<_>>().join(" ")
}

/// Returns the offsets of each row along a dim.
pub(super) fn rows(sizes: &[usize], dim: u32) -> Vec<Vec<usize>> {
    let (dim, own) = (dim as usize, strides(sizes));
    let mut starts = sizes.to_vec();
    starts[dim] = 1;
    let along = |start: usize| (0..sizes[dim]).map(|k| start + k * own[dim]).collect();
    offsets(&starts, &own).into_iter().map(along).collect()
}
