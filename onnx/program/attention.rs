//! Attention and rotary position embedding.

use super::attribute;
use super::draft::{Draft, OPSET};
use super::operators::{Results, formula, one};
use ir::ops::attention::Attention;
use ir::ops::rotary::Rotary;
use ir::{DType, Dim, Dims, Node, Type};

/// Attention (opset 23). If its attribute cannot represent the scale, the queries are multiplied by it first.
pub(super) fn attention(draft: &mut Draft, node: &Node, op: &Attention) -> Results {
    let mut operands = draft.operands(node)?;
    let q = draft.ty(node.operands[0]);
    let scale = op.scale.get();
    let default = q.dims[3].size().map(|width| 1.0 / (width as f64).sqrt());
    let mut attributes = vec![attribute::flag("is_causal", op.causal)];
    match attribute::exact(scale) {
        _ if Some(scale) == default => {}
        Some(scale) => attributes.push(attribute::float("scale", scale)),
        None => {
            let scale = draft.number(q.dtype, scale);
            operands[0] = draft.push("Mul", &[operands[0], scale], []);
            attributes.push(attribute::float("scale", 1.0));
        }
    }
    if let Some(&mask) = node.operands.get(3) {
        let dtype = draft.ty(mask).dtype;
        if dtype != DType::Bool {
            operands[3] = draft.cast(operands[3], dtype, q.dtype);
        }
        // ONNX Runtime broadcasts the batch and heads of a mask, but not a single row to all queries.
        let from = &draft.ty(mask).dims;
        let mut to = from.clone();
        to[2] = q.dims[2].clone();
        operands[3] = draft.expand(operands[3], from, &to)?;
    }
    draft.needs_opset(OPSET);
    let y = draft.push("Attention", &operands, attributes);
    if draft.is_read(node.results[1]) {
        return Err(ir::Diagnostic::new(
            "the program reads the log-sum-exp of attention, which ONNX's Attention does not return",
        ));
    }
    Ok(vec![Some(y), None])
}

/// RotaryEmbedding (opset 23) of `[batch, heads, sequence, width]` with the same tables for all heads; otherwise a formula.
pub(super) fn rotary(draft: &mut Draft, node: &Node, op: &Rotary) -> Results {
    let x = draft.ty(node.operands[0]);
    let tables = [1, 2].map(|i| table_dims(x, draft.ty(node.operands[i])));
    // RotaryEmbedding does not support f64.
    let ([Some(cos), Some(sin)], true) = (tables, x.dtype != DType::F64) else {
        return formula(draft, node, |draft, node| rotated(draft, node, op));
    };
    let operands = draft.operands(node)?;
    let mut inputs = vec![operands[0]];
    for (i, dims) in [(1, cos), (2, sin)] {
        let ty = draft.ty(node.operands[i]);
        let table = draft.cast(operands[i], ty.dtype, x.dtype);
        let table = draft.reshape(table, &ty.dims, &dims)?;
        let whole = [x.dims[0].clone(), x.dims[2].clone(), dims[2].clone()];
        inputs.push(draft.expand(table, &dims, &whole)?);
    }
    draft.needs_opset(OPSET);
    one(draft.push("RotaryEmbedding", &inputs, [attribute::flag("interleaved", op.interleaved)]))
}

/// Returns the dims `[batch or 1, sequence or 1, half of the width]` of a table that is the same for all heads of `x`.
fn table_dims(x: &Type, table: &Type) -> Option<[Dim; 3]> {
    let missing = 4usize.checked_sub(table.ndim()).filter(|_| x.ndim() == 4)?;
    let ones = std::iter::repeat_n(Dim::known(1), missing);
    let dims: Dims = ones.chain(table.dims.iter().cloned()).collect();
    let fits = |i: usize| dims[i].is_one() || dims[i] == x.dims[i];
    (fits(0) && dims[1].is_one() && fits(2)).then(|| [dims[0].clone(), dims[2].clone(), dims[3].clone()])
}

/// Writes `(a·cos - b·sin, b·cos + a·sin)` for the pairs `(a, b)`.
fn rotated(draft: &mut Draft, node: &Node, op: &Rotary) -> Results {
    let operands = draft.operands(node)?;
    let x = draft.ty(node.operands[0]);
    let last = x.ndim() - 1;
    let half = x.dims[last].quotient(&Dim::known(2)).and_then(|half| half.size());
    let half = half.ok_or_else(|| {
        ir::Diagnostic::new(format!(
            "the rotary embedding needs a last dim that is even and known, not that of {x}"
        ))
    })?;
    let half = super::draft::size(half)?;
    let tables = [1, 2].map(|i| draft.cast(operands[i], draft.ty(node.operands[i]).dtype, x.dtype));
    let [cos, sin] = tables;
    // Interleaved pairs become the last dim of a reshape.
    let apart: Dims =
        x.dims[..last].iter().cloned().chain([Dim::known(half as u64), Dim::known(2)]).collect();
    let halves = if op.interleaved {
        let pairs = draft.reshape(operands[0], &x.dims, &apart)?;
        [0, 1].map(|i| {
            let side = draft.slice(pairs, last as u32 + 1, i, i + 1, 1);
            draft.squeeze(side, last + 1)
        })
    } else {
        [0, half].map(|start| draft.slice(operands[0], last as u32, start, start + half, 1))
    };
    let [a, b] = halves;
    let mut times = |x, table| draft.push("Mul", &[x, table], []);
    let [a_cos, b_sin, b_cos, a_sin] = [times(a, cos), times(b, sin), times(b, cos), times(a, sin)];
    let (first, second) = (draft.push("Sub", &[a_cos, b_sin], []), draft.push("Add", &[b_cos, a_sin], []));
    let axis = [attribute::int("axis", if op.interleaved { last as i64 + 1 } else { last as i64 })];
    if !op.interleaved {
        return one(draft.push("Concat", &[first, second], axis));
    }
    let sides = [first, second].map(|side| draft.unsqueeze(side, last + 1));
    let pairs = draft.push("Concat", &sides, axis);
    one(draft.reshape(pairs, &apart, &x.dims)?)
}
