//! ONNX Runtime's MultiHeadAttention, and its older Attention, which includes the projection.
//!
//! Padding is hidden by adding a large negative number to the scores, not −∞. So a query that sees only padding attends to all of
//! it. Keys hidden by the causal order are hidden whatever is added.

use super::arithmetic::Built;
use super::attention_mask::Mask;
use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem, dims};
use super::heads::{merge_heads, split_heads};
use ir::ops::Float;
use ir::ops::attention::Attention;
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Compare, Logical, Select};
use ir::ops::shape::Concat;
use ir::{DType, Dim, ValueId, ensure};

/// The number that is added to the scores of padding if no attribute gives one.
const FILTER: f64 = -10_000.0;

/// Queries, keys and values, each `[batch, heads, length, width]`. Past keys come before the new ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) q: ValueId,
    pub(super) k: ValueId,
    pub(super) v: ValueId,
    pub(super) past: u64,
}

/// Refuses a node with any of these inputs; `why` is the effect of the input, for the error.
pub(super) fn without_inputs(call: &Call, inputs: &[usize], why: &str) -> Result<(), Problem> {
    match inputs.iter().find(|&&i| call.input(i).is_some()) {
        Some(i) => Err(Problem::new(format!("the node {why} (input {i}), which is not supported"))
            .note("export the model for training or for a whole prompt, without a cache")),
        None => Ok(()),
    }
}

/// MultiHeadAttention of `[batch, length, heads · width]`, of packed `[batch, length, heads, 3 or 2, width]`, or with keys and
/// values that are already divided into heads.
pub(super) fn multi_head_attention(cx: &mut Context, call: &Call) -> Outputs {
    without_inputs(call, &[8, 9], "shares the buffers of the past keys and values")?;
    ensure!(call.output(3).is_none(), "the output of the attention scores is not supported");
    let count = heads(call, "num_heads")?;
    let heads = projected(cx, call, count)?;
    let heads = match (cx.optional(call, 6)?, cx.optional(call, 7)?) {
        (Some(k), Some(v)) => after_past(cx, heads, k, v)?,
        (None, None) => heads,
        _ => {
            return Err(Problem::new(
                "the node has past keys without past values, or past values without past keys",
            ));
        }
    };
    let padding = padding(cx, call, 4, &heads)?;
    let mask = masked(cx, call, padding, 5)?;
    let out = attend(cx, call, &heads, mask)?;
    Ok(vec![Entry::Value(out), Entry::Value(heads.k), Entry::Value(heads.v)])
}

/// Attention: a projection to queries, keys and values by one matrix, followed by MultiHeadAttention.
pub(super) fn attention(cx: &mut Context, call: &Call) -> Outputs {
    without_inputs(call, &[4, 6], "keeps a cache")?;
    for name in ["do_rotary", "past_present_share_buffer"] {
        ensure!(call.int(name).unwrap_or(0) == 0, "`{name}` is not supported");
    }
    call.unneeded(&["rotary_embedding_dim"]);
    let count = heads(call, "num_heads")?;
    let (x, weight) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let [_, _, features]: [Dim; 3] = dims(cx, "its input", x)?;
    let [rows, width]: [Dim; 2] = dims(cx, "its weight", weight)?;
    ensure!(rows == features, "multiplies {} by {}", cx.ty(x), cx.ty(weight));
    let mut all = cx.b.one(Contract::new("bsi,ih->bsh"), &[x, weight])?;
    if let Some(bias) = cx.optional(call, 2)? {
        all = cx.build(all + bias)?;
    }
    let width = width.size().ok_or_else(|| Problem::new("the size of the weight is not bound"))?;
    let widths = match call.ints("qkv_hidden_sizes") {
        Some(sizes) => sizes.iter().map(|&n| u64::try_from(n).unwrap_or(u64::MAX)).collect(),
        None => vec![width / 3; 3],
    };
    let sum = widths.iter().try_fold(0u64, |sum, &n| sum.checked_add(n));
    let [q_width, k_width, v_width] = widths[..] else {
        return Err(Problem::new(format!(
            "qkv_hidden_sizes has {} numbers; it must have three",
            widths.len()
        )));
    };
    ensure!(
        sum == Some(width),
        "{width} columns cannot be divided into queries, keys and values of {widths:?} columns"
    );
    let mut cut = |start, length| cx.b.slice(all, 2, start, Dim::known(length));
    let parts = [cut(0, q_width)?, cut(q_width, k_width)?, cut(q_width + k_width, v_width)?];
    let [q, k, v] = parts.map(|part| split_heads(cx, part, count));
    let heads = Heads { q: q?, k: k?, v: v?, past: 0 };
    let padding = padding(cx, call, 3, &heads)?;
    let mask = masked(cx, call, padding, 5)?;
    let out = attend(cx, call, &heads, mask)?;
    let mut outputs = vec![Entry::Value(out)];
    if call.output(1).is_some() {
        let (k, v) = (cx.with_dim(heads.k, 0)?, cx.with_dim(heads.v, 0)?);
        outputs.push(Entry::Value(cx.b.one(Concat { dim: 0 }, &[k, v])?));
    }
    Ok(outputs)
}

