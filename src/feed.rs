//! The facts about a program that the loader needs: its inputs, its labels, and the tables that token ids index.

use crate::failure::Failure;
use crate::manager;
use data::{InputSpec, LabelSpec, ModelSpec, Unfillable};
use ir::ops::elementwise::Compare;
use ir::{
    Definition, Diagnostic, Module, Movement, Node, NodeId, Op, OperandRole, Role, ScalarPart, State,
    StepOutput, ValueId,
};
use passes::bind::where_samples_meet;
use passes::causality::is_causal;
use passes::evaluation::{self, Evaluation};
use passes::keep::Keep;

/// Returns the inputs and labels of a program that has its loss.
///
/// # Errors
/// Dims that are not bound.
pub fn model_spec(module: &Module) -> Result<ModelSpec, Diagnostic> {
    let label = label(module)?;
    let is_label = |name: &str| label.as_ref().is_some_and(|label| label.name == name);
    let inputs = module.inputs.iter().filter(|input| !is_label(&input.name)).map(|input| {
        Ok(InputSpec {
            name: input.name.clone(),
            dtype: module.ty(input.value).dtype,
            dims: sizes(module, input.value, &input.name)?,
            batched: input.batched,
            vocabulary: vocabulary(module, input.value),
        })
    });
    let inputs = inputs.collect::<Result<_, Diagnostic>>()?;
    Ok(ModelSpec { inputs, label, ..ModelSpec::default() })
}

/// The reason why a short batch of a program that has its loss cannot be filled up with samples whose `labels` are ignored.
pub fn unfillable(module: &Module, labels: &str) -> Result<Unfillable, Failure> {
    let training = manager::rewritten(module.clone(), Keep { outputs: evaluation::outputs(module) })?;
    let evaluation = manager::rewritten(module.clone(), Evaluation)?;
    Ok(Unfillable { training: counts_fill(&training, labels), evaluation: counts_fill(&evaluation, labels) })
}

/// Returns whether a short batch of an evaluation can be filled up with samples whose labels are ignored. If not, the batch needs a program
/// of its own.
pub fn fills_evaluation(module: &Module) -> Result<bool, Failure> {
    match model_spec(module)?.label.filter(|label| label.ignore_index.is_some()) {
        Some(label) => Ok(unfillable(module, &label.name)?.evaluation.is_none()),
        None => Ok(false),
    }
}

/// The cross-entropy that the compiler added. The file does not shift its labels.
fn added_cross_entropy(module: &Module) -> Option<&Node> {
    let is_added = |node: &&Node| matches!(node.op, Op::CrossEntropy(_)) && &*node.by == passes::loss::NAME;
    module.nodes().map(|(_, node)| node).find(is_added)
}

/// Whether the file computes its loss, and so pairs labels with outputs itself.
pub fn has_own_loss(module: &Module) -> bool {
    added_cross_entropy(module).is_none()
}

/// Whether a program is trained to predict the next element of an input: the compiler added the loss, and the logits at position t
/// depend on no later position of the input.
pub fn predicts_next(module: &Module, input: &str) -> bool {
    let (Some(loss), Some(input)) = (added_cross_entropy(module), module.input(input)) else { return false };
    let (logits, labels) = (loss[OperandRole::Data], loss[OperandRole::Labels]);
    // Labels that are read transposed have their positions first, as the logits of recurrent models do.
    let position = match module.value(labels).definition {
        Definition::Input(_) => 1,
        Definition::State(_) | Definition::Node(..) => 0,
    };
    module.ty(logits).ndim() == 3 && is_causal(module, input.value, logits, position)
}

/// The reason why the loss of a program, or a state, depends on samples whose labels are ignored, as a sentence; `None` if nothing depends
/// on them.
fn counts_fill(module: &Module, labels: &str) -> Option<String> {
    let loss = [ScalarPart::Sum, ScalarPart::Weight].map(|part| {
        let (node, result) = cross_entropy(module, module.step_output(StepOutput::loss(0, part))?.value)?;
        let reads = source_input(module, module.node(node)[OperandRole::Labels])?;
        (module.inputs[reads].name == labels).then_some((node, result))
    });
    match loss {
        [Some((sum, 0)), Some((weight, 1))] if sum == weight => {}
        _ => {
            return Some(
                "the model's own loss has no label that excludes a sample from all its terms".into(),
            );
        }
    }
    if module.step_output(StepOutput::loss(1, ScalarPart::Sum)).is_some() {
        return Some("the loss has a term from which no label excludes a sample".into());
    }
    let is_carried_on = |state: &State| state.role == Role::Buffer && state.output.is_some();
    if module.states.values().any(is_carried_on) {
        return Some("batch norms compute their statistics over all samples of the batch".into());
    }
    match where_samples_meet(module) {
        Ok(None) => None,
        Ok(Some(node)) => {
            let node = module.node(node);
            Some(format!("`{}` ({}) reads all samples of the batch", node.origin, node.op.name()))
        }
        Err(error) => Some(format!("the samples may depend on each other: {}", error.message)),
    }
}

