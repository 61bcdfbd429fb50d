//! Norms that ONNX Runtime fuses with the nodes before them: the sum with a residual, or the embeddings of a BERT.

use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem, dims};
use ir::ops::Float;
use ir::ops::elementwise::Compare;
use ir::ops::indexing::Gather;
use ir::ops::norm::{LayerNorm, RmsNorm};
use ir::ops::reduce::ReduceKind;
use ir::{DType, Dim, Type, ValueId, ensure};

/// The number that ONNX Runtime adds to a variance if no attribute gives one.
const EPSILON: f64 = 1e-12;

/// SkipLayerNormalization and SkipSimplifiedLayerNormalization: the norm of the sum of an input, a residual and perhaps a bias.
/// The fourth output is this sum.
pub(super) fn skip_norm(cx: &mut Context, call: &Call) -> Outputs {
    let simplified = call.op() == "SkipSimplifiedLayerNormalization";
    let (input, skip, scale) = (cx.value(call, 0)?, cx.value(call, 1)?, cx.value(call, 2)?);
    let dims = cx.ty(input).dims.clone();
    let mut sum = cx.build(input + skip)?;
    if let Some(bias) = cx.optional(call, if simplified { 3 } else { 4 })? {
        sum = cx.build(sum + bias)?;
    }
    ensure!(cx.ty(sum).dims == dims, "adds {} to {}", cx.ty(skip), cx.ty(input));
    let eps = Float::new(call.float("epsilon").unwrap_or(EPSILON));
    if simplified {
        let results = cx.b.push(RmsNorm { eps }, &[sum, scale])?;
        let rstd = statistic(cx, results[1])?;
        return Ok(vec![Entry::Value(results[0]), Entry::Failed, rstd, Entry::Value(sum)]);
    }
    let shift = cx.optional(call, 3)?;
    let [y, mean, rstd] = layer_norm(cx, sum, scale, shift, eps)?;
    Ok(vec![Entry::Value(y), statistic(cx, mean)?, statistic(cx, rstd)?, Entry::Value(sum)])
}

/// Builds a layer norm over the last dim. A missing shift is zeros.
fn layer_norm(
    cx: &mut Context,
    x: ValueId,
    scale: ValueId,
    shift: Option<ValueId>,
    eps: Float,
) -> Result<[ValueId; 3], Problem> {
    let shift = match shift {
        Some(shift) => shift,
        None => {
            let like = cx.ty(scale).clone();
            cx.b.splat(like, 0.0)?
        }
    };
    let results = cx.b.push(LayerNorm { eps }, &[x, scale, shift])?;
    Ok([results[0], results[1], results[2]])
}

/// Adds to a statistic a last dim of size one, in place of the normalised dim.
fn statistic(cx: &mut Context, value: ValueId) -> Result<Entry, Problem> {
    let at = cx.ty(value).ndim() as u32;
    Ok(Entry::Value(cx.with_dim(value, at)?))
}

/// EmbedLayerNormalization: the sum of the embeddings of words, positions and perhaps segments, normalised. The second output is
/// the number of positions that the mask keeps, the third is the sum.
pub(super) fn embed_layer_norm(cx: &mut Context, call: &Call) -> Outputs {
    // The attribute only declares the form of the second output.
    call.unneeded(&["mask_index_type"]);
    let (ids, words, places) = (cx.value(call, 0)?, cx.value(call, 2)?, cx.value(call, 3)?);
    let [batch, length]: [Dim; 2] = dims(cx, "word ids", ids)?;
    let mut sum = cx.b.one(Gather { dim: 0 }, &[words, ids])?;
    let positions = match cx.optional(call, 8)? {
        Some(positions) => positions,
        None => cx.counted(DType::I64, 1, 0, length)?,
    };
    let embedded = cx.b.one(Gather { dim: 0 }, &[places, positions])?;
    sum = cx.build(sum + embedded)?;
    match (cx.optional(call, 1)?, cx.optional(call, 4)?) {
        (Some(ids), Some(segments)) => {
            let embedded = cx.b.one(Gather { dim: 0 }, &[segments, ids])?;
            sum = cx.build(sum + embedded)?;
        }
        (None, None) => {}
        _ => {
            return Err(Problem::new(
                "the node has segment ids without segment embeddings, or segment embeddings without ids",
            ));
        }
    }
    let (scale, shift) = (cx.value(call, 5)?, cx.value(call, 6)?);
    let eps = Float::new(call.float("epsilon").unwrap_or(EPSILON));
    let [y, ..] = layer_norm(cx, sum, scale, Some(shift), eps)?;
    let count = match cx.optional(call, 7)? {
        _ if call.output(1).is_none() => Entry::Failed,
        Some(mask) => {
            let counted = cx.reduced(ReduceKind::Sum, Compare::Equal.of(mask, 1.0).cast(DType::I32), &[1])?;
            Entry::Value(cx.without(counted, 1)?)
        }
        None => Entry::Value(cx.b.splat(Type::new(DType::I32, [batch]), 0.0)?),
    };
    Ok(vec![Entry::Value(y), count, Entry::Value(sum)])
}
