//! BatchNormalization. A node is in training form by `training_mode` from opset 14 on, by having more than one output in opsets 7
//! to 13, and by `is_test` before that. A traced call in the exporter's record overrides all of these.
//!
//! In training form, running statistics that are tensors of the file become states (buffers). Each microbatch replaces them by
//! `momentum·running + (1 - momentum)·batch`. They use the unbiased variance, as in PyTorch. ONNX specifies the biased variance,
//! which the node's outputs have. If several nodes share a tensor, each updates it in turn.

use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem};
use crate::recorded::{has_folded_norm, shortened};
use crate::{Graph, Node};
use ir::ops::Float;
use ir::ops::batch_norm::{BatchNorm, BatchStatistics, InTraining};
use ir::{
    DataId, Diagnostic, Dim, Initializer, Module, Op, OperandRole, Role, StateId, Type, ValueId, ensure,
};

/// Imports BatchNormalization.
pub(super) fn batch_norm(cx: &mut Context, call: &Call) -> Outputs {
    ensure!(
        call.int("spatial") != Some(0),
        "statistics for each element instead of each channel are not supported"
    );
    let x = cx.value(call, 0)?;
    let ty = cx.ty(x).clone();
    // An operand with a single dim is a batch of one channel.
    let x = if ty.ndim() == 1 { cx.b.reshape(x, [ty.dims[0].clone(), Dim::known(1)])? } else { x };
    let eps = Float::new(call.float("epsilon").unwrap_or(1e-5));
    let [scale, bias] = [of_channels(cx, call, 1, &ty)?, of_channels(cx, call, 2, &ty)?];
    if !trains(call) {
        let [mean, variance] = [of_channels(cx, call, 3, &ty)?, of_channels(cx, call, 4, &ty)?];
        let y = cx.b.one(BatchNorm { eps }, &[x, mean, variance, scale, bias])?;
        return Ok(vec![Entry::Value(cx.b.reshape(y, ty.dims)?)]);
    }
    let statistics = cx.b.push(BatchStatistics, &[x])?;
    let (mean, variance, unbiased) = (statistics[0], statistics[1], statistics[2]);
    let mean = Running::of(cx, call, 3, mean, mean)?;
    let variance = Running::of(cx, call, 4, variance, unbiased)?;
    let y = cx.b.one(BatchNorm { eps }, &[x, mean.used, variance.used, scale, bias])?;
    let mut outputs = vec![Entry::Value(cx.b.reshape(y, ty.dims)?)];
    for running in [&mean, &variance] {
        outputs.push(Entry::Value(running.updated));
    }
    // Up to opset 13, the statistics of the batch are further outputs.
    outputs.extend([mean.batch, variance.batch].map(Entry::Value));
    outputs.truncate(call.output_count().max(1));
    Ok(outputs)
}

fn trains(call: &Call) -> bool {
    if traced_momentum(call).is_some() {
        return true;
    }
    match call.opset() {
        ..=6 => call.int("is_test") == Some(0),
        7..=13 => (1..call.output_count()).any(|i| call.output(i).is_some()),
        _ => call.int("training_mode") == Some(1),
    }
}

/// Returns the momentum of the running statistics, if the traced call used the statistics of the batch. The dynamo exporter writes
/// such a node in inference form. The call's arguments are `x, scale, bias, mean, variance, training, momentum, eps`, where
/// PyTorch's momentum is the weight of the batch.
fn traced_momentum(call: &Call) -> Option<f64> {
    let traced = call.traced().filter(|traced| traced.operator.contains("batch_norm"))?;
    let given: f64 = traced.word(6)?.parse().ok()?;
    (traced.word(5) == Some("True") && (0.0..=1.0).contains(&given)).then_some(1.0 - given)
}

/// Returns an input with one number per channel, in the element type of `x`.
fn of_channels(cx: &mut Context, call: &Call, i: usize, x: &Type) -> Result<ValueId, Problem> {
    let value = cx.value(call, i)?;
    Ok(cx.b.cast(value, x.dtype)?)
}

/// The mean or the variance of a norm in training form.
struct Running {
    /// The statistic of the batch.
    batch: ValueId,
    /// The statistic used to normalise: the batch's in training, the running one in an evaluation.
    used: ValueId,
    /// The running statistic after this batch, as ONNX defines it.
    updated: ValueId,
}

