//! Losses as a sum and a weight. The mean over the global batch is taken in `update`.

use super::elementwise::{Compare, Logical, Select, Unary};
use super::indexing::GatherElements;
use super::reduce::ReduceKind;
use super::softmax::{along_dim, logsumexp, logsumexp_nodes};
use super::*;
use crate::{DType, Dim, Dims};

/// Softmax cross-entropy of `logits[.., v]` with integer `labels[..]`, summed over all positions whose label is not
/// `ignore_index`.
///
/// Results: the scalar `sum = Σ (logsumexp(logits) - (1-ε)·logits[label] - ε·mean(logits))` with ε the label
/// smoothing (Szegedy et al., arXiv 1512.00567, section 7, as PyTorch defines it), the scalar `weight` (the number
/// of positions that count), and `logsumexp[..]` of every position, kept for the gradient. All three have the type of the logits,
/// or f32 if that is narrower. A position with a label outside `0..v` does not count; the loader refuses such labels. Only `sum`
/// has a gradient: `weight` does not depend on the logits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CrossEntropy {
    /// The label of positions that do not count.
    pub ignore_index: i64,
    /// The label smoothing ε; 0 for none.
    pub label_smoothing: Float,
}

/// The gradient of [`CrossEntropy`] in its logits. Operands: `logits, labels, logsumexp, d sum`. Result: `d logits`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CrossEntropyGrad {
    /// As in [`CrossEntropy`].
    pub ignore_index: i64,
    /// As in [`CrossEntropy`].
    pub label_smoothing: Float,
}

/// Returns the element type in which sums of this type are computed.
pub(super) fn sum_dtype(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Returns the dims that the labels of these logits must have. The last dim of the logits is the vocabulary.
fn positions<'a>(logits: &'a Type, labels: &Type) -> Result<&'a [Dim], TypeError> {
    let Some((vocabulary, positions)) = logits.dims.split_last() else {
        return Err(TypeError::new(format!("the logits {logits} have no class dim")));
    };
    ensure!(
        logits.dtype.is_float() && vocabulary.size() != Some(0),
        "the logits are {logits}; they must be floats with at least one class"
    );
    ensure!(
        labels.dtype.is_integer() && labels.dims[..] == *positions,
        "the labels are {labels}; the logits {logits} need one integer for each position"
    );
    Ok(positions)
}

/// Returns the class of a position, if the position counts.
fn class(label: i64, ignore_index: i64, classes: usize) -> Option<usize> {
    usize::try_from(label).ok().filter(|&class| label != ignore_index && class < classes)
}

impl Operator for CrossEntropy {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data, OperandRole::Labels]).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [logits, labels] = types.operands()?;
        let positions = positions(logits, labels)?;
        let dtype = sum_dtype(logits.dtype);
        Ok(vec![Type::scalar(dtype), Type::scalar(dtype), Type::new(dtype, positions.iter().cloned())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::rule("*+ v~, * -> ., ., *", signature)
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        if d[2].is_some() {
            return Err(GradientError::Undefined("the logsumexp of a loss has no gradient"));
        }
        let Some(dsum) = d[0] else { return Ok(vec![None; 2]) };
        let (logits, labels, logsumexp) = (node.operands[0], node.operands[1], node.results[2]);
        let op = CrossEntropyGrad { ignore_index: self.ignore_index, label_smoothing: self.label_smoothing };
        Ok(vec![Some(b.one(op, &[logits, labels, logsumexp, dsum])?), None])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.operands[0], 13)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (logits, labels) = (cx.operands[0], cx.operands[1].ints());
        let classes = logits.sizes[logits.sizes.len() - 1];
        let smoothing = self.label_smoothing.get();
        let (mut sum, mut weight, mut logsumexps) = (0.0, 0.0, vec![]);
        for (row, &label) in logits.floats().chunks_exact(classes).zip(labels) {
            let total = logsumexp(row.iter().copied());
            logsumexps.push(total);
            if let Some(class) = class(label, self.ignore_index, classes) {
                sum += total - (1.0 - smoothing) * row[class];
                // Handled separately, so that a logit of −∞ without smoothing does not give 0·∞.
                if smoothing != 0.0 {
                    sum -= smoothing * row.iter().sum::<f64>() / classes as f64;
                }
                weight += 1.0;
            }
        }
        let dtype = cx.results[0].dtype;
        let scalar = |x: f64| Tensor::float(dtype, vec![], vec![x]);
        vec![scalar(sum), scalar(weight), Tensor::float(dtype, cx.sizes(2), logsumexps)]
    }

    /// Splits the classes: builds the logsumexp, the logit of the label (which only one rank has) and, for smoothing, the sum.
    fn partition(&self, b: &mut Builder, node: NodeRef) -> Result<Vec<ValueId>, TypeError> {
        let (logits, smoothing) = (b.ty(node.operands[0]).clone(), self.label_smoothing.get());
        let (dtype, dim) = (sum_dtype(logits.dtype), logits.ndim() as u32 - 1);
        let classes = logits.dims[dim as usize].size();
        let classes = classes.ok_or_else(|| TypeError::new("the classes must be bound"))?;
        let logits = b.cast(node.operands[0], dtype)?;
        let logsumexp = logsumexp_nodes(b, logits, dim)?;
        let one_each: Dims = b.ty(logsumexp).dims.clone();
        let labels = b.cast(node.operands[1], DType::I64)?;
        let labels = b.reshape(labels, one_each.clone())?;
        let counts = self.counts(b, labels, classes)?;
        let mut label_logit = b.one(GatherElements { dim }, &[logits, labels])?;
        if smoothing != 0.0 {
            label_logit = b.build(label_logit * (1.0 - smoothing))?;
        }
        let mut loss = b.build(logsumexp - label_logit)?;
        if smoothing != 0.0 {
            let total = along_dim(ReduceKind::Sum, logits, dim);
            loss = b.build(loss - total * (smoothing / classes as f64))?;
        }
        let (zero, one) = (b.scalar(dtype, 0.0)?, b.scalar(dtype, 1.0)?);
        let loss = b.build(Select.of(counts, loss, zero))?;
        let weight = b.build(Select.of(counts, one, zero))?;
        let all: Vec<u32> = (0..=dim).collect();
        let (sum, weight) = (b.sum(loss, &all)?, b.sum(weight, &all)?);
        let positions = one_each[..dim as usize].to_vec();
        Ok(vec![sum, weight, b.reshape(logsumexp, positions)?])
    }
}