/// Returns an attribute with a number of heads.
pub(super) fn heads(call: &Call, name: &str) -> Result<u64, Problem> {
    let heads = call.int(name).and_then(|n| u64::try_from(n).ok()).filter(|&n| n > 0);
    heads.ok_or_else(|| Problem::new(format!("has no `{name}`")))
}

/// Reads queries, keys and values, divided into heads, with their bias.
fn projected(cx: &mut Context, call: &Call, count: u64) -> Result<Heads, Problem> {
    let q = cx.value(call, 0)?;
    let (k, v) = (cx.optional(call, 1)?, cx.optional(call, 2)?);
    let bias = cx.optional(call, 3)?;
    let ndim = |cx: &Context, x: ValueId| cx.ty(x).ndim();
    let packed = ndim(cx, q) == 5 || k.is_some_and(|k| ndim(cx, k) > 3);
    ensure!(!packed || bias.is_none(), "a bias on packed or split heads is not supported");
    let unpacked = |cx: &mut Context, x: ValueId, which: u64| -> Result<ValueId, Problem> {
        let [_, _, heads, _, _]: [Dim; 5] = dims(cx, "packed heads", x)?;
        ensure!(
            heads.size() == Some(count),
            "the node has {count} heads, and the packed input has {} heads",
            cx.ty(x)
        );
        let one = cx.b.slice(x, 3, which, Dim::known(1))?;
        let one = cx.without(one, 3)?;
        Ok(cx.b.transpose(one, &[0, 2, 1, 3])?)
    };
    let [q, k, v] = match (k, v) {
        (None, None) => [unpacked(cx, q, 0)?, unpacked(cx, q, 1)?, unpacked(cx, q, 2)?],
        (Some(kv), None) => [split_heads(cx, q, count)?, unpacked(cx, kv, 0)?, unpacked(cx, kv, 1)?],
        (Some(k), Some(v)) if ndim(cx, k) == 4 && ndim(cx, v) == 4 => [split_heads(cx, q, count)?, k, v],
        (Some(k), Some(v)) => {
            let [q, k, v] = biased(cx, [q, k, v], bias)?;
            [split_heads(cx, q, count)?, split_heads(cx, k, count)?, split_heads(cx, v, count)?]
        }
        (None, Some(_)) => return Err(Problem::new("the node has values without keys")),
    };
    Ok(Heads { q, k, v, past: 0 })
}

/// Adds to each value its part of the bias.
fn biased(cx: &mut Context, values: [ValueId; 3], bias: Option<ValueId>) -> Result<[ValueId; 3], Problem> {
    let Some(bias) = bias else { return Ok(values) };
    let (mut start, mut sums) = (0, values);
    for sum in &mut sums {
        let width = cx.axis(*sum, -1).and_then(|dim| cx.bound(*sum, dim, "adds a bias along"))?;
        let part = cx.b.slice(bias, 0, start, Dim::known(width))?;
        *sum = cx.build(*sum + part)?;
        start += width;
    }
    ensure!(cx.ty(bias).dims[..] == [Dim::known(start)], "the bias is {} for {start} columns", cx.ty(bias));
    Ok(sums)
}

fn after_past(cx: &mut Context, heads: Heads, k: ValueId, v: ValueId) -> Result<Heads, Problem> {
    let [_, _, length, _]: [Dim; 4] = dims(cx, "its past", k)?;
    let past = length.size().ok_or_else(|| {
        Problem::new("the length of the past is not bound").note("bind the length with --bind NAME=SIZE")
    })?;
    let k = cx.b.one(Concat { dim: 2 }, &[k, heads.k])?;
    let v = cx.b.one(Concat { dim: 2 }, &[v, heads.v])?;
    Ok(Heads { k, v, past, ..heads })
}