impl Running {
    /// Builds the statistic of input `i`. If the input is a tensor of the file, its state is updated with `sample`.
    fn of(cx: &mut Context, call: &Call, i: usize, batch: ValueId, sample: ValueId) -> Result<Self, Problem> {
        let momentum = traced_momentum(call).or(call.float("momentum")).unwrap_or(0.9);
        let state = stored(cx, call, i)?.map(|data| state(cx, data));
        let running = match state {
            Some(state) => current(cx.b.module(), state),
            None => cx.value(call, i)?,
        };
        let at_hand = cx.b.cast(running, cx.ty(batch).dtype)?;
        let used = cx.b.one(InTraining, &[batch, at_hand])?;
        if let Some(state) = state {
            let new = average(cx, running, sample, momentum)?;
            cx.b.tables().states[state].output = Some(new);
        }
        Ok(Self { batch, used, updated: average(cx, running, batch, momentum)? })
    }
}

/// `momentum·running + (1 - momentum)·batch`
fn average(cx: &mut Context, running: ValueId, batch: ValueId, momentum: f64) -> Result<ValueId, Problem> {
    let batch = cx.b.cast(batch, cx.ty(running).dtype)?;
    cx.build(running * momentum + batch * (1.0 - momentum))
}

/// Returns the file's tensor that an input reads, if it reads one directly.
fn stored(cx: &Context, call: &Call, i: usize) -> Result<Option<DataId>, Problem> {
    Ok(match cx.entry(call, i)? {
        Entry::Stored(data) => Some(*data),
        Entry::Value(value) => match cx.b.module().producer(*value).map(|node| &node.op) {
            Some(Op::Constant(constant)) => Some(constant.data),
            _ => None,
        },
        _ => None,
    })
}

/// Returns the state of a running statistic, which is added if it is new.
fn state(cx: &mut Context, data: DataId) -> StateId {
    let tables = cx.b.tables();
    let known = tables.states.iter().find(|(_, state)| state.initializer == Initializer::Data(data));
    if let Some((id, _)) = known {
        return id;
    }
    let row = &tables.data[data];
    let (name, ty) = (row.name.clone(), row.ty.clone());
    tables.add_state(name, ty, Role::Buffer, Initializer::Data(data))
}

/// Returns the value of a state after the nodes built so far.
fn current(module: &Module, state: StateId) -> ValueId {
    let state = &module.states[state];
    state.output.unwrap_or(state.input)
}

/// Warns that the batch norms of a model that was exported for inference keep their statistics.
pub(super) fn warning(module: &Module) -> Option<Diagnostic> {
    let by_the_batch =
        |value: ValueId| module.producer(value).is_some_and(|node| matches!(node.op, Op::InTraining(_)));
    let norms = module.nodes().filter(|(_, node)| matches!(node.op, Op::BatchNorm(_)));
    let fixed: Vec<_> = norms.filter(|(_, node)| !by_the_batch(node[OperandRole::Mean])).collect();
    let (_, first) = fixed.first()?;
    let count = fixed.len();
    let warning = Diagnostic::new(format!(
        "{count} batch norms are in inference form: they normalise by the file's statistics, and training \
         does not change these"
    ));
    Some(warning.at(first.origin.to_string()).note(
        "to normalise by the statistics of each batch, export with training=torch.onnx.TrainingMode.TRAINING",
    ))
}

