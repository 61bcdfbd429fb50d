//! Attention as one node (opset 23).

use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem};
use ir::ops::Float;
use ir::ops::attention::Attention;
use ir::{Dim, Dims, ValueId};

/// Attention without a cache, in its four-dim form `[batch, heads, sequence, width]`, or the three-dim form
/// `[batch, sequence, heads·width]` with the numbers of heads as attributes.
pub(super) fn attention(cx: &mut Context, call: &Call) -> Outputs {
    for (i, what) in [(4, "past_key"), (5, "past_value"), (6, "nonpad_kv_seqlen")] {
        if call.input(i).is_some() {
            return Err(Problem::new(format!("reads `{what}`: a cache is for generating, not for training"))
                .note("export without a cache (use_cache=False)"));
        }
    }
    if call.float("softcap").is_some_and(|cap| cap != 0.0) {
        return Err(Problem::new("caps its scores (`softcap`), which is not built"));
    }
    if (1..4).any(|i| call.output(i).is_some_and(|name| !name.is_empty())) {
        return Err(Problem::new("also puts out keys, values or scores, which is not built"));
    }
    let inputs = [cx.value(call, 0)?, cx.value(call, 1)?, cx.value(call, 2)?];
    let flat = cx.ty(inputs[0]).ndim() == 3;
    let heads = [call.int("q_num_heads"), call.int("kv_num_heads"), call.int("kv_num_heads")];
    let mut operands = Vec::new();
    for (value, heads) in inputs.into_iter().zip(heads) {
        operands.push(if flat { split_heads(cx, value, heads)? } else { value });
    }
    let width = cx.ty(operands[0]).dims.last().and_then(Dim::size);
    let default = || width.map(|width| 1.0 / (width as f64).sqrt());
    let scale = call.float("scale").or_else(default);
    let scale = scale.ok_or_else(|| Problem::new("has heads of a width that is not bound"))?;
    if let Some(mask) = cx.optional(call, 3)? {
        operands.push(four_dims(cx, mask)?);
    }
    let causal = call.int("is_causal") == Some(1);
    let out = cx.b.push(Attention { scale: Float::new(scale), causal }, &operands)?[0];
    Ok(vec![Entry::Value(if flat { merge_heads(cx, out)? } else { out })])
}

fn split_heads(cx: &mut Context, x: ValueId, heads: Option<i64>) -> Result<ValueId, Problem> {
    let ty = cx.ty(x).clone();
    let heads = heads.and_then(|heads| u64::try_from(heads).ok()).filter(|&heads| heads > 0);
    let heads = Dim::known(heads.ok_or_else(|| Problem::new("has three-dim inputs and no number of heads"))?);
    let width = ty.dims[2].quotient(&heads);
    let width =
        width.ok_or_else(|| Problem::new(format!("{heads} heads do not divide the last dim of {ty}")))?;
    let split = cx.b.reshape(x, [ty.dims[0].clone(), ty.dims[1].clone(), heads, width])?;
    Ok(cx.b.transpose(split, &[0, 2, 1, 3])?)
}

fn merge_heads(cx: &mut Context, x: ValueId) -> Result<ValueId, Problem> {
    let moved = cx.b.transpose(x, &[0, 2, 1, 3])?;
    let dims = cx.ty(moved).dims.clone();
    let width = dims[2].product(&dims[3]).ok_or_else(|| Problem::new("has heads that are too wide"))?;
    Ok(cx.b.reshape(moved, [dims[0].clone(), dims[1].clone(), width])?)
}

/// A mask with leading dims of size one up to four dims.
fn four_dims(cx: &mut Context, mask: ValueId) -> Result<ValueId, Problem> {
    let dims = cx.ty(mask).dims.clone();
    let missing = 4usize.checked_sub(dims.len());
    let missing = missing.ok_or_else(|| Problem::new(format!("has a mask of {} dims", dims.len())))?;
    let wide: Dims = std::iter::repeat_n(Dim::known(1), missing).chain(dims).collect();
    Ok(cx.b.reshape(mask, wide)?)
}
