//! Losses that are operators of ONNX.

use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem};
use ir::ops::Float;
use ir::ops::elementwise::Binary;
use ir::ops::loss::CrossEntropy;
use ir::{DType, ValueId};

/// The label that never counts when the model names none: no class has it.
const NO_INDEX: i64 = -100;

/// SoftmaxCrossEntropyLoss: the sum and the weight as one operator, and the mean as their quotient, so that the loss
/// pass can take it apart again.
pub(super) fn softmax_cross_entropy(cx: &mut Context, call: &Call) -> Outputs {
    if call.input(2).is_some() {
        return Err(Problem::new("weighs classes, which is not built"));
    }
    if call.output(1).is_some_and(|name| !name.is_empty()) {
        return Err(Problem::new("also puts out its log-probabilities, which is not built"));
    }
    let (logits, labels) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let logits = classes_last(cx, logits)?;
    let labels = cx.b.cast(labels, DType::I64)?;
    let op = CrossEntropy {
        ignore_index: call.int("ignore_index").unwrap_or(NO_INDEX),
        label_smoothing: Float::new(0.0),
    };
    let results = cx.b.push(op, &[logits, labels])?;
    match call.string("reduction").unwrap_or("mean") {
        "mean" => Ok(vec![Entry::Value(cx.b.one(Binary::Div, &[results[0], results[1]])?)]),
        "sum" => Ok(vec![Entry::Value(results[0])]),
        other => Err(Problem::new(format!("reduces by `{other}`, and a loss to train on is one number"))
            .note("export the loss with reduction=\"mean\"")),
    }
}

/// ONNX has the classes in dim 1, the core in the last.
fn classes_last(cx: &mut Context, logits: ValueId) -> Result<ValueId, Problem> {
    let ndim = cx.ty(logits).ndim() as u32;
    if ndim < 2 {
        return Err(Problem::new(format!("takes logits of at least two dims, not {}", cx.ty(logits))));
    }
    let permutation: Vec<u32> = [0].into_iter().chain(2..ndim).chain([1]).collect();
    Ok(cx.b.transpose(logits, &permutation)?)
}
