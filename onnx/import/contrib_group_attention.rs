//! ONNX Runtime's GroupQueryAttention over a whole prompt, without an earlier cache.

use super::arithmetic::Built;
use super::attention_mask::Mask;
use super::call::Call;
use super::composed_attention::{Scores, attend};
use super::context::{Context, Entry, Outputs, Problem, dims};
use super::contrib_attention::{causal_order, heads, scale, without_inputs};
use super::heads::{merge_heads, split_heads, turn_first};
use ir::ops::Float;
use ir::ops::attention::Attention;
use ir::ops::elementwise::Compare;
use ir::ops::indexing::Gather;
use ir::{DType, Dim, ValueId, ensure};

/// GroupQueryAttention of `[batch, length, heads · width]`, or of queries, keys and values packed along the last dim.
pub(super) fn group_query_attention(cx: &mut Context, call: &Call) -> Outputs {
    refuse_what_is_not_built(cx, call)?;
    let [q, k, v] = projected(cx, call)?;
    let [batch, _, length, width]: [Dim; 4] = dims(cx, "queries", q)?;
    let [q, k] = if call.int("do_rotary").unwrap_or(0) != 0 {
        let tables = tables(cx, call, &length)?;
        let interleaved = call.int("rotary_interleaved").unwrap_or(0) != 0;
        [rotated(cx, q, tables, interleaved)?, rotated(cx, k, tables, interleaved)?]
    } else {
        call.unneeded(&["rotary_interleaved"]);
        [q, k]
    };
    let causal = call.int("causal").unwrap_or(1) != 0;
    let window = call.int("local_window_size").filter(|&size| size >= 0);
    let scale = scale(call, &width)?;
    let cap = call.float("softcap").unwrap_or(0.0);
    let mut mask = Mask { seen: present(cx, call, &batch, &length)?, added: cx.optional(call, 10)? };
    if let Some(size) = window {
        let seen = within(cx, &length, size)?;
        mask.and(cx, seen)?;
    }
    let out = if cap == 0.0 {
        let mut operands = vec![q, k, v];
        operands.extend(mask.merged(cx)?);
        cx.b.push(Attention { scale: Float::new(scale), causal }, &operands)?[0]
    } else {
        if causal {
            let seen = causal_order(cx, length.clone(), length.clone(), 0)?;
            mask.and(cx, seen)?;
        }
        attend(cx, [q, k, v], mask, [scale, cap], Scores::Capped)?.out
    };
    let out = merge_heads(cx, out)?;
    Ok(vec![Entry::Value(out), Entry::Value(k), Entry::Value(v)])
}

/// Refuses a cache, quantized keys and values, output scores, and an attention sink, each with a message of its own.
fn refuse_what_is_not_built(cx: &Context, call: &Call) -> Result<(), Problem> {
    let empty = |i: usize| match call.input(i).and_then(|name| cx.entries.get(name)) {
        Some(Entry::Value(value)) => cx.ty(*value).numel() == Some(0),
        _ => false,
    };
    let past: Vec<usize> = [3, 4].into_iter().filter(|&i| !empty(i)).collect();
    without_inputs(call, &past, "reads a cache")?;
    without_inputs(call, &[11], "adds a sink to the keys")?;
    without_inputs(call, &[12, 13], "has quantized keys and values")?;
    without_inputs(call, &[14, 15], "normalises its queries and keys")?;
    call.unneeded(&["qk_norm_epsilon", "kv_cache_bit_width"]);
    for name in ["smooth_softmax", "qk_output", "sliding_window_cache"] {
        ensure!(call.int(name).is_none_or(|n| n <= 0), "`{name}` is not supported");
    }
    for name in ["k_quant_type", "v_quant_type"] {
        ensure!(call.string(name).is_none_or(|kind| kind == "NONE"), "`{name}` is not supported");
    }
    Ok(())
}

