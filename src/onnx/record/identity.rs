//! Identities: the legacy exporter merges initializers of equal bytes, and leaves an Identity in place of each.
//!
//! Equal norms and biases of a fresh model come out so, and so do tied parameters. The first have one number in all their
//! elements, and become initializers again; the others stay tied.

use super::{count, is_author_name, is_float};
use crate::proto::{GraphProto, TensorProto};
use std::collections::BTreeMap;

/// Makes initializers of the Identities that stand for merged ones; returns each with the initializer it was merged with.
pub(super) fn separate(graph: &mut GraphProto) -> BTreeMap<String, String> {
    let tensors = graph.initializer.iter().filter(|tensor| is_float(tensor) && is_uniform(tensor));
    let tensors: BTreeMap<String, TensorProto> =
        tensors.map(|tensor| (tensor.name().to_owned(), tensor.clone())).collect();
    let mut separated = BTreeMap::new();
    graph.node.retain(|node| {
        let ([from], [to]) = (&node.input[..], &node.output[..]) else { return true };
        let stands_for_one = node.op_type() == "Identity" && is_author_name(to) && node.domain().is_empty();
        if !stands_for_one || !tensors.contains_key(from) {
            return true;
        }
        separated.insert(to.clone(), from.clone());
        false
    });
    let copy =
        |(to, from): (&String, &String)| TensorProto { name: Some(to.clone()), ..tensors[from].clone() };
    graph.initializer.extend(separated.iter().map(copy));
    // A graph's output is no longer defined by a node.
    let outputs: Vec<&str> = graph.output.iter().map(|value| value.name()).collect();
    separated.retain(|to, _| !outputs.contains(&&to[..]));
    separated
}

/// Whether all elements have the same bytes; of data in another file it is not known.
fn is_uniform(tensor: &TensorProto) -> bool {
    let raw = tensor.raw_data();
    let width = raw.len() / usize::try_from(count(tensor)).unwrap_or(0).max(1);
    let is_raw = width > 0 && raw.chunks(width).all(|element| *element == raw[..width]);
    let floats = &tensor.float_data;
    is_raw || !floats.is_empty() && floats.iter().all(|x| x.to_bits() == floats[0].to_bits())
}
