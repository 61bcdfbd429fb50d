//! Tests of calls that change gradients: detached values, and bounds.

use super::{exported, floats, loaded, traced};
use crate::model::samples::node;
use crate::proto::{NodeProto, TensorProto};
use crate::recorded::Detached;

#[test]
fn a_detached_value_that_was_merged_with_another_is_told() {
    let listed = [("p_w", "PARAMETER", "w")];
    // relu(h.detach()) + relu(h): the exporter has kept only one of the two.
    let nodes = |second: &str| {
        vec![
            traced(node("Mul", &["x", "w"], &["h"]), "mul", "%x, %p_w"),
            traced(node("Relu", &["h"], &["relu"]), "relu", "%detach"),
            traced(node("Add", &["relu", second], &["y"]), "add", &format!("%relu, %{second}_1")),
        ]
    };
    let warnings = |nodes: Vec<NodeProto>| {
        let model = loaded(&exported(nodes, vec![floats("w", &[2], 1.0, 2.0)], &listed));
        let detached = Detached::find(&model.graph, &model.record);
        assert_eq!(detached.inputs(&model.graph.nodes[1]), [0]);
        detached.warnings(&model.graph).len()
    };
    assert_eq!(warnings(nodes("relu")), 1);
    assert_eq!(warnings(nodes("h")), 0);
}

/// Returns the nodes of the program into which a model's nodes are imported.
fn imported(nodes: Vec<NodeProto>, tensors: Vec<TensorProto>) -> Vec<ir::Node> {
    let listed = [("p_w", "PARAMETER", "w")];
    let model = loaded(&exported(nodes, tensors, &listed));
    let imported = crate::import(&model, &crate::ImportOptions::default()).expect("it is imported");
    assert!(imported.warnings.is_empty(), "{:?}", imported.warnings);
    imported.module.nodes().map(|(_, node)| node.clone()).collect()
}

#[test]
fn a_detach_that_is_a_node_is_honoured_without_a_warning() {
    let product = traced(node("Mul", &["x", "w"], &["h"]), "mul", "%x, %p_w");
    let detach = traced(node("Identity", &["h"], &["detach"]), "detach", "%h");
    // One call became two nodes, and only one of them reads the detached value.
    let loss = |node: NodeProto| traced(node, "mse_loss", "%x, %detach");
    let mut second = loss(node("Mul", &["d", "d"], &["y"]));
    let first = loss(node("Sub", &["x", "detach"], &["d"]));
    second.metadata_props = first.metadata_props.clone();
    let nodes = imported(vec![product, detach, first, second], vec![floats("w", &[2], 1.0, 2.0)]);
    assert_eq!(nodes.iter().filter(|node| matches!(node.op, ir::Op::Detach(_))).count(), 1);
}

#[test]
fn a_clamp_to_a_number_that_became_a_maximum_is_a_bound_and_a_maximum_is_none() {
    use ir::ops::elementwise::Binary;
    let bound = |operator: &str, arguments: &str| {
        let product = traced(node("Mul", &["x", "w"], &["h"]), "mul", "%x, %p_w");
        let max = traced(node("Max", &["h", "low"], &["y"]), operator, arguments);
        let tensors = vec![floats("w", &[2], 1.0, 2.0), floats("low", &[], 0.0, 0.0)];
        imported(vec![product, max], tensors)
            .iter()
            .any(|node| matches!(node.op, ir::Op::Binary(Binary::AtLeast)))
    };
    assert!(bound("clamp", "%h, %scalar_tensor_default"));
    assert!(!bound("clamp", "%h, %low") && !bound("maximum", "%h, %low"));
}