/// The cross-entropy whose result a value is, seen through casts and reshapes, and the index of the result.
fn cross_entropy(module: &Module, value: ValueId) -> Option<(NodeId, u32)> {
    match module.value(module.viewed(value, Movement::keeps_order)).definition {
        Definition::Node(id, result) if matches!(module.node(id).op, Op::CrossEntropy(_)) => {
            Some((id, result))
        }
        _ => None,
    }
}

/// The labels: the input that the cross-entropy reads, or that the loss pass compares with a prediction.
fn label(module: &Module) -> Result<Option<LabelSpec>, Diagnostic> {
    for (_, node) in module.nodes() {
        let Op::CrossEntropy(loss) = &node.op else { continue };
        let Some(input) = source_input(module, node[OperandRole::Labels]) else { continue };
        let name = module.inputs[input].name.clone();
        let value = module.inputs[input].value;
        return Ok(Some(LabelSpec {
            dtype: module.ty(value).dtype,
            dims: sizes(module, value, &name)?,
            classes: module.ty(node[OperandRole::Data]).dims.last().and_then(ir::Dim::size),
            ignore_index: Some(loss.ignore_index),
            name,
        }));
    }
    compared(module)
}

/// Labels that are numbers: the input `labels`, if a node of the loss pass reads it.
fn compared(module: &Module) -> Result<Option<LabelSpec>, Diagnostic> {
    let Some(input) = module.input("labels").filter(|input| module.ty(input.value).dtype.is_float()) else {
        return Ok(None);
    };
    let uses = module.uses();
    let of_loss = |id: &ir::NodeId| &*module.node(*id).by == passes::loss::NAME;
    if !uses[input.value].iter().all(of_loss) {
        return Ok(None);
    }
    let dims = sizes(module, input.value, &input.name)?;
    let (name, dtype) = (input.name.clone(), module.ty(input.value).dtype);
    Ok(Some(LabelSpec { name, dtype, dims, classes: None, ignore_index: None }))
}

fn sizes(module: &Module, value: ValueId, name: &str) -> Result<Vec<u64>, Diagnostic> {
    let ty = module.ty(value);
    ty.sizes().ok_or_else(|| {
        let open: Vec<_> =
            ty.dims.iter().filter(|dim| dim.size().is_none()).map(|dim| format!("{dim}=SIZE")).collect();
        Diagnostic::new(format!("input `{name}` is {ty}, whose sizes are not bound"))
            .note(format!("bind the sizes: --bind {}", open.join(",")))
    })
}

/// The input that a value views, also through casts.
fn source_input(module: &Module, value: ValueId) -> Option<usize> {
    match module.value(module.viewed(value, Movement::is_view)).definition {
        Definition::Input(input) => Some(input as usize),
        Definition::State(_) | Definition::Node(..) => None,
    }
}

/// The length of the shortest table that an input of integers indexes. `None` if the model treats a number outside of the table in its own
/// way, as a loss ignores the labels that do not count.
fn vocabulary(module: &Module, input: ValueId) -> Option<u64> {
    if !module.ty(input).dtype.is_integer() {
        return None;
    }
    let reads = module.nodes().filter_map(|(_, node)| match &node.op {
        Op::Gather(gather) => {
            let Definition::Input(read) = module.value(input).definition else { return None };
            let from_input = source_input(module, node[OperandRole::Indices]) == Some(read as usize);
            from_input.then(|| module.ty(node[OperandRole::Data]).dims[gather.dim as usize].size())?
        }
        _ => None,
    });
    reads.min().filter(|&length| !sets_apart(module, input, length))
}

/// Whether a model compares an input with a number outside of `0..length`.
fn sets_apart(module: &Module, input: ValueId, length: u64) -> bool {
    let Definition::Input(input) = module.value(input).definition else { return false };
    let is_outside = |&value: &ValueId| match module.value(value).definition {
        Definition::Node(node, _) => match &module.node(node).op {
            Op::Splat(splat) => !(0.0..length as f64).contains(&splat.value.get()),
            _ => false,
        },
        _ => false,
    };
    let is_input = |&value: &ValueId| source_input(module, value) == Some(input as usize);
    let compared = module.nodes().filter(|(_, node)| matches!(node.op, Op::Compare(Compare::Equal)));
    let mut compared = compared.map(|(_, node)| &node.operands);
    compared.any(|operands| operands.iter().any(is_input) && operands.iter().any(is_outside))
}
