//! The difference between two files as text, for the message of a failure.

use onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};
use std::collections::BTreeMap;

/// The nodes, tensors, values and operator sets that only one of two files has, each on a line: with `-` for the first file and `+` for the
/// second.
pub(super) fn differences(before: &ModelProto, after: &ModelProto) -> String {
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    parts(before).into_iter().for_each(|part| *counts.entry(part).or_default() -= 1);
    parts(after).into_iter().for_each(|part| *counts.entry(part).or_default() += 1);
    let line = |(part, count): (String, i64)| match count {
        0 => String::new(),
        ..0 => format!("- {part}\n"),
        1.. => format!("+ {part}\n"),
    };
    counts.into_iter().map(line).collect()
}

fn parts(model: &ModelProto) -> Vec<String> {
    let opsets = model.opset_import.iter().map(|opset| format!("{opset:?}"));
    let graphs = model.graph.iter().flat_map(of_graph);
    let functions = model.functions.iter().flat_map(|function| function.node.iter().map(node));
    opsets.chain(graphs).chain(functions).collect()
}

fn of_graph(graph: &GraphProto) -> Vec<String> {
    let values = |kind: &'static str, values: &[ValueInfoProto]| -> Vec<String> {
        values.iter().map(|value| format!("{kind} {:?} {:?}", value.name, value.r#type)).collect()
    };
    let inner =
        graph.node.iter().flat_map(|node| &node.attribute).filter_map(|attribute| attribute.g.as_deref());
    [
        graph.node.iter().map(node).collect(),
        graph.initializer.iter().map(tensor).collect(),
        values("input", &graph.input),
        values("output", &graph.output),
        values("value", &graph.value_info),
        inner.flat_map(of_graph).collect(),
    ]
    .concat()
}

fn node(node: &NodeProto) -> String {
    let name = node.op_type.as_deref().unwrap_or_default();
    let attributes: Vec<String> = node.attribute.iter().map(attribute).collect();
    format!("{} = {name}({}) {}", node.output.join(", "), node.input.join(", "), attributes.join(" "))
}

fn attribute(attribute: &AttributeProto) -> String {
    let AttributeProto { name, i, f, s, t, ints, floats, strings, .. } = attribute;
    let tensor = t.as_deref().map(tensor);
    let name = name.as_deref().unwrap_or_default();
    // Most of these fields are empty.
    let value = format!("{i:?}{f:?}{s:?}{tensor:?}{ints:?}{floats:?}{strings:?}");
    format!("{name}={}", value.replace("None", "").replace("[]", ""))
}

/// A tensor with a checksum of its elements.
fn tensor(tensor: &TensorProto) -> String {
    let TensorProto { name, data_type, dims, raw_data, .. } = tensor;
    let elements = match raw_data {
        Some(raw) => format!("crc32 {:08x}", crc32fast::hash(raw)),
        None => format!("{:?}{:?}{:?}", tensor.float_data, tensor.int32_data, tensor.int64_data),
    };
    format!("tensor {name:?} type {data_type:?} {dims:?} {elements}")
}
