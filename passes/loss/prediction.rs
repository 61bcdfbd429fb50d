//! Losses of models without one: finds the output that is compared with the labels, and adds the input for the labels.

use crate::bind::{batch, find_samples};
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::{Builder, DType, Diagnostic, Dim, Dims, Module, Node, Op, Output, Type, ValueId};

use super::linear::through_views;

/// The output that is compared with labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The name of the output.
    pub output: String,
    /// The value of the output, before a softmax or a sigmoid if the loss takes logits.
    pub value: ValueId,
    /// Other outputs that the user could have meant.
    pub others: Vec<String>,
}

/// Parts of the names of outputs that are no predictions.
const INSIDES: [&str; 5] = ["past_key", "present", "cache", "hidden_state", "attentions"];

/// Finds the output that has the logits of classes: the one with `logits` in its name, else the first float output that is not a cache.
pub(super) fn of_classes(module: &Module) -> Result<Prediction, Diagnostic> {
    // The cross-entropy of one class is 0 for any logit.
    let has_classes = |ty: &Type| ty.ndim() >= 2 && ty.dims[ty.ndim() - 1].size().is_none_or(|size| size > 1);
    let Some(mut prediction) = find(module, has_classes) else {
        let error = Diagnostic::new(
            "no output can be the logits: logits are a float tensor of at least two dims, and the last dim \
             has at least two classes",
        );
        let error = error.note(format!("the model's outputs are {}", super::output_list(module)));
        return Err(error
            .note("--loss mse or --loss bce compares an output with labels of its own shape")
            .note("for any other loss, export the model with a float scalar output named `loss`"));
    };
    prediction.value = before_softmax(module, prediction.value);
    Ok(prediction)
}

/// Finds the output that is compared with labels of its own shape. With `logits`, a final sigmoid is left out.
pub(super) fn of_numbers(module: &Module, logits: bool) -> Result<Prediction, Diagnostic> {
    let Some(mut prediction) = find(module, |ty| ty.ndim() >= 1) else {
        let error = Diagnostic::new(
            "no output can be compared with labels: no output is a float tensor with a batch dim",
        );
        return Err(error.note(format!("the model's outputs are {}", super::output_list(module))));
    };
    if logits {
        prediction.value = before_sigmoid(module, prediction.value);
    }
    Ok(prediction)
}

fn find(module: &Module, fits: impl Fn(&Type) -> bool) -> Option<Prediction> {
    let is_inside = |name: &str| INSIDES.iter().any(|inside| name.contains(inside));
    let could_be = |output: &&Output| {
        let ty = module.ty(output.value);
        ty.dtype.is_float() && fits(ty) && !is_inside(&output.name.to_lowercase())
    };
    let candidates: Vec<_> = module.outputs.iter().filter(could_be).collect();
    let named = candidates.iter().find(|output| output.name.to_lowercase().contains("logits"));
    let output = named.or(candidates.first())?;
    let others = if named.is_some() { &[][..] } else { &candidates[1..] };
    Some(Prediction {
        output: output.name.clone(),
        value: output.value,
        others: others.iter().map(|output| format!("`{}`", output.name)).collect(),
    })
}

/// Returns the operand of a final softmax over the last dim, or else the value itself: cross-entropy takes logits.
fn before_softmax(module: &Module, value: ValueId) -> ValueId {
    let last = module.ty(value).ndim() as u32 - 1;
    match module.producer(value) {
        Some(Node { op: Op::Softmax(softmax), operands, .. }) if softmax.dim == last => operands[0],
        Some(Node { op: Op::LogSoftmax(softmax), operands, .. }) if softmax.dim == last => operands[0],
        Some(Node { op: Op::Binary(Binary::Div), operands, .. }) => {
            normalized_exponentials(module, operands[0], operands[1], last).unwrap_or(value)
        }
        _ => value,
    }
}

/// Returns the operand of a final sigmoid, or else the value itself.
fn before_sigmoid(module: &Module, value: ValueId) -> ValueId {
    match module.producer(value) {
        Some(Node { op: Op::Unary(Unary::Sigmoid), operands, .. }) => operands[0],
        _ => value,
    }
}

/// Returns `x` if the quotient is a softmax that was written as `exp(x) / Σ exp(x)`. If a maximum was subtracted from `x` before, the
/// cross-entropy is the same.
fn normalized_exponentials(module: &Module, part: ValueId, sum: ValueId, last: u32) -> Option<ValueId> {
    let Node { op: Op::Unary(Unary::Exp), operands, .. } = module.producer(part)? else { return None };
    let total = module.producer(through_views(module, sum))?;
    let Op::Reduce(Reduce { kind: ReduceKind::Sum, dims, .. }) = &total.op else { return None };
    (total.operands[0] == part && dims[..] == [last]).then_some(operands[0])
}

/// Returns the labels with these dims. The input `labels` has its samples in the first dim, as all data has. For a prediction with the
/// samples in another dim, as recurrent models make, it is transposed.
pub(super) fn labels(
    b: &mut Builder,
    prediction: ValueId,
    dtype: DType,
    dims: Dims,
) -> Result<ValueId, Diagnostic> {
    let ty = Type::new(dtype, dims.clone());
    let mut dims = dims;
    match b.module().input("labels") {
        None => {
            let at = dim_of_samples(b.module(), prediction, dims.len());
            dims[..=at].rotate_right(1);
            let labels = b.tables().add_input("labels", Type::new(dtype, dims), true);
            let mut permutation: Vec<u32> = (0..ty.ndim() as u32).collect();
            permutation[..=at].rotate_left(1);
            if at == 0 { Ok(labels) } else { Ok(b.transpose(labels, &permutation)?) }
        }
        Some(input) if b.ty(input.value).same_shape(&ty) => Ok(input.value),
        Some(input) => {
            let given = b.ty(input.value);
            let message =
                format!("the model's input `labels` is {given}, but the labels of its logits must be {ty}");
            Err(Diagnostic::new(message)
                .note("use --loss model if the model computes its loss from this input"))
        }
    }
}

/// Returns the dim of a prediction that counts the samples, among the first `dims`; 0 if in doubt. The dim is found by following the
/// batch, or else by its size. A batch of one is not followed: it is too easily found in another dim of one element.
fn dim_of_samples(module: &Module, prediction: ValueId, dims: usize) -> usize {
    let dims = &module.ty(prediction).dims[..dims];
    let Ok(Some(batch)) = batch(module) else { return 0 };
    let alone = |at: &usize| dims.get(*at).and_then(Dim::size) == Some(batch);
    let at = match (batch > 1).then(|| find_samples(module)) {
        Some(Ok(samples)) => {
            samples.carries.get(&prediction).filter(|carry| carry.minor == 1).map(|carry| carry.dim)
        }
        Some(Err(_)) | None => (0..dims.len()).find(alone),
    };
    at.filter(alone).unwrap_or(0)
}