/// Warns of batch norms that the exporter folded into a convolution, so that they cannot be trained.
pub(super) fn folded_warning(graph: &Graph) -> Option<Diagnostic> {
    let folded: Vec<&Node> = graph.nodes.iter().filter(|node| has_folded_norm(node)).collect();
    let (first, count) = (folded.first()?, folded.len());
    let tensors = folded.iter().flat_map(|node| [1, 2].into_iter().filter_map(|i| node.input(i)));
    let tensors: Vec<String> = tensors.map(str::to_owned).collect();
    let warning = Diagnostic::new(format!(
        "the exporter folded batch norms into {count} layers; each trains as a layer without batch norm, and \
         its weights differ from the module's: {}",
        shortened(&tensors)
    ));
    Some(warning.at(first.label()).note(
        "to train the batch norms, export with dynamo=False, training=torch.onnx.TrainingMode.TRAINING and \
         do_constant_folding=False",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Attribute;
    use ir::{Blob, Builder, DType, Data};
    use std::collections::BTreeMap;

    /// Imports these nodes, whose statistics are tensors of the file.
    fn imported(nodes: &[Node]) -> Module {
        let mut module = Module::new("m");
        let x = module.add_input("x", Type::of(DType::F32, &[4, 2, 3]), true);
        let mut entries = BTreeMap::from([("x".to_string(), Entry::Value(x))]);
        for name in ["scale", "bias", "mean", "variance"] {
            let ty = Type::of(DType::F32, &[2]);
            let blob = Blob::File(Some([1.0f32.to_le_bytes(); 2].concat().into()));
            let data = module.add_data(Data { name: name.into(), ty, blob, claim: None });
            entries.insert(name.into(), Entry::Stored(data));
        }
        let b = Builder::new(&mut module, "import");
        let mut cx = Context::new(b, entries);
        for node in nodes {
            let outputs = batch_norm(&mut cx, &Call::new(node)).expect("it is imported");
            assert_eq!(outputs.len(), node.outputs.len());
        }
        cx.b.finish();
        module
    }

    fn node(opset: i64, outputs: usize, attributes: &[(&str, i64)]) -> Node {
        Node {
            op_type: "BatchNormalization".into(),
            opset,
            inputs: ["x", "scale", "bias", "mean", "variance"].map(String::from).into(),
            outputs: (0..outputs).map(|i| format!("y{i}")).collect(),
            attributes: attributes.iter().map(|(name, n)| (name.to_string(), Attribute::Int(*n))).collect(),
            ..Node::default()
        }
    }

    #[test]
    fn every_opset_says_in_its_own_way_that_it_trains() {
        for (node, trains) in [
            (node(15, 3, &[("training_mode", 1)]), true),
            (node(15, 1, &[]), false),
            (node(9, 5, &[]), true),
            (node(9, 1, &[]), false),
        ] {
            let module = imported(std::slice::from_ref(&node));
            assert_eq!(module.states.len(), if trains { 2 } else { 0 }, "{node:?}");
            assert_eq!(warning(&module).is_none(), trains, "{node:?}");
            assert!(module.states.values().all(|state| state.output.is_some()));
        }
    }

    #[test]
    fn a_traced_call_in_training_form_uses_the_statistics_of_the_batch() {
        let traced = |training: &str| {
            let call = format!(
                "%y : [num_users=1] = call_function[target=torch.ops.aten.batch_norm.default](args = (%x, %p_scale, %p_bias, \
                 %b_mean, %b_variance, {training}, 0.25, 1e-05, True), kwargs = {{}})"
            );
            Node { metadata: [("pkg.torch.onnx.fx_node".into(), call)].into(), ..node(20, 1, &[]) }
        };
        let module = imported(&[traced("True")]);
        assert_eq!(module.states.len(), 2);
        // PyTorch's momentum is the weight of the batch: 0.25 of the batch and 0.75 of the running statistic.
        let numbers: Vec<f64> = module
            .nodes()
            .filter_map(|(_, node)| match &node.op {
                Op::Splat(splat) => Some(splat.value.get()),
                _ => None,
            })
            .collect();
        assert!(numbers.contains(&0.75) && numbers.contains(&0.25), "{numbers:?}");
        assert!(imported(&[traced("False")]).states.is_empty());
    }

    #[test]
    fn shared_statistics_take_one_batch_after_the_other() {
        let node = node(15, 1, &[("training_mode", 1)]);
        let module = imported(&[node.clone(), node]);
        assert_eq!(module.states.len(), 2);
        let running = module.nodes().filter(|(_, node)| matches!(node.op, Op::InTraining(_)));
        let running: Vec<ValueId> = running.map(|(_, node)| node[OperandRole::State]).collect();
        let inputs: Vec<ValueId> = module.states.values().map(|state| state.input).collect();
        assert_eq!(running[..2], inputs);
        assert!(running[2..].iter().all(|value| module.producer(*value).is_some()));
    }

    #[test]
    fn a_norm_that_was_folded_is_told_from_a_bias() {
        let conv = |weight: &str, bias: &str, rule: Option<&str>| Node {
            op_type: "Conv".into(),
            opset: 20,
            inputs: ["x", weight, bias].map(String::from).into(),
            metadata: rule
                .map(|rule| ("pkg.onnxscript.rewriter.rule_name".into(), rule.into()))
                .into_iter()
                .collect(),
            ..Node::default()
        };
        for (node, folded) in [
            (conv("m.weight", "m.bias", None), false),
            (
                conv("m.weight", "m.weight_bias", Some("FuseBatchNormIntoConv, RemoveOptionalBiasFromConv")),
                true,
            ),
            (conv("m.weight", "m.bias", Some("RemoveOptionalBiasFromConv")), false),
            (conv("onnx::Conv_193", "onnx::Conv_194", None), true),
            (conv("onnx::Conv_193", "m.bias", None), false),
        ] {
            let graph = Graph { nodes: vec![node], ..Graph::default() };
            assert_eq!(folded_warning(&graph).is_some(), folded, "{:?}", graph.nodes);
        }
    }
}