/// Reads queries, keys and values, divided into heads.
fn projected(cx: &mut Context, call: &Call) -> Result<[ValueId; 3], Problem> {
    let (count, kv_count) = (heads(call, "num_heads")?, heads(call, "kv_num_heads")?);
    let q = cx.value(call, 0)?;
    let [q, k, v] = match (cx.optional(call, 1)?, cx.optional(call, 2)?) {
        (Some(k), Some(v)) => [q, k, v],
        (None, None) => {
            let all = cx.bound(q, 2, "cuts")?;
            let width = kv_count.checked_mul(2).and_then(|n| n.checked_add(count)).map_or(0, |n| all / n);
            if width == 0 || width * (count + 2 * kv_count) != all {
                let message = format!(
                    "{} cannot be divided into {count} heads of queries and twice {kv_count} heads of keys \
                     and values",
                    cx.ty(q)
                );
                return Err(Problem::new(message));
            }
            let mut cut = |from: u64, heads: u64| cx.b.slice(q, 2, from * width, Dim::known(heads * width));
            [cut(0, count)?, cut(count, kv_count)?, cut(count + kv_count, kv_count)?]
        }
        _ => return Err(Problem::new("the node has keys without values, or values without keys")),
    };
    Ok([split_heads(cx, q, count)?, split_heads(cx, k, kv_count)?, split_heads(cx, v, kv_count)?])
}

/// Reads the rows of the rotary tables for each position. If positions are given, only the first one is used, as the start of the
/// prompt.
fn tables(cx: &mut Context, call: &Call, length: &Dim) -> Result<[ValueId; 2], Problem> {
    let mut places = cx.counted(DType::I64, 1, 0, length.clone())?;
    if let Some(given) = cx.optional(call, 9)? {
        let [_, _]: [Dim; 2] = dims(cx, "positions", given)?;
        let row = cx.b.slice(given, 0, 0, Dim::known(1))?;
        let first = cx.b.slice(row, 1, 0, Dim::known(1))?;
        let first = cx.b.reshape(first, [Dim::known(1)])?;
        let first = cx.b.cast(first, DType::I64)?;
        places = cx.build(places + first)?;
    }
    let mut tables = [cx.value(call, 7)?, cx.value(call, 8)?];
    for table in &mut tables {
        *table = cx.b.one(Gather { dim: 0 }, &[*table, places])?;
    }
    Ok(tables)
}

/// Rotates the first elements of each head, as many as the tables have pairs.
fn rotated(cx: &mut Context, x: ValueId, tables: [ValueId; 2], interleaved: bool) -> Built {
    let (width, half) = (cx.bound(x, 3, "rotates")?, cx.bound(tables[0], 1, "rotates")?);
    let turned = half.checked_mul(2).filter(|&turned| turned <= width);
    let turned = turned.ok_or_else(|| {
        Problem::new(format!("the tables rotate {half} pairs, and a head has {width} elements"))
    })?;
    turn_first(cx, x, tables, interleaved, [turned, width])
}

/// Builds the valid keys: up to and including the index in `seqlens_k`. `None` if all keys are known to be valid.
fn present(cx: &mut Context, call: &Call, batch: &Dim, length: &Dim) -> Result<Option<ValueId>, Problem> {
    let last = cx.value(call, 5)?;
    let known = cx.ints(call, 5).and_then(|ints| ints.numbers());
    if let (Some(known), Some(length)) = (known, length.size())
        && known.iter().all(|&last| u64::try_from(last).is_ok_and(|last| last + 1 == length))
    {
        return Ok(None);
    }
    let last = cx.b.cast(last, DType::I64)?;
    let one = || Dim::known(1);
    let last = cx.b.reshape(last, [batch.clone(), one(), one(), one()])?;
    let key = cx.counted(DType::I64, 4, 3, length.clone())?;
    Ok(Some(cx.build(Compare::LessEqual.of(key, last))?))
}

/// Builds the keys that are fewer than `size` places before the query.
fn within(cx: &mut Context, length: &Dim, size: i64) -> Built {
    let query = cx.counted(DType::I64, 4, 2, length.clone())?;
    let key = cx.counted(DType::I64, 4, 3, length.clone())?;
    cx.build(Compare::Less.of(query - key, size as f64))
}
