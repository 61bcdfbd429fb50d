//! Identities: the legacy exporter merges initializers with equal bytes, and replaces each by an Identity.
//!
//! It merges equal norms and biases of a fresh model, and also tied parameters. Norms and biases hold zeros and ones, and become
//! separate initializers again. All others stay tied, unless the user says that they are not.

use super::names::is_author_name;
use super::{Record, count, is_float};
use crate::proto::{GraphProto, TensorProto};
use std::collections::{BTreeMap, BTreeSet};

/// Replaces the Identities of merged initializers by initializers.
pub(super) fn separate(graph: &mut GraphProto, untied: bool, record: &mut Record) {
    let outputs: BTreeSet<String> = graph.output.iter().map(|value| value.name().to_owned()).collect();
    let tensors = graph.initializer.iter().filter(|tensor| is_float(tensor));
    let tensors: BTreeMap<String, TensorProto> =
        tensors.map(|tensor| (tensor.name().to_owned(), tensor.clone())).collect();
    let mut copies: Vec<TensorProto> = Vec::new();
    graph.node.retain(|node| {
        let ([from], [to]) = (&node.input[..], &node.output[..]) else { return true };
        let is_name = is_author_name(to) || to.starts_with("onnx::");
        let stands_for_one = node.op_type() == "Identity" && node.domain().is_empty() && is_name;
        let Some(tensor) = tensors.get(from).filter(|_| stands_for_one && !outputs.contains(to)) else {
            return true;
        };
        if !untied && !is_initial(tensor) {
            record.merged.insert(to.clone(), from.clone());
            return true;
        }
        copies.push(TensorProto { name: Some(to.clone()), ..tensor.clone() });
        false
    });
    graph.initializer.extend(copies);
}

/// Whether a tensor has the elements of a fresh module. False for data in another file, which is not read.
pub(super) fn is_initial(tensor: &TensorProto) -> bool {
    let raw = tensor.raw_data();
    if raw.is_empty() {
        let bytes: Vec<u8> = tensor.float_data.iter().flat_map(|x| x.to_le_bytes()).collect();
        return ir::is_initial(&bytes, 4);
    }
    let width = raw.len() / usize::try_from(count(tensor)).unwrap_or(0).max(1);
    ir::is_initial(raw, width)
}