/// Builds the keys that are not padding: from lengths `[batch]`, from ends and starts `[2 · batch]`, or from numbers that are 0
/// for padding.
fn padding(cx: &mut Context, call: &Call, i: usize, heads: &Heads) -> Result<Option<ValueId>, Problem> {
    let Some(mask) = cx.optional(call, i)? else { return Ok(None) };
    let ([batch, _, queries, _], [_, _, keys, _]): ([Dim; 4], [Dim; 4]) =
        (dims(cx, "queries", heads.q)?, dims(cx, "keys", heads.k)?);
    let one = Dim::known(1);
    let given = cx.ty(mask).dims.clone();
    let wrong = || {
        Problem::new(format!("the mask has dims {given:?}, which do not fit {batch} samples of {keys} keys"))
    };
    if cx.ty(mask).dtype == DType::Bool {
        return Err(wrong());
    }
    match &given[..] {
        [lengths] => {
            let key = cx.counted(DType::I64, 4, 3, keys.clone())?;
            let column = |cx: &mut Context, from: u64| {
                let part = cx.b.slice(mask, 0, from, batch.clone())?;
                let part = cx.b.cast(part, DType::I64)?;
                Ok::<_, Problem>(cx.b.reshape(part, [batch.clone(), one.clone(), one.clone(), one.clone()])?)
            };
            let ends = column(cx, 0)?;
            let before_end = cx.build(Compare::Less.of(key, ends))?;
            if *lengths == batch {
                return Ok(Some(before_end));
            }
            let samples = batch.size().filter(|n| Some(2 * n) == lengths.size()).ok_or_else(wrong)?;
            let starts = column(cx, samples)?;
            Ok(Some(cx.build(Logical::And.of(before_end, Compare::GreaterEqual.of(key, starts)))?))
        }
        [b, k] if *b == batch && *k == keys => {
            let wide = cx.b.reshape(mask, [batch, one.clone(), one, keys])?;
            Ok(Some(cx.build(Compare::Greater.of(wide, 0.0))?))
        }
        [b, q, k] if *b == batch && *q == queries && *k == keys => {
            let wide = cx.with_dim(mask, 1)?;
            Ok(Some(cx.build(Compare::Greater.of(wide, 0.0))?))
        }
        _ => Err(wrong()),
    }
}

/// Converts padding to numbers that are added to the scores, plus the bias of an input.
fn masked(cx: &mut Context, call: &Call, padding: Option<ValueId>, bias: usize) -> Result<Mask, Problem> {
    let bias = cx.optional(call, bias)?;
    let filter = call.float("mask_filter_value").unwrap_or(FILTER);
    let added = match padding {
        Some(seen) => {
            let dtype = match bias {
                Some(bias) => cx.ty(bias).dtype,
                None => cx.value(call, 0).map(|x| cx.ty(x).dtype)?,
            };
            let zero = cx.b.scalar(dtype, 0.0)?;
            let added = cx.build(Select.of(seen, zero, filter))?;
            Some(match bias {
                Some(bias) => cx.build(added + bias)?,
                None => added,
            })
        }
        None => bias,
    };
    Ok(Mask { seen: None, added })
}

/// Builds the attention, with the heads merged.
fn attend(cx: &mut Context, call: &Call, heads: &Heads, mut mask: Mask) -> Built {
    let causal = call.int("unidirectional").unwrap_or(0) != 0;
    let [_, _, queries, width]: [Dim; 4] = dims(cx, "queries", heads.q)?;
    let [_, _, keys, _]: [Dim; 4] = dims(cx, "keys", heads.k)?;
    let scale = scale(call, &width)?;
    let aligned = causal && heads.past == 0 && queries == keys;
    if causal && !aligned {
        mask.seen = Some(causal_order(cx, queries, keys, heads.past)?);
    }
    let mut operands = vec![heads.q, heads.k, heads.v];
    operands.extend(mask.merged(cx)?);
    let out = cx.b.push(Attention { scale: Float::new(scale), causal: aligned }, &operands)?[0];
    merge_heads(cx, out)
}

/// Returns the factor of the scores: an attribute, or one over the root of a head's width. An attribute of 0 counts as left out.
pub(super) fn scale(call: &Call, width: &Dim) -> Result<f64, Problem> {
    let given = call.float("scale").filter(|&scale| scale != 0.0);
    let scale = given.or_else(|| width.size().map(|width| 1.0 / (width as f64).sqrt()));
    scale.ok_or_else(|| Problem::new("the width of the heads is not bound"))
}

/// Builds the causal order: a query sees the past keys and the keys up to its own.
pub(super) fn causal_order(cx: &mut Context, queries: Dim, keys: Dim, past: u64) -> Built {
    let query = cx.counted(DType::I64, 4, 2, queries)?;
    let query = if past > 0 { cx.build(query + past as f64)? } else { query };
    let key = cx.counted(DType::I64, 4, 3, keys)?;
    cx.build(Compare::LessEqual.of(key, query))
}
