//! The ONNX form of each operator, in one exhaustive match.
//!
//! There are three kinds of operators. Most are one ONNX operator, with changes of layout around it. Some are formulas of several
//! operators; in [`Form::Program`] they stay one node of the domain `trainyard`, so that a viewer shows one node for each node.
//! The others belong to a training step and have no form in ONNX.

use super::draft::{Draft, TensorId};
use super::{
    Form, attention, batch_norm, bits, contraction, convolution, elementwise, experts, indexing, layout,
    loss, norm, own, pool, random, recurrent, reduction, source,
};
use ir::ops::elementwise::Binary;
use ir::{Diagnostic, Inference, Node, Op, Operator};

/// The tensors of the results of an operator; `None` for a result that the form does not have.
pub(super) type Results = Result<Vec<Option<TensorId>>, Diagnostic>;

/// Adds the nodes of an operator.
///
/// # Errors
/// In a model: the operator has no form in ONNX, or its attributes cannot be represented.
pub(super) fn write(draft: &mut Draft, node: &Node) -> Results {
    if draft.form == Form::Program && !follows_types(draft, node) {
        return own::write(draft, node);
    }
    let count = draft.nodes.len();
    let results = of_operator(draft, node).map_err(|error| match error.origin {
        None if !node.origin.is_empty() => error.at(node.origin.to_string()),
        _ => error,
    });
    match results {
        // In a program for a viewer, the node becomes one of the domain `trainyard` instead of an error.
        Err(_) if draft.form == Form::Program => {
            draft.nodes.truncate(count);
            own::write(draft, node)
        }
        results => results,
    }
}

/// Whether the results have the types that the operator infers. At level lowered they may differ, because kernels cast operands;
/// ONNX's operator would not accept them.
fn follows_types(draft: &Draft, node: &Node) -> bool {
    let signature = draft.module.signature(node);
    let types = Inference { operands: &signature.operands, declared: &signature.results };
    let inferred = node.op.infer(&types);
    inferred.is_ok_and(|types| types.iter().zip(&signature.results).all(|(a, b)| a.same_shape(b)))
}

fn of_operator(draft: &mut Draft, node: &Node) -> Results {
    match &node.op {
        Op::Attention(op) => attention::attention(draft, node, op),
        Op::AvgPool(op) => pool::average(draft, node, op),
        Op::BatchNorm(op) => batch_norm::batch_norm(draft, node, op),
        Op::BatchStatistics(_) => formula(draft, node, batch_norm::statistics),
        Op::Binary(Binary::GeluGrad | Binary::GeluTanhGrad | Binary::SiluGrad | Binary::ReluGrad) => {
            own::write(draft, node)
        }
        Op::Binary(op) => elementwise::binary(draft, node, *op),
        Op::Bitcast(op) => bits::bitcast(draft, node, op),
        Op::Bitwise(op) => bits::bitwise(draft, node, *op),
        Op::Broadcast(_) => layout::broadcast(draft, node),
        Op::Cast(op) => elementwise::cast(draft, node, op),
        Op::Compare(op) => elementwise::compare(draft, node, *op),
        Op::Concat(op) => layout::concat(draft, node, op),
        Op::Constant(op) => source::constant(draft, node, op),
        Op::Contract(op) => contraction::contract(draft, node, op),
        Op::Conv(op) => convolution::conv(draft, node, op),
        Op::ConvGradInput(op) => convolution::transposed(draft, node, op),
        Op::CrossEntropy(op) => formula(draft, node, |draft, node| loss::cross_entropy(draft, node, op)),
        Op::CumulativeSum(op) => reduction::cumulative_sum(draft, node, op),
        Op::Det(_) => elementwise::det(draft, node),
        Op::Detach(_) => layout::same(draft, node),
        Op::Dropout(op) => random::dropout(draft, node, op),
        Op::Experts(op) => formula(draft, node, |draft, node| experts::experts(draft, node, op)),
        Op::Gather(op) => indexing::gather(draft, node, op),
        Op::GatherElements(op) => indexing::gather_elements(draft, node, op),
        Op::GatherNd(op) => indexing::gather_nd(draft, node, op),
        Op::InTraining(_) => formula(draft, node, batch_norm::in_training),
        Op::Iota(op) => source::iota(draft, node, op),
        Op::LayerNorm(op) => norm::layer_norm(draft, node, op),
        Op::LogSoftmax(op) => reduction::softmax(draft, node, "LogSoftmax", op.dim),
        Op::Logical(op) => elementwise::logical(draft, node, *op),
        Op::MaxPool(op) => pool::max(draft, node, op),
        Op::MaxPoolIndices(op) => pool::max_indices(draft, node, op),
        Op::Pad(op) => layout::pad(draft, node, op),
        Op::RandomUniform(op) => random::uniform(draft, node, op),
        Op::Recurrent(op) => formula(draft, node, |draft, node| recurrent::recurrent(draft, node, op)),
        Op::Reduce(op) => reduction::reduce(draft, node, op),
        Op::Reshape(_) => layout::reshape(draft, node),
        Op::RmsNorm(op) => norm::rms_norm(draft, node, op),
        Op::Rotary(op) => attention::rotary(draft, node, op),
        Op::ScatterElements(op) => indexing::scatter_elements(draft, node, op),
        Op::ScatterNd(op) => indexing::scatter_nd(draft, node, op),
        Op::Select(_) => elementwise::select(draft, node),
        Op::Slice(op) => layout::slice(draft, node, op),
        Op::Softmax(op) => reduction::softmax(draft, node, "Softmax", op.dim),
        Op::Splat(op) => source::splat(draft, node, op),
        Op::TopK(op) => reduction::top_k(draft, node, op),
        Op::Transpose(op) => layout::transpose(draft, node, op),
        Op::Unary(op) => elementwise::unary(draft, node, *op),
        Op::Accumulate(_)
        | Op::Adagrad(_)
        | Op::Adam(_)
        | Op::Adam8bit(_)
        | Op::Addends(_)
        | Op::AttentionGrad(_)
        | Op::AvgPoolGrad(_)
        | Op::BatchNormGrad(_)
        | Op::Collective(_)
        | Op::ConvGradWeight(_)
        | Op::Copy(_)
        | Op::CrossEntropyGrad(_)
        | Op::ExpertsGrad(_)
        | Op::GatherElementsGrad(_)
        | Op::GatherGrad(_)
        | Op::GatherNdGrad(_)
        | Op::LayerNormGrad(_)
        | Op::Lion(_)
        | Op::MaxPoolGrad(_)
        | Op::Orthogonalize(_)
        | Op::MaxPoolGradAt(_)
        | Op::MaxPoolOffsets(_)
        | Op::PackBits(_)
        | Op::RecurrentGrad(_)
        | Op::RmsNormGrad(_)
        | Op::Sgd(_)
        | Op::SoftmaxGrad(_)
        | Op::Transfer(_)
        | Op::UnpackBits(_) => own::write(draft, node),
    }
}

/// Writes a formula of several operators, or a single node of the domain `trainyard` for a viewer.
pub(super) fn formula(
    draft: &mut Draft,
    node: &Node,
    write: impl FnOnce(&mut Draft, &Node) -> Results,
) -> Results {
    if draft.form == Form::Program { own::write(draft, node) } else { write(draft, node) }
}

/// Returns the result of an operator with one result.
pub(super) fn one(tensor: TensorId) -> Results {
    Ok(vec![Some(tensor)])
}
