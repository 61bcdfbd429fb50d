//! `--untied` without a record: each node that reads a merged norm or bias gets a tensor of its own.

use super::identity::is_initial;
use super::{free_name, is_float, taken_names};
use crate::proto::{GraphProto, NodeProto, TensorProto};
use std::collections::{BTreeMap, BTreeSet};

/// Gives every reader but the first of an initializer with the elements that modules begin with a copy, where it reads it as a norm's scale or
/// bias, or as a bias.
pub(super) fn separate(graph: &mut GraphProto) {
    let uniform = graph.initializer.iter().filter(|tensor| is_float(tensor) && is_initial(tensor));
    let uniform: BTreeMap<String, TensorProto> =
        uniform.map(|tensor| (tensor.name().to_owned(), tensor.clone())).collect();
    let (mut taken, mut seen, mut copies) = (taken_names(graph), BTreeSet::new(), Vec::new());
    for node in &mut graph.node {
        for i in 0..node.input.len() {
            let Some(tensor) = uniform.get(&node.input[i]).filter(|_| is_own_parameter(node, i)) else {
                continue;
            };
            if seen.insert(tensor.name().to_owned()) {
                continue;
            }
            let name = free_name(&taken, tensor.name().to_owned());
            taken.insert(name.clone());
            copies.push(TensorProto { name: Some(name.clone()), ..tensor.clone() });
            node.input[i] = name;
        }
    }
    graph.initializer.extend(copies);
}

/// Whether a module has a parameter of its own for this input.
fn is_own_parameter(node: &NodeProto, input: usize) -> bool {
    match node.op_type() {
        "LayerNormalization" | "InstanceNormalization" | "RMSNormalization" | "BatchNormalization" => {
            input > 0
        }
        "Conv" | "ConvTranspose" | "Gemm" => input == 2,
        "Add" | "Mul" => true,
        _ => false,
    }
}
