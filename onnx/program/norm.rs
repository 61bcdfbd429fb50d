//! Normalisations over the last dim.

use super::attribute;
use super::draft::{Draft, OPSET, TensorId, with_last};
use super::operators::{Results, formula};
use ir::ops::Float;
use ir::ops::norm::{LayerNorm, RmsNorm};
use ir::ops::reduce::ReduceKind;
use ir::{DType, Diagnostic, Dim, Node};

/// LayerNormalization, or a formula if ONNX's attribute cannot represent the epsilon. Statistics are f32 in ONNX.
pub(super) fn layer_norm(draft: &mut Draft, node: &Node, op: &LayerNorm) -> Results {
    let Some(eps) = attribute::exact(op.eps.get()) else {
        return formula(draft, node, |draft, node| layer_norm_formula(draft, node, op.eps));
    };
    let operands: Vec<Option<TensorId>> = draft.operands(node)?.into_iter().map(Some).collect();
    let outputs = draft.push_many("LayerNormalization", &operands, 3, [attribute::float("epsilon", eps)]);
    let mut results = vec![Some(outputs[0])];
    for i in [1, 2] {
        let ty = draft.ty(node.results[i]);
        let statistic = draft.cast(outputs[i], DType::F32, ty.dtype);
        results.push(Some(draft.reshape(statistic, &with_last(&ty.dims, Dim::known(1)), &ty.dims)?));
    }
    Ok(results)
}

fn layer_norm_formula(draft: &mut Draft, node: &Node, eps: Float) -> Results {
    let operands = draft.operands(node)?;
    let ty = draft.ty(node.operands[0]);
    let last = ty.ndim() as u32 - 1;
    let mean = draft.reduced(operands[0], ReduceKind::Mean, &[last], true);
    let centred = draft.push("Sub", &[operands[0], mean], []);
    let rstd = inverse_deviation(draft, centred, ty.dtype, last, eps);
    let normal = draft.push("Mul", &[centred, rstd], []);
    let scaled = draft.push("Mul", &[normal, operands[1]], []);
    let y = draft.push("Add", &[scaled, operands[2]], []);
    Ok(vec![Some(y), Some(statistic(draft, node, 1, mean)?), Some(statistic(draft, node, 2, rstd)?)])
}

/// RMSNormalization, or a formula if the statistic is read, or if ONNX's attribute cannot represent the epsilon.
pub(super) fn rms_norm(draft: &mut Draft, node: &Node, op: &RmsNorm) -> Results {
    match attribute::exact(op.eps.get()).filter(|_| !draft.is_read(node.results[1])) {
        Some(eps) => {
            let operands = draft.operands(node)?;
            draft.needs_opset(OPSET);
            let y = draft.push("RMSNormalization", &operands, [attribute::float("epsilon", eps)]);
            Ok(vec![Some(y), None])
        }
        None => formula(draft, node, |draft, node| {
            let operands = draft.operands(node)?;
            let ty = draft.ty(node.operands[0]);
            let rstd = inverse_deviation(draft, operands[0], ty.dtype, ty.ndim() as u32 - 1, op.eps);
            let normal = draft.push("Mul", &[operands[0], rstd], []);
            let y = draft.push("Mul", &[normal, operands[1]], []);
            Ok(vec![Some(y), Some(statistic(draft, node, 1, rstd)?)])
        }),
    }
}

/// Writes `1 / √(mean(x²) + eps)` along the last dim, which is kept with size one.
fn inverse_deviation(draft: &mut Draft, x: TensorId, dtype: DType, last: u32, eps: Float) -> TensorId {
    let square = draft.push("Mul", &[x, x], []);
    let mean = draft.reduced(square, ReduceKind::Mean, &[last], true);
    let eps = draft.number(dtype, eps.get());
    let shifted = draft.push("Add", &[mean, eps], []);
    let deviation = draft.push("Sqrt", &[shifted], []);
    draft.push("Reciprocal", &[deviation], [])
}

/// Removes the last dim of size one from a statistic.
fn statistic(
    draft: &mut Draft,
    node: &Node,
    result: usize,
    tensor: TensorId,
) -> Result<TensorId, Diagnostic> {
    let dims = &draft.ty(node.results[result]).dims;
    draft.reshape(tensor, &with_last(dims, Dim::known(1)), dims)
}
