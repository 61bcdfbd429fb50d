//! Sites: the inputs of nodes that hold tensors of the author's module.
//!
//! A traced call becomes one or a few nodes, all with the call in their metadata. If such a node reads an initializer, the call's
//! arguments tell which tensor it was before the exporter renamed, reshaped or merged it.

use super::signature::{Kind, Listed, Signature};
use super::traced::{self, Argument, TracedCall};
use crate::proto::{GraphProto, NodeProto, TensorProto};
use std::collections::BTreeMap;

/// An input of a node that holds a tensor of the author's module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site<'s> {
    /// The index of the node in the graph.
    pub(super) node: usize,
    /// The index of the input in the node.
    pub(super) input: usize,
    /// The tensor.
    pub(super) tensor: Listed<'s>,
    /// The relation of the initializer's dims to those of the tensor.
    pub(super) layout: Layout,
}

/// The relation of an initializer's dims to those of the tensor from which it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// The same dims.
    Same,
    /// A transposed matrix.
    Transposed,
    /// A vector with additional dims of size one.
    Vector,
    /// The record does not tell.
    Unknown,
}

/// A bias that the exporter dropped because it was zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DroppedBias<'s> {
    /// The index in the graph of the node without a bias.
    pub(super) node: usize,
    /// The bias.
    pub(super) tensor: Listed<'s>,
}

/// The facts of the record about the graph's initializers.
#[derive(Debug, Default)]
pub(super) struct Sites<'s> {
    /// The sites, in the order of nodes and their inputs.
    pub(super) known: Vec<Site<'s>>,
    /// The dropped zero biases.
    pub(super) dropped: Vec<DroppedBias<'s>>,
    /// Inputs, each with its node, that read an initializer of the exporter's own formula, such as the scale of the instance norm
    /// to which a group norm is converted.
    pub(super) made: Vec<(usize, usize)>,
}

/// Reads the traced calls of all nodes.
pub(super) fn find<'s>(graph: &GraphProto, signature: &Signature<'s>) -> Sites<'s> {
    let floats: BTreeMap<&str, &TensorProto> =
        graph.initializer.iter().filter(|tensor| super::is_float(tensor)).map(|t| (t.name(), t)).collect();
    let mut calls: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (i, node) in graph.node.iter().enumerate() {
        if let Some(text) = super::metadata(node, traced::KEY) {
            calls.entry(text).or_default().push(i);
        }
    }
    let mut sites = Sites::default();
    for (text, nodes) in calls {
        if let Some(call) = TracedCall::parse(text) {
            of_call(graph, &floats, signature, &call, &nodes, &mut sites);
        }
    }
    sites.known.sort_by_key(|site| (site.node, site.input));
    sites.dropped.sort_by_key(|dropped| dropped.node);
    sites
}

/// An input that reads an initializer.
#[derive(Clone, Copy)]
struct Slot<'g> {
    node: usize,
    input: usize,
    tensor: &'g TensorProto,
}

/// Adds the sites of a call that became these nodes.
fn of_call<'s>(
    graph: &GraphProto,
    floats: &BTreeMap<&str, &TensorProto>,
    signature: &Signature<'s>,
    call: &TracedCall,
    nodes: &[usize],
    sites: &mut Sites<'s>,
) {
    let mut slots = Vec::new();
    for &i in nodes {
        let reads = graph.node[i].input.iter().enumerate();
        let floats = reads.filter_map(|(input, name)| Some((input, *floats.get(&name[..])?)));
        slots.extend(floats.map(|(input, tensor)| Slot { node: i, input, tensor }));
    }
    let operator = call.operator;
    let listed = |argument: usize| match call.arguments.get(argument) {
        Some(Argument::Value(symbol)) => signature.find(symbol).cloned(),
        _ => None,
    };
    let is_given =
        |argument: usize| !matches!(call.arguments.get(argument), None | Some(Argument::Word("None")));
    let places = slots.iter().map(|slot| place(operator, graph.node[slot.node].op_type(), slot.input));
    // The exporter gives a norm without a scale a scale of its own.
    let places: Vec<TracedArgument> = places
        .map(|place| match place {
            TracedArgument::Argument(i) if operator.contains("norm") && !is_given(i) => TracedArgument::Made,
            place => place,
        })
        .collect();
    let made = slots.iter().zip(&places).filter(|(_, place)| **place == TracedArgument::Made);
    sites.made.extend(made.map(|(slot, _)| (slot.node, slot.input)));
    let found = if places.contains(&TracedArgument::Unknown) {
        let wanted: Vec<_> = call.values().into_iter().filter_map(|it| signature.find(it).cloned()).collect();
        matched(&slots, &wanted, nodes.len() == 1)
    } else {
        let of_argument = |place: TracedArgument| match place {
            TracedArgument::Argument(i) => listed(i),
            TracedArgument::Unknown | TracedArgument::Nothing | TracedArgument::Made => None,
        };
        let places = slots.iter().zip(&places);
        places.filter_map(|(slot, place)| Some((*slot, of_argument(*place)?))).collect()
    };
    for (slot, tensor) in found {
        let layout = layout(&graph.node[slot.node], slot, call);
        sites.known.push(Site { node: slot.node, input: slot.input, tensor, layout });
    }
    if let Some(argument) = bias_argument(operator)
        && !places.contains(&TracedArgument::Argument(argument))
        && let Some(tensor) = listed(argument).filter(|tensor| tensor.kind == Kind::Parameter)
        && let Some(&node) = nodes.iter().find(|&&node| lacks_bias(&graph.node[node]))
    {
        sites.dropped.push(DroppedBias { node, tensor });
    }
}

