//! Reductions over dims, running sums, softmax, and top-k indices.

use super::attribute;
use super::draft::{Draft, TensorId, size};
use super::operators::{Results, one};
use ir::ops::ranking::TopK;
use ir::ops::reduce::{CumulativeSum, Reduce, ReduceKind};
use ir::{DType, Node};

impl Draft<'_> {
    /// Reduces over some dims.
    pub(super) fn reduced(&mut self, x: TensorId, kind: ReduceKind, dims: &[u32], keep: bool) -> TensorId {
        if dims.is_empty() {
            return x;
        }
        let operator = match kind {
            ReduceKind::Sum => "ReduceSum",
            ReduceKind::Mean => "ReduceMean",
            ReduceKind::Max => "ReduceMax",
            ReduceKind::Min => "ReduceMin",
        };
        let axes: Vec<i64> = dims.iter().map(|&dim| i64::from(dim)).collect();
        let axes = self.integers(&axes);
        self.push(operator, &[x, axes], [attribute::flag("keepdims", keep)])
    }
}

/// Returns the type in which ONNX reduces, which is never a small integer. Sums wrap as in the small type.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::I8 | DType::I16 | DType::U8 | DType::U16 => DType::I64,
        other => other,
    }
}

/// Writes a reduction.
pub(super) fn reduce(draft: &mut Draft, node: &Node, op: &Reduce) -> Results {
    let (x, dtype) = (draft.operand(node, 0)?, draft.ty(node.operands[0]).dtype);
    let x = draft.cast(x, dtype, wide(dtype));
    let reduced = draft.reduced(x, op.kind, &op.dims, op.keep);
    one(draft.cast(reduced, wide(dtype), dtype))
}

/// Writes CumSum.
pub(super) fn cumulative_sum(draft: &mut Draft, node: &Node, op: &CumulativeSum) -> Results {
    let (x, dtype) = (draft.operand(node, 0)?, draft.ty(node.operands[0]).dtype);
    let x = draft.cast(x, dtype, wide(dtype));
    let axis = draft.number(DType::I64, f64::from(op.dim));
    let attributes = [attribute::flag("exclusive", op.exclusive), attribute::flag("reverse", op.reverse)];
    let sum = draft.push("CumSum", &[x, axis], attributes);
    one(draft.cast(sum, wide(dtype), dtype))
}

/// Writes Softmax or LogSoftmax.
pub(super) fn softmax(draft: &mut Draft, node: &Node, operator: &str, dim: u32) -> Results {
    let x = draft.operand(node, 0)?;
    one(draft.push(operator, &[x], [attribute::int("axis", i64::from(dim))]))
}

/// The indices of TopK.
pub(super) fn top_k(draft: &mut Draft, node: &Node, op: &TopK) -> Results {
    let (x, dtype) = (draft.operand(node, 0)?, draft.ty(node.operands[0]).dtype);
    // TopK does not support bf16; f32 keeps the order.
    let x = if dtype == DType::BF16 { draft.cast(x, dtype, DType::F32) } else { x };
    let count = draft.integers(&[size(op.count)?]);
    let attributes = [
        attribute::int("axis", i64::from(op.dim)),
        attribute::flag("largest", op.largest),
        attribute::flag("sorted", true),
    ];
    one(draft.push_many("TopK", &[Some(x), Some(count)], 2, attributes)[1])
}
