//! Changes of nodes: operators, edges, attributes and their order.

use super::super::choices::Choices;
use super::{float, integer, tensors};
use bytes::Bytes;
use onnx::proto::{AttributeProto, AttributeType, NodeProto};
use std::sync::LazyLock;

/// The names of the operators of ONNX's own node tests, from the generated table of coverage.
static OPERATORS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let rows = include_str!("../../../docs/onnx-coverage.md").lines();
    let names = rows.filter_map(|row| row.strip_prefix("| ")?.split(' ').next());
    names.filter(|name| name.starts_with(|first: char| first.is_ascii_uppercase())).collect()
});

/// Names of attributes that several operators have.
const ATTRIBUTES: [&str; 32] = [
    "axis",
    "axes",
    "keepdims",
    "perm",
    "to",
    "alpha",
    "beta",
    "epsilon",
    "transA",
    "transB",
    "group",
    "kernel_shape",
    "strides",
    "pads",
    "dilations",
    "auto_pad",
    "ceil_mode",
    "mode",
    "num_heads",
    "is_causal",
    "reduction",
    "ignore_index",
    "exclusive",
    "reverse",
    "largest",
    "sorted",
    "direction",
    "hidden_size",
    "equation",
    "num_outputs",
    "count_include_pad",
    "noop_with_empty_axes",
];

/// Texts that attributes have.
const TEXTS: [&str; 16] = [
    "",
    "SAME_UPPER",
    "SAME_LOWER",
    "VALID",
    "NOTSET",
    "mean",
    "sum",
    "none",
    "add",
    "mul",
    "linear",
    "cubic",
    "nearest",
    "bidirectional",
    "reverse",
    "ij,jk->ik",
];

/// Makes one change in a list of nodes; `names` are the values that the nodes can read.
pub(super) fn change(nodes: &mut Vec<NodeProto>, names: &[String], choices: &mut Choices) {
    if nodes.is_empty() || choices.once_in(12) {
        return insert(nodes, names, choices);
    }
    let (place, other) = (choices.below(nodes.len()), choices.below(nodes.len()));
    match choices.below(14) {
        0 => nodes[place].op_type = choices.of(&OPERATORS).map(|&name| name.to_owned()),
        1 => {
            let name = nodes[place].op_type.clone();
            nodes[place].op_type = nodes[other].op_type.clone();
            nodes[other].op_type = name;
        }
        2..=4 => change_input(&mut nodes[place], names, choices),
        5 => swap_edges(nodes, place, other, choices),
        6 => nodes.swap(place, other),
        7 => {
            let mut again = nodes[place].clone();
            // The copy gets results of its own, or seldom the same names again.
            if !choices.once_in(8) {
                again.output.iter_mut().filter(|name| !name.is_empty()).for_each(|name| name.push('\''));
            }
            nodes.insert(other, again);
        }
        8 => drop(nodes.remove(place)),
        9 => change_count(&mut nodes[place], choices),
        _ => change_attribute(&mut nodes[place], choices),
    }
}

/// Adds a new node. Its result replaces its operand in one of the later nodes.
fn insert(nodes: &mut Vec<NodeProto>, names: &[String], choices: &mut Choices) {
    let name = |choices: &mut Choices| choices.of(names).cloned().unwrap_or_default();
    let operand = name(choices);
    let output = format!("new{}", choices.below(1000));
    let count = choices.below(3);
    let node = NodeProto {
        input: std::iter::once(operand.clone()).chain((0..count).map(|_| name(choices))).collect(),
        output: vec![output.clone()],
        op_type: choices.of(&OPERATORS).map(|&name| name.to_owned()),
        ..NodeProto::default()
    };
    let reads = |node: &NodeProto| node.input.contains(&operand);
    let place = nodes.iter().position(reads).unwrap_or(nodes.len());
    if let Some(input) =
        nodes.get_mut(place).and_then(|node| node.input.iter_mut().find(|name| **name == operand))
    {
        *input = output;
    }
    nodes.insert(place, node);
}