/// The argument of a traced call that an initializer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TracedArgument {
    /// The argument with this index.
    Argument(usize),
    /// No argument: the exporter made the initializer for its own formula.
    Made,
    /// No argument that can be identified.
    Nothing,
    /// The operator does not determine the argument.
    Unknown,
}

/// Returns the argument of the call `operator` that input `input` of an `op` node holds.
fn place(operator: &str, op: &str, input: usize) -> TracedArgument {
    let is_batch_norm = operator.contains("batch_norm");
    match (operator, op) {
        ("addmm", "Add") => TracedArgument::Argument(0),
        ("addmm", "Gemm") if input == 2 => TracedArgument::Argument(0),
        ("addmm", "MatMul" | "Gemm") => TracedArgument::Argument(1 + input),
        ("addmm", "Transpose") => TracedArgument::Argument(2),
        ("linear", "Add") => TracedArgument::Argument(2),
        ("linear", "MatMul" | "Gemm") => TracedArgument::Argument(input),
        ("linear", "Transpose") => TracedArgument::Argument(1),
        (_, "Conv" | "ConvTranspose") if operator.starts_with("conv") => TracedArgument::Argument(input),
        ("layer_norm" | "native_layer_norm", "LayerNormalization") => TracedArgument::Argument(input + 1),
        ("group_norm", "InstanceNormalization") => TracedArgument::Made,
        ("group_norm", "Mul") => TracedArgument::Argument(2),
        ("group_norm", "Add") => TracedArgument::Argument(3),
        ("instance_norm", "InstanceNormalization") => TracedArgument::Argument(input),
        (_, "BatchNormalization") if is_batch_norm => TracedArgument::Argument(input),
        // A batch norm that was folded into a convolution has no separate tensors.
        _ if is_batch_norm => TracedArgument::Nothing,
        // Each input holds several weights.
        ("lstm" | "gru" | "rnn_tanh" | "rnn_relu", _) => TracedArgument::Nothing,
        _ => TracedArgument::Unknown,
    }
}

/// Returns the index of the bias argument, for operators whose zero bias the exporter drops.
fn bias_argument(operator: &str) -> Option<usize> {
    match operator {
        "addmm" => Some(0),
        "linear" => Some(2),
        name if name.starts_with("conv") => Some(2),
        _ => None,
    }
}

/// Assigns tensors to slots whose operator does not determine the argument: by name, and the others in order. The inputs of one
/// node are in the order of the call's arguments (`in_order`); those of several nodes need not be.
fn matched<'g, 's>(slots: &[Slot<'g>], wanted: &[Listed<'s>], in_order: bool) -> Vec<(Slot<'g>, Listed<'s>)> {
    // Initializers of one element may be numbers of the code, and are skipped if there are too many.
    let several = |slot: &&Slot| super::count(slot.tensor) != 1;
    let slots: Vec<Slot> = if slots.len() > wanted.len() {
        slots.iter().filter(several).copied().collect()
    } else {
        slots.to_vec()
    };
    let once = |slot: &Slot| slots.iter().filter(|s| s.tensor.name() == slot.tensor.name()).count() == 1;
    let named = |slot: &Slot| wanted.iter().find(|tensor| tensor.name == slot.tensor.name()).cloned();
    let (named_slots, others): (Vec<Slot>, Vec<Slot>) =
        slots.iter().partition(|slot| once(slot) && named(slot).is_some());
    let mut found: Vec<_> = named_slots.iter().filter_map(|slot| Some((*slot, named(slot)?))).collect();
    let is_found = |tensor: &&Listed| found.iter().any(|(_, known)| known.name == tensor.name);
    let left: Vec<Listed> = wanted.iter().filter(|tensor| !is_found(tensor)).cloned().collect();
    if others.len() == left.len() && (in_order || left.len() == 1) {
        found.extend(others.into_iter().zip(left));
    }
    found
}

/// Whether a node can have a third input, its bias, and does not have it.
fn lacks_bias(node: &NodeProto) -> bool {
    matches!(node.op_type(), "Conv" | "ConvTranspose" | "Gemm")
        && node.input.len() >= 2
        && node.input.get(2).is_none_or(String::is_empty)
}

/// Whether a call such as `tensor[i, j]` indexes the tensor's first dims.
fn indexes_first_dims(call: &TracedCall) -> bool {
    let is_value = |index: &Argument| matches!(index, Argument::Value(_));
    matches!(call.arguments.get(1), Some(Argument::List(indices)) if indices.iter().all(is_value))
}

/// Returns the relation of the initializer's dims to those of the author's tensor.
fn layout(node: &NodeProto, slot: Slot, call: &TracedCall) -> Layout {
    let is_transposed = super::int_attribute(node, "transB") == Some(1);
    match (node.op_type(), slot.input, call.operator) {
        ("MatMul", 1, "linear") => Layout::Transposed,
        ("Gemm", 1, "linear") if !is_transposed => Layout::Transposed,
        ("Gemm", 1, "addmm" | "mm" | "matmul") if is_transposed => Layout::Transposed,
        ("MatMul" | "Gemm", _, "linear" | "addmm" | "mm" | "matmul" | "bmm" | "baddbmm") => Layout::Same,
        ("Transpose", ..) => Layout::Same,
        (_, _, "linear" | "addmm" | "prelu" | "layer_norm" | "group_norm" | "instance_norm") => {
            Layout::Vector
        }
        (op, ..) if op.starts_with("Conv") => Layout::Same,
        ("BatchNormalization" | "LayerNormalization" | "InstanceNormalization" | "Gather", ..) => {
            Layout::Same
        }
        // If other dims are indexed, the exporter moves them to the front.
        ("GatherND", 0, "index") if indexes_first_dims(call) => Layout::Same,
        _ if super::is_generated(slot.tensor.name()) => Layout::Unknown,
        _ => Layout::Same,
    }
}
