//! Losses that are ONNX operators.

use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem};
use super::weighted_loss::{classes_last, classes_second, likelihood};
use ir::ops::Float;
use ir::ops::loss::CrossEntropy;
use ir::ops::softmax::LogSoftmax;
use ir::{DType, ValueId};

/// The ignored label if the model names none: no class has this number.
const NO_INDEX: i64 = -100;

/// SoftmaxCrossEntropyLoss. Sum and weight come from one operator, and the mean is their quotient, which the pass `loss` can
/// separate again. With weights of classes, or without a reduction, the loss is built as a formula.
pub(super) fn softmax_cross_entropy(cx: &mut Context, call: &Call) -> Outputs {
    let (logits, labels) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let weights = cx.optional(call, 2)?;
    let logits = classes_last(cx, logits)?;
    let dim = cx.ty(logits).ndim() as u32 - 1;
    let reduction = call.string("reduction").unwrap_or("mean");
    let is_formula = weights.is_some() || reduction == "none";
    let log_probabilities = match call.output(1) {
        None if !is_formula => None,
        _ => Some(cx.b.one(LogSoftmax { dim }, &[logits])?),
    };
    let loss = match log_probabilities {
        Some(log_probabilities) if is_formula => likelihood(cx, call, log_probabilities, labels, weights)?,
        _ => mean_or_sum(cx, call, logits, labels, reduction)?,
    };
    let mut outputs = vec![Entry::Value(loss)];
    if let Some(log_probabilities) = log_probabilities.filter(|_| call.output(1).is_some()) {
        outputs.push(Entry::Value(classes_second(cx, log_probabilities)?));
    }
    Ok(outputs)
}

/// Builds the loss with the IR operator.
fn mean_or_sum(
    cx: &mut Context,
    call: &Call,
    logits: ValueId,
    labels: ValueId,
    reduction: &str,
) -> Result<ValueId, Problem> {
    let labels = cx.b.cast(labels, DType::I64)?;
    let op = CrossEntropy {
        ignore_index: call.int("ignore_index").unwrap_or(NO_INDEX),
        label_smoothing: Float::new(0.0),
    };
    let results = cx.b.push(op, &[logits, labels])?;
    match reduction {
        "mean" => cx.build(results[0] / results[1]),
        "sum" => Ok(results[0]),
        other => Err(Problem::new(format!(
            "the reduction `{other}` is unknown; `none`, `sum` and `mean` are known"
        ))),
    }
}