/// Replaces, adds, removes or empties an operand.
fn change_input(node: &mut NodeProto, names: &[String], choices: &mut Choices) {
    let name = choices.of(names).cloned().unwrap_or_default();
    match choices.below(6) {
        0 => node.input.push(name),
        1 => drop(node.input.pop()),
        2 => choices.change(&mut node.input, String::clear),
        _ => choices.change(&mut node.input, |input| *input = name),
    }
}

/// Swaps an operand of one node with an operand of another.
fn swap_edges(nodes: &mut [NodeProto], first: usize, second: usize, choices: &mut Choices) {
    let (from, to) = (choices.below(nodes[first].input.len()), choices.below(nodes[second].input.len()));
    let (Some(a), Some(b)) = (nodes[first].input.get(from).cloned(), nodes[second].input.get(to).cloned())
    else {
        return;
    };
    (nodes[first].input[from], nodes[second].input[to]) = (b, a);
}

/// Adds or removes a result, or removes the name of one.
fn change_count(node: &mut NodeProto, choices: &mut Choices) {
    match choices.below(3) {
        0 => node.output.push(format!("more{}", choices.below(1000))),
        1 => drop(node.output.pop()),
        _ => choices.change(&mut node.output, String::clear),
    }
}

fn change_attribute(node: &mut NodeProto, choices: &mut Choices) {
    if node.attribute.is_empty() || choices.once_in(5) {
        node.attribute.push(new_attribute(choices));
        return;
    }
    let place = choices.below(node.attribute.len());
    match choices.below(10) {
        0 => drop(node.attribute.remove(place)),
        1 => node.attribute[place].name = Some(ATTRIBUTES[choices.below(ATTRIBUTES.len())].to_owned()),
        2 => {
            let value = new_attribute(choices);
            let name = std::mem::take(&mut node.attribute[place].name);
            node.attribute[place] = AttributeProto { name, ..value };
        }
        _ => change_value(&mut node.attribute[place], choices),
    }
}

/// Changes a value of an attribute, and keeps its type.
fn change_value(attribute: &mut AttributeProto, choices: &mut Choices) {
    if let Some(value) = &mut attribute.i {
        *value = integer(choices);
    }
    if let Some(value) = &mut attribute.f {
        *value = float(choices);
    }
    if let Some(value) = &mut attribute.s {
        *value = text(choices);
    }
    if let Some(tensor) = &mut attribute.t {
        tensors::change(tensor, choices);
    }
    change_list(&mut attribute.ints, integer, choices);
    change_list(&mut attribute.floats, float, choices);
    change_list(&mut attribute.strings, text, choices);
}

/// Replaces, adds or removes an element; an empty list stays empty.
fn change_list<T>(list: &mut Vec<T>, new: fn(&mut Choices) -> T, choices: &mut Choices) {
    if list.is_empty() {
        return;
    }
    match choices.below(5) {
        0 => list.push(new(choices)),
        1 => drop(list.pop()),
        _ => {
            let value = new(choices);
            choices.change(list, |item| *item = value);
        }
    }
}

fn text(choices: &mut Choices) -> Bytes {
    Bytes::from_static(TEXTS[choices.below(TEXTS.len())].as_bytes())
}

fn new_attribute(choices: &mut Choices) -> AttributeProto {
    let name = Some(ATTRIBUTES[choices.below(ATTRIBUTES.len())].to_owned());
    let attribute = AttributeProto { name, ..AttributeProto::default() };
    let (ty, attribute) = match choices.below(6) {
        0 | 1 => (AttributeType::Int, AttributeProto { i: Some(integer(choices)), ..attribute }),
        2 => (AttributeType::Float, AttributeProto { f: Some(float(choices)), ..attribute }),
        3 => (AttributeType::String, AttributeProto { s: Some(text(choices)), ..attribute }),
        4 => {
            (AttributeType::Tensor, AttributeProto { t: Some(Box::new(tensors::new(choices))), ..attribute })
        }
        _ => {
            let ints = (0..choices.below(5)).map(|_| integer(choices)).collect();
            (AttributeType::Ints, AttributeProto { ints, ..attribute })
        }
    };
    AttributeProto { r#type: Some(ty as i32), ..attribute }
}
