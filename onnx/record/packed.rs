//! Packed weights: a recurrent layer of ONNX stores several parameters of the module in one tensor.
//!
//! The exporter computes the three tensors of a layer from the author's tensors, and folds each of them depending on its size: one
//! may be an initializer and another the result of slices. So each is examined separately.

use super::signature::Signature;
use super::traced::{self, Argument, TracedCall};
use super::{is_float, metadata};
use crate::proto::{GraphProto, NodeProto, TensorProto};
use std::collections::{BTreeMap, BTreeSet};

/// The packed tensors of a graph.
#[derive(Debug, Default)]
pub(super) struct Packed<'s> {
    /// The names of the packed initializers.
    pub(super) tensors: BTreeSet<String>,
    /// The parameters that they contain.
    pub(super) parameters: BTreeSet<&'s str>,
    /// Initializers with the state before the first step, if the author's code made it from no parameter.
    pub(super) initial_states: BTreeSet<String>,
}

/// The inputs with the state before the first step.
const INITIAL_STATES: [usize; 2] = [5, 6];

/// Finds the recurrent nodes with initializers that the exporter made from parameters. If a tensor is computed in the graph, its
/// parameters are separate initializers.
pub(super) fn find<'s>(graph: &GraphProto, signature: &Signature<'s>) -> Packed<'s> {
    let sources = Sources::new(graph);
    let is_listed = |name: &&str| signature.tensors().any(|listed| listed.name == *name);
    let mut packed = Packed::default();
    // Nodes with the same call are its layers, in order.
    let mut layers: BTreeMap<&str, usize> = BTreeMap::new();
    for node in graph.node.iter().filter(|node| matches!(node.op_type(), "LSTM" | "GRU" | "RNN")) {
        let Some(text) = metadata(node, traced::KEY) else { continue };
        let Some(call) = TracedCall::parse(text) else { continue };
        let index = layers.entry(text).or_default();
        let weights = weights_of_layer(&call, *index);
        *index += 1;
        for (input, symbols) in (1..).zip(weights) {
            let made = sources.behind(node, input);
            let made: Vec<&str> = made.into_iter().filter(|name| !is_listed(name)).collect();
            if !made.is_empty() {
                let listed = symbols.into_iter().filter_map(|symbol| signature.find(symbol));
                packed.parameters.extend(listed.map(|listed| listed.name));
                packed.tensors.extend(made.into_iter().map(str::to_owned));
            }
        }
        let from_code = starts_from_code(&call, signature);
        let states = INITIAL_STATES.iter().flat_map(|&input| sources.behind(node, input));
        let made = states.filter(|name| !is_listed(name) && (from_code || sources.is_initial(name)));
        packed.initial_states.extend(made.map(str::to_owned));
    }
    packed
}

/// Returns the weights of one layer of a call: those of the inputs 1, 2 and 3 of its node.
fn weights_of_layer<'t>(call: &TracedCall<'t>, index: usize) -> [Vec<&'t str>; 3] {
    let weights = call.weights();
    let layers = call.integer(4).and_then(|layers| usize::try_from(layers).ok());
    let each = layers.and_then(|layers| weights.len().checked_div(layers)).filter(|&each| each > 0);
    let of_layer = weights.chunks(each.unwrap_or(weights.len().max(1))).nth(index).unwrap_or_default();
    let mut inputs: [Vec<&str>; 3] = Default::default();
    let kinds = if call.word(3) == Some("True") { 4 } else { 2 };
    for (place, &symbol) in of_layer.iter().enumerate() {
        // `weight_ih`, `weight_hh`, and the two biases, which share an input.
        inputs[(place % kinds).min(2)].push(symbol);
    }
    inputs
}

/// Whether the module's code makes the first state, so that it depends on no parameter: `gru(x, zeros, …)`.
fn starts_from_code(call: &TracedCall, signature: &Signature) -> bool {
    let is_made = |argument: &Argument| match argument {
        Argument::Value(symbol) => signature.find(symbol).is_none() && super::names::is_created(symbol),
        Argument::List(_) | Argument::Word(_) => false,
    };
    match call.arguments.get(1) {
        Some(Argument::List(states)) => !states.is_empty() && states.iter().all(is_made),
        Some(state) => is_made(state),
        None => false,
    }
}

/// The float initializers of a graph, and the nodes by their results.
struct Sources<'g> {
    floats: BTreeMap<&'g str, &'g TensorProto>,
    producers: BTreeMap<&'g str, &'g NodeProto>,
}

impl<'g> Sources<'g> {
    fn new(graph: &'g GraphProto) -> Self {
        let floats = graph.initializer.iter().filter(|tensor| is_float(tensor));
        let floats = floats.map(|tensor| (tensor.name(), tensor));
        let results =
            graph.node.iter().flat_map(|node| node.output.iter().map(move |name| (&name[..], node)));
        Self { floats: floats.collect(), producers: results.collect() }
    }

    /// Whether an initializer has the elements of fresh states and modules.
    fn is_initial(&self, name: &str) -> bool {
        self.floats.get(name).is_some_and(|tensor| super::identity::is_initial(tensor))
    }

    /// Returns the initializers from which an input of a node is made by operators that only move elements.
    fn behind(&self, node: &'g NodeProto, input: usize) -> Vec<&'g str> {
        let mut found = Vec::new();
        let mut stack: Vec<&str> = node.input.get(input).map(String::as_str).into_iter().collect();
        let mut seen = BTreeSet::new();
        while let Some(name) = stack.pop() {
            if !seen.insert(name) {
                continue;
            }
            if self.floats.contains_key(name) {
                found.push(name);
                continue;
            }
            let Some(producer) = self.producers.get(name) else { continue };
            match producer.op_type() {
                "Concat" => stack.extend(producer.input.iter().map(String::as_str)),
                "Unsqueeze" | "Squeeze" | "Reshape" | "Transpose" | "Slice" | "Identity" | "Expand" => {
                    stack.extend(producer.input.first().map(String::as_str));
                }
                _ => {}
            }
        }
        found
    }
}
