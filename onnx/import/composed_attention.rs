//! Attention as a formula, for capped scores and for scores as an output, which the IR operator does not support.

use super::arithmetic::Built;
use super::attention_mask::Mask;
use super::context::{Context, Problem};
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Compare, Select, Unary};
use ir::ops::reduce::ReduceKind;
use ir::ops::softmax::Softmax;
use ir::{Dim, ValueId};

/// The form of the scores that the node outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scores {
    /// Scaled and capped.
    Capped,
    /// Scaled, capped and masked.
    Masked,
    /// Probabilities.
    Probabilities,
}

/// The result of attention, and the scores.
pub(super) struct Attended {
    pub(super) out: ValueId,
    pub(super) scores: ValueId,
}

/// `softmax(cap·tanh(q·kᵀ·scale / cap) + mask)·v`, zero for a query that sees no key. With `cap` 0 the scores are not capped.
pub(super) fn attend(
    cx: &mut Context,
    [q, k, v]: [ValueId; 3],
    mask: Mask,
    [scale, cap]: [f64; 2],
    put_out: Scores,
) -> Result<Attended, Problem> {
    let (k, v) = (repeated(cx, k, q)?, repeated(cx, v, q)?);
    let scaled = cx.build(q * scale)?;
    let mut scores = cx.b.one(Contract::new("bhqd,bhkd->bhqk"), &[scaled, k])?;
    if cap != 0.0 {
        scores = cx.build(Unary::Tanh.of(scores / cap) * cap)?;
    }
    let (masked, probabilities) = probabilities(cx, scores, mask)?;
    let out = cx.b.one(Contract::new("bhqk,bhkd->bhqd"), &[probabilities, v])?;
    let scores = match put_out {
        Scores::Capped => scores,
        Scores::Masked => masked,
        Scores::Probabilities => probabilities,
    };
    Ok(Attended { out, scores })
}

/// Returns the masked scores and their softmax.
fn probabilities(cx: &mut Context, scores: ValueId, mask: Mask) -> Result<(ValueId, ValueId), Problem> {
    let mut masked = scores;
    if let Some(added) = mask.added {
        masked = cx.build(masked + added)?;
        // A key is hidden whatever its score: ∞ - ∞ would be NaN.
        let hidden = cx.build(Compare::Equal.of(added, f64::NEG_INFINITY))?;
        masked = cx.build(Select.of(hidden, f64::NEG_INFINITY, masked))?;
    }
    if let Some(seen) = mask.seen {
        masked = cx.build(Select.of(seen, masked, f64::NEG_INFINITY))?;
    }
    let dim = cx.ty(scores).ndim() as u32 - 1;
    if mask.seen.is_none() && mask.added.is_none() {
        return Ok((masked, cx.b.one(Softmax { dim }, &[masked])?));
    }
    let largest = cx.reduced(ReduceKind::Max, masked, &[dim])?;
    let blind = cx.build(Compare::Equal.of(largest, f64::NEG_INFINITY))?;
    // The softmax of a row without visible keys is NaN, and so is its gradient.
    let zero = cx.b.splat_like(scores, 0.0)?;
    let finite = cx.build(Select.of(blind, zero, masked))?;
    let softmax = cx.b.one(Softmax { dim }, &[finite])?;
    Ok((masked, cx.build(Select.of(blind, zero, softmax))?))
}

/// Repeats each head of keys or values until there are as many as heads of queries.
fn repeated(cx: &mut Context, x: ValueId, q: ValueId) -> Built {
    let (ty, heads) = (cx.ty(x).clone(), cx.ty(q).dims[1].clone());
    if ty.dims[1] == heads {
        return Ok(x);
    }
    let times = heads.quotient(&ty.dims[1]);
    let times = times.ok_or_else(|| {
        Problem::new(format!("{} heads of keys do not divide {heads} heads of queries", ty.dims[1]))
    })?;
    let apart = cx.with_dim(x, 2)?;
    let mut wide: Vec<Dim> = cx.ty(apart).dims.to_vec();
    wide[2] = times;
    let wide = cx.b.broadcast(apart, wide)?;
    Ok(cx.b.reshape(wide, [ty.dims[0].clone(), heads, ty.dims[2].clone(), ty.dims[3].clone()])?)
}
