//! Identities: the legacy exporter merges initializers of equal bytes, and leaves an Identity in place of each.
//!
//! Equal norms and biases of a fresh model come out so, and so do tied parameters. The first have one number in all their
//! elements, and become initializers again; the others stay tied, unless the user says that they are not.

use super::{Record, count, is_author_name, is_float};
use crate::proto::{GraphProto, TensorProto};
use std::collections::{BTreeMap, BTreeSet};

/// Makes initializers of the Identities that stand for merged ones.
pub(super) fn separate(graph: &mut GraphProto, untied: bool, record: &mut Record) {
    let outputs: BTreeSet<String> = graph.output.iter().map(|value| value.name().to_owned()).collect();
    let tensors = graph.initializer.iter().filter(|tensor| is_float(tensor));
    let tensors: BTreeMap<String, TensorProto> =
        tensors.map(|tensor| (tensor.name().to_owned(), tensor.clone())).collect();
    graph.node.retain(|node| {
        let ([from], [to]) = (&node.input[..], &node.output[..]) else { return true };
        let stands_for_one = node.op_type() == "Identity" && node.domain().is_empty() && is_author_name(to);
        let Some(tensor) = tensors.get(from).filter(|_| stands_for_one && !outputs.contains(to)) else {
            return true;
        };
        if !untied && !is_uniform(tensor) {
            record.merged.insert(to.clone(), from.clone());
            return true;
        }
        record.separated.insert(to.clone(), from.clone());
        false
    });
    let copy =
        |(to, from): (&String, &String)| TensorProto { name: Some(to.clone()), ..tensors[from].clone() };
    graph.initializer.extend(record.separated.iter().map(copy));
}

/// Whether all elements have the same bytes; of data in another file it is not known.
pub(super) fn is_uniform(tensor: &TensorProto) -> bool {
    let raw = tensor.raw_data();
    let width = raw.len() / usize::try_from(count(tensor)).unwrap_or(0).max(1);
    let is_raw = width > 0 && raw.chunks(width).all(|element| *element == raw[..width]);
    let floats = &tensor.float_data;
    is_raw || !floats.is_empty() && floats.iter().all(|x| x.to_bits() == floats[0].to_bits())
}
