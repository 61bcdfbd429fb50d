//! Attention as a single node (opset 23).

use super::attention_mask::mask;
use super::call::Call;
use super::composed_attention::{Scores, attend};
use super::context::{Context, Entry, Outputs, Problem};
use super::heads::{merge_heads, split_heads_by_attribute};
use ir::ops::Float;
use ir::ops::attention::Attention;
use ir::ops::shape::Concat;
use ir::{Dim, ValueId, ensure};

/// Attention in its four-dim form `[batch, heads, sequence, width]`, or in the three-dim form `[batch, sequence, heads·width]`
/// with the numbers of heads as attributes. Past keys and values come before the new ones.
pub(super) fn attention(cx: &mut Context, call: &Call) -> Outputs {
    let inputs = [cx.value(call, 0)?, cx.value(call, 1)?, cx.value(call, 2)?];
    let flat = cx.ty(inputs[0]).ndim() == 3;
    ensure!(
        inputs.iter().all(|&input| cx.ty(input).ndim() == if flat { 3 } else { 4 }),
        "the queries, keys and values must all have three dims, or all have four"
    );
    let heads = [call.int("q_num_heads"), call.int("kv_num_heads"), call.int("kv_num_heads")];
    let mut operands = inputs;
    if flat {
        for (operand, heads) in operands.iter_mut().zip(heads) {
            *operand = split_heads_by_attribute(cx, *operand, heads)?;
        }
    }
    let [q, k, v] = operands;
    let (k, past) = after_past(cx, call, 4, k)?;
    let (v, _) = after_past(cx, call, 5, v)?;
    let width = cx.ty(q).dims.last().and_then(Dim::size);
    let default = || width.map(|width| 1.0 / (width as f64).sqrt());
    let scale = call.float("scale").or_else(default);
    let scale = scale.ok_or_else(|| Problem::new("the width of the heads is not bound"))?;
    // The IR operator's `causal` requires as many queries as keys.
    let causal = call.int("is_causal") == Some(1);
    let aligned = causal && past == 0 && call.input(6).is_none() && cx.ty(q).dims[2] == cx.ty(k).dims[2];
    let cap = call.float("softcap").unwrap_or(0.0);
    let is_formula = cap != 0.0 || call.output(3).is_some();
    let mask = mask(cx, call, [q, k], past, causal && (is_formula || !aligned))?;
    let (out, scores) = if is_formula {
        let put_out = match call.int("qk_matmul_output_mode").unwrap_or(0) {
            2 => Scores::Masked,
            3 => Scores::Probabilities,
            _ => Scores::Capped,
        };
        let attended = attend(cx, [q, k, v], mask, [scale, cap], put_out)?;
        (attended.out, Some(attended.scores))
    } else {
        let mut operands = vec![q, k, v];
        operands.extend(mask.merged(cx)?);
        (cx.b.push(Attention { scale: Float::new(scale), causal: aligned }, &operands)?[0], None)
    };
    let out = if flat { merge_heads(cx, out)? } else { out };
    let outputs =
        [Some(out), Some(k), Some(v), scores].map(|value| value.map_or(Entry::Failed, Entry::Value));
    Ok(outputs.into_iter().take(call.output_count()).collect())
}

/// Appends keys or values to the past ones. Returns them with the number of past ones.
fn after_past(cx: &mut Context, call: &Call, i: usize, x: ValueId) -> Result<(ValueId, u64), Problem> {
    let Some(past) = cx.optional(call, i)? else { return Ok((x, 0)) };
    ensure!(cx.ty(past).ndim() == 4, "the past key or value is {}; it must have four dims", cx.ty(past));
    let length = cx.bound(past, 2, "counts")?;
    Ok((cx.b.one(Concat { dim: 2 }, &[past, x])?, length))
}
