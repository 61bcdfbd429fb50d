//! A visitor of all tensors in the messages of a model.

use super::{AttributeProto, GraphProto, ModelProto, TensorProto};

/// Visits every dense tensor of the model: initializers, attributes, and those of subgraphs and functions.
pub(crate) fn each_tensor(model: &mut ModelProto, visit: &mut dyn FnMut(&mut TensorProto)) {
    if let Some(graph) = &mut model.graph {
        each_in_graph(graph, visit);
    }
    for training in &mut model.training_info {
        let graphs = [&mut training.initialization, &mut training.algorithm];
        graphs.into_iter().flatten().for_each(|graph| each_in_graph(graph, visit));
    }
    for function in &mut model.functions {
        function.attribute_proto.iter_mut().for_each(|attribute| each_in_attribute(attribute, visit));
        let attributes = function.node.iter_mut().flat_map(|node| &mut node.attribute);
        attributes.for_each(|attribute| each_in_attribute(attribute, visit));
    }
}

fn each_in_graph(graph: &mut GraphProto, visit: &mut dyn FnMut(&mut TensorProto)) {
    graph.initializer.iter_mut().for_each(&mut *visit);
    let attributes = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
    attributes.for_each(|attribute| each_in_attribute(attribute, visit));
}

fn each_in_attribute(attribute: &mut AttributeProto, visit: &mut dyn FnMut(&mut TensorProto)) {
    if let Some(tensor) = &mut attribute.t {
        visit(tensor);
    }
    attribute.tensors.iter_mut().for_each(&mut *visit);
    if let Some(graph) = &mut attribute.g {
        each_in_graph(graph, visit);
    }
    attribute.graphs.iter_mut().for_each(|graph| each_in_graph(graph, visit));
}
