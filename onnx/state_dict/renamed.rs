//! Weights that the exporter transposed or reshaped and renamed: `val_110`, `onnx::MatMul_596`.

use ir::{View, ViewStep};
use smallvec::smallvec;
use std::collections::BTreeMap;

use super::{EntryCollector, StateDictEntry};
use crate::Node;
use crate::record::is_generated;
use crate::recorded::module_path;

/// Adds the weights of linear layers and the slopes of PReLU, if `is_key` accepts the name found for them.
pub(super) fn find(found: &mut EntryCollector, is_key: impl Fn(&str) -> bool) {
    let graph = found.graph;
    let mut additions: BTreeMap<&str, &Node> = BTreeMap::new();
    for node in graph.nodes.iter().filter(|node| node.op_type == "Add") {
        for input in &node.inputs {
            additions.entry(input).or_insert(node);
        }
    }
    for node in graph.nodes.iter().filter(|node| node.domain.is_empty()) {
        let Some(tensor) = found.unnamed(node, 1).filter(|tensor| is_generated(&tensor.name)) else {
            continue;
        };
        let transposed: View = smallvec![ViewStep::Transpose(smallvec![1, 0])];
        let two_dims = tensor.dims.len() == 2;
        let entry = match node.op_type.as_str() {
            "MatMul" if two_dims => weight_name(found, &additions, node).map(|name| (name, transposed)),
            "Gemm" if two_dims => {
                let as_it_lies = node.int("transB").ok().flatten().unwrap_or(0) != 0;
                let view = if as_it_lies { View::new() } else { transposed };
                weight_name(found, &additions, node).map(|name| (name, view))
            }
            // Slopes for channels have further dims of size one.
            "PRelu" if tensor.dims.iter().filter(|&&size| size != 1).count() <= 1 => {
                let slopes = tensor.dims.iter().product::<usize>() as u64;
                let view = smallvec![ViewStep::Reshape(smallvec![slopes])];
                module_path(node).map(|path| (format!("{path}.weight"), view))
            }
            _ => None,
        };
        // If a tensor has kept this name, this is another use of the weight. A tied weight that is read by a function outside of
        // its layer has no other name.
        let is_of_layer = |name: &str| !found.has_modules_below(name) || !found.is_transposed_copy(tensor);
        let is_free = |name: &str| is_key(name) && !found.tensors.contains_key(name) && is_of_layer(name);
        if let Some((name, view)) = entry.filter(|(name, _)| is_free(name)) {
            found.add(StateDictEntry::whole(name, &tensor.name, view));
        }
    }
}

/// Returns the name of a linear layer's weight: the name of its bias, if the bias kept it, with `weight` for `bias`; without a
/// bias `weight` in the node's module. `additions` has, for each value, a node that adds something to it.
fn weight_name(found: &EntryCollector, additions: &BTreeMap<&str, &Node>, node: &Node) -> Option<String> {
    let of_bias = |name: &str| Some(format!("{}weight", name.strip_suffix("bias")?));
    let named = |name: &str| found.tensors.contains_key(name) && !is_generated(name);
    if let Some(bias) = node.input(2).filter(|name| named(name)) {
        return of_bias(bias);
    }
    let output = node.output(0)?;
    let addition = additions.get(output);
    let bias = addition.and_then(|add| add.inputs.iter().find(|name| name.as_str() != output && named(name)));
    let from_bias = bias.and_then(|name| of_bias(name));
    from_bias.or_else(|| module_path(node).map(|path| format!("{path}.weight")))
}
