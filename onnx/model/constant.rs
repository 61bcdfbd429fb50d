//! `Constant` nodes, each of which becomes a tensor.

use bytes::Bytes;

use super::{Attribute, Node};
use crate::error::Problem;
use crate::tensor::{ElementType, Tensor, TensorBytes, TensorSource};

/// The names of the attributes of a `Constant` node, which has exactly one of them.
pub(crate) const VALUE_ATTRIBUTES: [&str; 8] = [
    "value",
    "value_float",
    "value_floats",
    "value_int",
    "value_ints",
    "value_string",
    "value_strings",
    "sparse_value",
];

/// Returns the tensor of a `Constant` node. The tensor is moved out of the node's attribute.
pub(super) fn value(node: &mut Node, source: TensorSource) -> Result<Tensor, Problem> {
    let [output] = &node.outputs[..] else {
        return Err(Problem::new(format!("a Constant has one output; this node has {}", node.outputs.len())));
    };
    if output.is_empty() {
        return Err(Problem::new("the output of Constant has no name"));
    }
    let name = output.clone();
    let mut given = VALUE_ATTRIBUTES.iter().filter_map(|attribute| node.attributes.remove_entry(*attribute));
    let (Some((attribute, value)), None) = (given.next(), given.next()) else {
        let message = format!("Constant needs exactly one of {}", VALUE_ATTRIBUTES.join(", "));
        return Err(Problem::new(message));
    };
    drop(given);
    let metadata = std::mem::take(&mut node.metadata);
    let tensor = |dtype, dims, bytes| Tensor { name: name.clone(), dtype, dims, bytes, source, metadata };
    let bytes = |raw: Vec<u8>| TensorBytes::Present(Bytes::from(raw));
    Ok(match (&attribute[..], value) {
        ("value", Attribute::Tensor(value)) => tensor(value.dtype, value.dims, value.bytes),
        ("value_float", Attribute::Float(value)) => {
            tensor(ElementType::F32, vec![], bytes(value.to_le_bytes().to_vec()))
        }
        ("value_floats", Attribute::Floats(values)) => {
            let raw = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            tensor(ElementType::F32, vec![values.len()], bytes(raw))
        }
        ("value_int", Attribute::Int(value)) => {
            tensor(ElementType::I64, vec![], bytes(value.to_le_bytes().to_vec()))
        }
        ("value_ints", Attribute::Ints(values)) => {
            let raw = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            tensor(ElementType::I64, vec![values.len()], bytes(raw))
        }
        ("value_string", Attribute::String(value)) => {
            tensor(ElementType::String, vec![], TensorBytes::Strings(vec![value.into()]))
        }
        ("value_strings", Attribute::Strings(values)) => {
            let dims = vec![values.len()];
            tensor(
                ElementType::String,
                dims,
                TensorBytes::Strings(values.into_iter().map(Bytes::from).collect()),
            )
        }
        ("sparse_value", Attribute::Sparse(_)) => {
            let problem = Problem::new("Constant has a sparse value; only dense values can be read");
            return Err(problem.note("make the tensor dense before the export"));
        }
        (name, value) => {
            return Err(Problem::new(format!("attribute {name} of Constant is of type {}", value.kind())));
        }
    })
}