impl CrossEntropy {
    /// Returns whether each i64 label counts, with the rule of [`class`].
    fn counts(&self, b: &mut Builder, labels: ValueId, classes: u64) -> Result<ValueId, TypeError> {
        let (zero, end) = (b.scalar(DType::I64, 0.0)?, b.scalar(DType::I64, classes as f64)?);
        let from_zero = b.build(Compare::GreaterEqual.of(labels, zero))?;
        let mut counts = b.build(Logical::And.of(from_zero, Compare::Less.of(labels, end)))?;
        // A label that is not a class does not count in any case.
        if u64::try_from(self.ignore_index).is_ok_and(|ignored| ignored < classes) {
            let ignored = b.scalar(DType::I64, self.ignore_index as f64)?;
            counts = b.build(Logical::And.of(counts, Unary::Not.of(Compare::Equal.of(labels, ignored))))?;
        }
        Ok(counts)
    }
}

impl Operator for CrossEntropyGrad {
    // Depends on the place of a part: labels count along the whole dim. Reads some operands in f32: the sums of exponentials and the
    // gradient of a loss are f32 in any case.
    fn facts(&self) -> Facts {
        use OperandRole::*;
        Operands::new(&[Data, Labels, LogSumExp, Gradient])
            .by_place(PrecisionClass::Follow)
            .reading(&[(LogSumExp, Reads::Full), (Gradient, Reads::Full)])
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [logits, labels, logsumexp, dsum] = types.operands()?;
        let positions = positions(logits, labels)?;
        let dtype = sum_dtype(logits.dtype);
        ensure!(
            logsumexp.dtype == dtype && logsumexp.dims[..] == *positions,
            "the logsumexp is {logsumexp}; the logits {logits} need one {dtype} for each position"
        );
        ensure!(
            dsum.dtype == dtype && dsum.ndim() == 0,
            "the gradient of the sum is {dsum}, not a scalar {dtype}"
        );
        Ok(vec![Type::new(logits.dtype, logits.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::rule("* v, *, *, . -> * v", signature).linear_in(&[3])
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::SECOND)
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.operands[0], 12)
    }

    /// d logits = d sum · (softmax(logits) - (1-ε)·[class = label] - ε/v), zero where a position does not count. A rank may have
    /// only some of the v classes.
    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (logits, labels) = (cx.operands[0], cx.operands[1].ints());
        let (logsumexps, dsum) = (cx.operands[2].floats(), cx.operands[3].item());
        let dim = logits.sizes.len() - 1;
        let span = cx.operand_span(0, dim);
        let (first, classes) = (span.start as usize, span.size as usize);
        let smoothing = self.label_smoothing.get();
        let mut out = Vec::with_capacity(logits.len());
        let rows = logits.floats().chunks_exact(logits.sizes[dim]);
        for ((row, &label), total) in rows.zip(labels).zip(logsumexps) {
            match class(label, self.ignore_index, classes) {
                None => out.extend(row.iter().map(|_| 0.0)),
                Some(class) => out.extend(row.iter().zip(first..).map(|(x, i)| {
                    let target = if i == class { 1.0 - smoothing } else { 0.0 } + smoothing / classes as f64;
                    dsum * ((x - total).exp() - target)
                })),
            }
        }
        vec![Tensor::float(cx.results[0].dtype, cx.sizes(0), out)]
    }
}
