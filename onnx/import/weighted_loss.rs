//! Negative log-likelihood with weights of classes, and losses without a reduction, built as formulas.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use ir::ops::elementwise::{Compare, Select};
use ir::ops::indexing::{Gather, GatherElements};
use ir::{DType, Dim, ValueId, ensure};

/// NegativeLogLikelihoodLoss of log-probabilities `[n, c, d..]` and labels `[n, d..]`.
pub(super) fn negative_log_likelihood(cx: &mut Context, call: &Call) -> Outputs {
    let (log_probabilities, labels) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let weights = cx.optional(call, 2)?;
    let log_probabilities = classes_last(cx, log_probabilities)?;
    one(likelihood(cx, call, log_probabilities, labels, weights)?)
}

/// Builds the loss of log-probabilities `[n, d.., c]`, reduced as the node says. The mean divides by the sum of the weights of the
/// positions that count.
pub(super) fn likelihood(
    cx: &mut Context,
    call: &Call,
    log_probabilities: ValueId,
    labels: ValueId,
    weights: Option<ValueId>,
) -> Built {
    check_positions(cx, log_probabilities, labels)?;
    let ty = cx.ty(log_probabilities).clone();
    let dim = ty.ndim() as u32 - 1;
    let labels = cx.b.cast(labels, DType::I64)?;
    let column = cx.with_dim(labels, dim)?;
    let picked = cx.b.one(GatherElements { dim }, &[log_probabilities, column])?;
    let picked = cx.without(picked, dim)?;
    let mut loss = cx.build(-picked)?;
    let mut weight = match weights {
        Some(weights) => {
            let weight = cx.b.one(Gather { dim: 0 }, &[weights, labels])?;
            cx.b.cast(weight, ty.dtype)?
        }
        None => {
            let like = cx.ty(loss).clone();
            cx.b.splat(like, 1.0)?
        }
    };
    loss = cx.build(loss * weight)?;
    if let Some(ignored) = call.int("ignore_index") {
        // The number is compared as i64: a splat stores an f64, which represents every label of a vocabulary exactly.
        let ignored = cx.build(Compare::Equal.of(labels, ignored as f64))?;
        let zero = cx.b.splat_like(loss, 0.0)?;
        loss = cx.build(Select.of(ignored, zero, loss))?;
        weight = cx.build(Select.of(ignored, zero, weight))?;
    }
    let all: Vec<u32> = (0..dim).collect();
    match call.string("reduction").unwrap_or("mean") {
        "none" => Ok(loss),
        "sum" => Ok(cx.b.sum(loss, &all)?),
        "mean" => {
            let (sum, weight) = (cx.b.sum(loss, &all)?, cx.b.sum(weight, &all)?);
            cx.build(sum / weight)
        }
        other => Err(Problem::new(format!(
            "the reduction `{other}` is unknown; `none`, `sum` and `mean` are known"
        ))),
    }
}

/// Moves the classes from ONNX's dim 1 to the last dim, where the IR operators expect them.
pub(super) fn classes_last(cx: &mut Context, x: ValueId) -> Built {
    let ndim = cx.ty(x).ndim() as u32;
    ensure!(ndim >= 2, "the logits must have at least two dims; they are {}", cx.ty(x));
    let permutation: Vec<u32> = [0].into_iter().chain(2..ndim).chain([1]).collect();
    Ok(cx.b.transpose(x, &permutation)?)
}

/// Moves the classes from the last dim back to dim 1.
pub(super) fn classes_second(cx: &mut Context, x: ValueId) -> Built {
    let ndim = cx.ty(x).ndim() as u32;
    let permutation: Vec<u32> = [0, ndim - 1].into_iter().chain(1..ndim - 1).collect();
    Ok(cx.b.transpose(x, &permutation)?)
}

/// Checks that there is one label for each position: `[n, d..]` for `[n, d.., c]`.
fn check_positions(cx: &Context, logits: ValueId, labels: ValueId) -> Result<(), Problem> {
    let (logits, labels) = (cx.ty(logits), cx.ty(labels));
    let positions: &[Dim] = logits.dims.split_last().map_or(&[], |(_, positions)| positions);
    if labels.dims[..] == *positions {
        return Ok(());
    }
    Err(Problem::new(format!("labels {labels} do not fit logits {logits}")))
}
