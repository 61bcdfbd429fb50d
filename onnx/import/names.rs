//! Module paths of tensors that the exporter renamed.
//!
//! Exporters transpose the weight of a linear layer and name it `val_110` or `onnx::MatMul_596`. The node that reads it still
//! names its module: dynamo in `pkg.torch.onnx.name_scopes`, the legacy exporter in the node's name.

use crate::record::{Record, is_generated};
use crate::recorded::module_path;
use crate::{Graph, Node, Tensor, Value, ValueType};
use std::collections::{BTreeMap, BTreeSet};

/// Returns other names for tensors of the file, best first.
pub(crate) fn aliases(graph: &Graph, record: &Record) -> BTreeMap<String, Vec<String>> {
    let mut aliases: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, recorded) in record.tensors.iter().filter(|(name, recorded)| **name != recorded.name) {
        aliases.entry(name.clone()).or_default().push(recorded.name.clone());
    }
    for (other, held) in &record.tied {
        let holders = record.tensors.iter().filter(|(_, recorded)| recorded.name == *held);
        holders.for_each(|(name, _)| aliases.entry(name.clone()).or_default().push(other.clone()));
    }
    // The module that reads a renamed tensor is known. The name of the parameter is guessed from the operator.
    let renamed = graph.tensors.iter().filter(|tensor| is_generated(&tensor.name));
    let renamed =
        renamed.filter(|tensor| !record.tensors.contains_key(&tensor.name) && tensor.element_count() > 1);
    let renamed: BTreeMap<&str, &Tensor> = renamed.map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let listed: BTreeSet<&str> = record.tensors.values().map(|recorded| &recorded.name[..]).collect();
    let stored: BTreeSet<&str> = graph.tensors.iter().map(|tensor| &tensor.name[..]).collect();
    let mut vectors: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for node in &graph.nodes {
        for (i, input) in
            node.inputs.iter().enumerate().filter(|(_, name)| renamed.contains_key(name.as_str()))
        {
            let Some(path) = module_path(node) else { continue };
            let Some(leaf) = leaf(node, i, renamed[input.as_str()]) else { continue };
            let path = format!("{path}.{leaf}");
            let is_another = listed.contains(&path[..]) || stored.contains(&path[..]);
            if matches!(node.op_type.as_str(), "Mul" | "Add") {
                vectors.entry(path.clone()).or_default().insert(input);
            }
            let names = aliases.entry(input.clone()).or_default();
            if !names.contains(&path) && !is_another {
                names.push(path);
            }
        }
    }
    // A module has only one parameter of a name. If several vectors could be this parameter, all of these names are dropped.
    for tensors in vectors.values().filter(|tensors| tensors.len() > 1) {
        tensors.iter().for_each(|tensor| drop(aliases.remove(*tensor)));
    }
    aliases.retain(|_, names| !names.is_empty());
    aliases
}

/// Returns the name that PyTorch's modules use for a parameter that a node reads as this input. `None` for an input that has no
/// parameter in any module.
fn leaf(node: &Node, input: usize, tensor: &Tensor) -> Option<&'static str> {
    let is_vector = tensor.dims.iter().filter(|&&size| size > 1).count() == 1;
    match (node.op_type.as_str(), input) {
        ("Conv" | "ConvTranspose" | "Gemm" | "LayerNormalization" | "InstanceNormalization", 2) => {
            Some("bias")
        }
        ("Conv" | "ConvTranspose" | "Gemm" | "LayerNormalization" | "InstanceNormalization", 1) => {
            Some("weight")
        }
        ("MatMul" | "PRelu" | "BatchNormalization", 1) | ("Gather", 0) => Some("weight"),
        ("BatchNormalization", 2) => Some("bias"),
        // A group norm is exported as several nodes. A matrix that is added or multiplied is a table, not a parameter of a norm.
        ("Mul", _) if is_vector => Some("weight"),
        ("Add", _) if is_vector => Some("bias"),
        _ => None,
    }
}

/// Returns a hint on exporting a model that takes a cache of keys and values. `None` if no input is a cache.
pub fn cache_hint(graph: &Graph) -> Option<String> {
    let is_cache = |input: &&Value| {
        let ValueType::Tensor(ty) = &input.ty else { return false };
        let has_heads = ty.dims.as_ref().is_some_and(|dims| dims.len() >= 3);
        ty.dtype.is_float() && has_heads && input.name.starts_with("past")
    };
    let mut caches = graph.inputs.iter().filter(is_cache);
    let first = caches.next()?;
    let others = match caches.count() {
        0 => "is".to_owned(),
        more => format!("and {more} more inputs are"),
    };
    Some(format!(
        "`{}` {others} a cache of keys and values, which a model has no use for in training: export the model without it, with \
         use_cache=False (Optimum: --task text-generation in place of text-generation-with-past)",
        first.name
    ))
}
