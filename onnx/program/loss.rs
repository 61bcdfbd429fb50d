//! The cross-entropy: SoftmaxCrossEntropyLoss, with the classes in dim 1, as in ONNX.

use super::Form;
use super::attribute;
use super::constants::code;
use super::draft::{Draft, TensorId, product};
use super::operators::Results;
use ir::ops::elementwise::Binary;
use ir::ops::loss::CrossEntropy;
use ir::ops::reduce::ReduceKind;
use ir::{DType, Diagnostic, Dims, Module, Node, Op, OperandRole};

/// Writes the sum, the weight, and the logsumexp of each position.
pub(super) fn cross_entropy(draft: &mut Draft, node: &Node, op: &CrossEntropy) -> Results {
    let logits = Logits::of(draft, node)?;
    let smoothing = op.label_smoothing.get();
    let hard = logits.loss(draft, node, op, "sum")?;
    let last = logits.ndim - 1;
    let axes = draft.integers(&[i64::from(last)]);
    let logsumexp =
        draft.push("ReduceLogSumExp", &[logits.tensor, axes], [attribute::flag("keepdims", false)]);
    let counted = counted(draft, node, op)?;
    let all: Vec<u32> = (0..last).collect();
    let counts = draft.push("Cast", &[counted], [attribute::int("to", code(logits.dtype))]);
    let weight = draft.reduced(counts, ReduceKind::Sum, &all, false);
    let sum = if smoothing == 0.0 {
        hard
    } else {
        // ε times the loss of each position is taken for the mean over all classes.
        let mean = draft.reduced(logits.tensor, ReduceKind::Mean, &[last], false);
        let even = draft.push("Sub", &[logsumexp, mean], []);
        let zero = draft.number(logits.dtype, 0.0);
        let even = draft.push("Where", &[counted, even, zero], []);
        let even = draft.reduced(even, ReduceKind::Sum, &all, false);
        let [own, others] = [1.0 - smoothing, smoothing].map(|share| draft.number(logits.dtype, share));
        let (own, others) = (draft.push("Mul", &[hard, own], []), draft.push("Mul", &[even, others], []));
        draft.push("Add", &[own, others], [])
    };
    Ok(vec![Some(sum), Some(weight), Some(logsumexp)])
}

/// Writes a division of a cross-entropy's sum by its weight as the mean, which is an ONNX operator. `None` for other divisions.
///
/// # Errors
/// As [`Draft::value`].
pub(super) fn mean(draft: &mut Draft, division: &Node) -> Result<Option<TensorId>, Diagnostic> {
    let Some((node, op)) = divided(draft.module, division).filter(|_| draft.form != Form::Program) else {
        return Ok(None);
    };
    let logits = Logits::of(draft, node)?;
    logits.loss(draft, node, op, "mean").map(Some)
}

/// Returns the cross-entropy, without label smoothing, whose sum is divided by its weight.
fn divided<'m>(module: &'m Module, division: &Node) -> Option<(&'m Node, &'m CrossEntropy)> {
    let node = module.producer(division.operands[0])?;
    let Op::CrossEntropy(op) = &node.op else { return None };
    let is_mean = division.op == Op::Binary(Binary::Div) && division.operands[..] == node.results[..2];
    (is_mean && op.label_smoothing.get() == 0.0).then_some((node, op))
}

/// The logits of a loss, in the type of its sum.
struct Logits {
    tensor: TensorId,
    dtype: DType,
    ndim: u32,
}

impl Logits {
    fn of(draft: &mut Draft, node: &Node) -> Result<Self, Diagnostic> {
        let (value, dtype) = (node[OperandRole::Data], draft.ty(node.results[0]).dtype);
        let (tensor, ty) = (draft.value(value)?, draft.ty(value));
        Ok(Self { tensor: draft.cast(tensor, ty.dtype, dtype), dtype, ndim: ty.ndim() as u32 })
    }

    /// Writes the loss of all positions, which are the rows of a matrix.
    fn loss(
        &self,
        draft: &mut Draft,
        node: &Node,
        op: &CrossEntropy,
        reduction: &str,
    ) -> Result<TensorId, Diagnostic> {
        let labels = node[OperandRole::Labels];
        let (dims, label_ty) = (&draft.ty(node[OperandRole::Data]).dims, draft.ty(labels));
        let rows = product(&label_ty.dims)?;
        let matrix: Dims = [rows.clone(), dims[dims.len() - 1].clone()].into_iter().collect();
        let logits = draft.reshape(self.tensor, dims, &matrix)?;
        let labels = draft.value(labels)?;
        let labels = draft.cast(labels, label_ty.dtype, DType::I64);
        let labels = draft.reshape(labels, &label_ty.dims, std::slice::from_ref(&rows))?;
        let attributes =
            [attribute::int("ignore_index", op.ignore_index), attribute::text("reduction", reduction)];
        Ok(draft.push("SoftmaxCrossEntropyLoss", &[logits, labels], attributes))
    }
}

/// Writes whether each position counts.
fn counted(draft: &mut Draft, node: &Node, op: &CrossEntropy) -> Result<TensorId, Diagnostic> {
    let labels = node[OperandRole::Labels];
    let (tensor, dtype) = (draft.value(labels)?, draft.ty(labels).dtype);
    let tensor = draft.cast(tensor, dtype, DType::I64);
    let ignored = draft.stored(&ir::Tensor::int(DType::I64, vec![], vec![op.ignore_index]));
    let is_ignored = draft.push("Equal", &[tensor, ignored], []);
    Ok(draft.push("Not", &[is_ignored], []))
}
