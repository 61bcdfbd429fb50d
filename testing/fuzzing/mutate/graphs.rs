//! Changes of the nodes, tensors and values of a whole graph.

use super::super::choices::Choices;
use super::{nodes, tensors, values};
use onnx::proto::{GraphProto, NodeProto, TensorProto, ValueInfoProto};

/// The graph itself, or a subgraph of one of its nodes.
pub(super) fn choose<'a>(graph: &'a mut GraphProto, choices: &mut Choices) -> &'a mut GraphProto {
    let inner = |node: &NodeProto| node.attribute.iter().any(|attribute| attribute.g.is_some());
    let count = graph.node.iter().filter(|node| inner(node)).count();
    if count == 0 || choices.once_in(2) {
        return graph;
    }
    let place = choices.below(count);
    let node = graph.node.iter_mut().filter(|node| inner(node)).nth(place).expect("so many were counted");
    let graphs: Vec<_> =
        node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_deref_mut()).collect();
    let place = choices.below(graphs.len());
    let graph = graphs.into_iter().nth(place).expect("the node has such an attribute");
    choose(graph, choices)
}

/// One change of a graph.
pub(super) fn change(graph: &mut GraphProto, choices: &mut Choices) {
    match choices.below(12) {
        0..=5 => {
            let names = names(graph);
            nodes::change(&mut graph.node, &names, choices);
        }
        6 => {
            if let Some(tensor) = choices.of_mut(&mut graph.initializer) {
                tensors::change(tensor, choices);
            }
        }
        7 => match choices.below(3) {
            0 => values::change(&mut graph.input, choices),
            1 => values::change(&mut graph.output, choices),
            _ => values::change(&mut graph.value_info, choices),
        },
        8 => change_outputs(graph, choices),
        9 => give_tensor(graph, choices),
        10 => take_tensor(graph, choices),
        _ => drop_one(graph, choices),
    }
}

/// The names of all values of a graph.
pub(super) fn names(graph: &GraphProto) -> Vec<String> {
    let inputs = graph.input.iter().filter_map(|input| input.name.clone());
    let tensors = graph.initializer.iter().filter_map(|tensor| tensor.name.clone());
    let results = graph.node.iter().flat_map(|node| node.output.iter().cloned());
    inputs.chain(tensors).chain(results).filter(|name| !name.is_empty()).collect()
}

/// Replaces, adds or removes an output.
fn change_outputs(graph: &mut GraphProto, choices: &mut Choices) {
    let name = choices.of(&names(graph)).cloned();
    match choices.below(3) {
        0 => choices.change(&mut graph.output, |output| output.name = name.clone()),
        1 => graph.output.push(ValueInfoProto { name, ..ValueInfoProto::default() }),
        _ if graph.output.len() > 1 => drop(graph.output.remove(choices.below(graph.output.len()))),
        _ => {}
    }
}

/// An input becomes a tensor of the file, which is then trained or constant.
fn give_tensor(graph: &mut GraphProto, choices: &mut Choices) {
    if graph.input.is_empty() {
        return;
    }
    let place = choices.below(graph.input.len());
    if let Some(tensor) = tensors::of_input(&graph.input[place], choices) {
        graph.input.remove(place);
        graph.initializer.push(tensor);
    }
}

/// A tensor of the file becomes an input.
fn take_tensor(graph: &mut GraphProto, choices: &mut Choices) {
    if graph.initializer.is_empty() {
        return;
    }
    let TensorProto { name, data_type, dims, .. } =
        graph.initializer.remove(choices.below(graph.initializer.len()));
    graph.input.push(values::tensor_value(name, data_type, &dims));
}

/// Leaves out an input or a tensor, or lists it twice.
fn drop_one(graph: &mut GraphProto, choices: &mut Choices) {
    fn one<T: Clone>(list: &mut Vec<T>, choices: &mut Choices) {
        if list.is_empty() {
            return;
        }
        let place = choices.below(list.len());
        if choices.once_in(2) {
            list.remove(place);
        } else {
            list.push(list[place].clone());
        }
    }
    match choices.below(3) {
        0 => one(&mut graph.input, choices),
        1 => one(&mut graph.initializer, choices),
        _ => one(&mut graph.value_info, choices),
    }
}

/// Appends the nodes of another graph. The first input of the other graph becomes a value of this graph, and its outputs become outputs of
/// this graph.
pub(super) fn cross(graph: &mut GraphProto, other: &GraphProto, choices: &mut Choices) {
    let known = names(graph);
    let mut other = other.clone();
    let prefix = format!("x{}.", choices.below(1000));
    let joined = other.input.first().and_then(|input| input.name.clone());
    let base = choices.of(&known).cloned();
    let rename = |name: &mut String| {
        if let Some(base) = base.as_ref().filter(|_| joined.as_ref() == Some(name)) {
            name.clone_from(base);
        } else if !name.is_empty() {
            name.insert_str(0, &prefix);
        }
    };
    for node in &mut other.node {
        node.input.iter_mut().chain(&mut node.output).for_each(rename);
    }
    other.initializer.iter_mut().filter_map(|tensor| tensor.name.as_mut()).for_each(rename);
    let values = other.input.iter_mut().skip(usize::from(base.is_some())).chain(&mut other.output);
    values.filter_map(|value| value.name.as_mut()).for_each(rename);
    graph.node.extend(other.node);
    graph.initializer.extend(other.initializer);
    graph.input.extend(other.input.into_iter().skip(usize::from(base.is_some())));
    if choices.once_in(2) {
        graph.output.clear();
    }
    graph.output.extend(other.output);
}
