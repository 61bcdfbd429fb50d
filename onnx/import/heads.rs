//! The heads of attention and of rotary embeddings: splitting, merging and rotating them.

use super::arithmetic::Built;
use super::context::{Context, Problem, dims};
use ir::ops::rotary::Rotary;
use ir::ops::shape::Concat;
use ir::{Dim, ValueId};

/// Reshapes `[batch, sequence, heads·width]` to `[batch, heads, sequence, width]`. The number of heads is an attribute of the node.
pub(super) fn split_heads_by_attribute(cx: &mut Context, x: ValueId, heads: Option<i64>) -> Built {
    let ty = cx.ty(x).clone();
    let heads = heads.and_then(|heads| u64::try_from(heads).ok()).filter(|&heads| heads > 0);
    let heads = Dim::known(heads.ok_or_else(|| {
        Problem::new("inputs of three dims need the number of heads, and the node does not give it")
    })?);
    let width = ty.dims[2].quotient(&heads);
    let width = width
        .ok_or_else(|| Problem::new(format!("the last dim of {ty} is not a multiple of {heads} heads")))?;
    let split = cx.b.reshape(x, [ty.dims[0].clone(), ty.dims[1].clone(), heads, width])?;
    Ok(cx.b.transpose(split, &[0, 2, 1, 3])?)
}

/// Reshapes `[batch, length, heads · width]` to `[batch, heads, length, width]`.
pub(super) fn split_heads(cx: &mut Context, x: ValueId, count: u64) -> Built {
    let [batch, length, all]: [Dim; 3] = dims(cx, "an input of merged heads", x)?;
    let count = Dim::known(count);
    let width = all.quotient(&count);
    let width =
        width.ok_or_else(|| Problem::new(format!("{} is not a multiple of {count} heads", cx.ty(x))))?;
    let split = cx.b.reshape(x, [batch, length, count, width])?;
    Ok(cx.b.transpose(split, &[0, 2, 1, 3])?)
}

/// Reshapes `[batch, heads, length, width]` to `[batch, length, heads · width]`.
pub(super) fn merge_heads(cx: &mut Context, x: ValueId) -> Built {
    let moved = cx.b.transpose(x, &[0, 2, 1, 3])?;
    let [batch, length, count, width]: [Dim; 4] = dims(cx, "heads", moved)?;
    let all = count
        .product(&width)
        .ok_or_else(|| Problem::new("the heads together are wider than 64 bits can count"))?;
    Ok(cx.b.reshape(moved, [batch, length, all])?)
}

/// Rotates the first `turned` of the `width` elements of each head.
pub(super) fn turn_first(
    cx: &mut Context,
    x: ValueId,
    tables: [ValueId; 2],
    interleaved: bool,
    [turned, width]: [u64; 2],
) -> Built {
    let first = cx.b.slice(x, 3, 0, Dim::known(turned))?;
    let out = cx.b.one(Rotary { interleaved }, &[first, tables[0], tables[1]])?;
    if turned == width {
        return Ok(out);
    }
    let rest = cx.b.slice(x, 3, turned, Dim::known(width - turned))?;
    Ok(cx.b.one(Concat { dim: 3 }, &[out, rest])?)
}
