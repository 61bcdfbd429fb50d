//! Packed weights: a recurrent layer of ONNX keeps several parameters of the module in one tensor.

use super::names::is_bias;
use super::signature::Signature;
use super::traced::{self, TracedCall};
use super::{is_float, metadata};
use crate::proto::{GraphProto, TensorProto};
use std::collections::BTreeSet;

/// The packed tensors of a graph.
#[derive(Debug, Default)]
pub(super) struct Packed<'s> {
    /// The names of the initializers.
    pub(super) tensors: BTreeSet<String>,
    /// The parameters that they hold.
    pub(super) parameters: BTreeSet<&'s str>,
}

/// Finds the recurrent nodes whose weights are initializers. A node whose weights are computed reads the parameters one by one.
pub(super) fn find<'s>(graph: &GraphProto, signature: &Signature<'s>) -> Packed<'s> {
    let floats = graph.initializer.iter().filter(|tensor| is_float(tensor)).map(TensorProto::name);
    let floats: BTreeSet<&str> = floats.collect();
    let mut packed = Packed::default();
    for node in graph.node.iter().filter(|node| matches!(node.op_type(), "LSTM" | "GRU" | "RNN")) {
        let Some(call) = metadata(node, traced::KEY).and_then(TracedCall::parse) else { continue };
        // The weights, the recurrent weights and the biases of all gates.
        let inputs: Vec<&String> =
            node.input.iter().skip(1).take(3).filter(|name| !name.is_empty()).collect();
        if inputs.len() < 2 || !inputs.iter().all(|name| floats.contains(&name[..])) {
            continue;
        }
        let has_biases = inputs.len() == 3;
        let listed = call.weights().into_iter().filter_map(|symbol| signature.find(symbol));
        let names = listed.map(|listed| listed.name).filter(|name| has_biases || !is_bias(name));
        packed.parameters.extend(names);
        packed.tensors.extend(inputs.into_iter().cloned());
    }
    packed
}
