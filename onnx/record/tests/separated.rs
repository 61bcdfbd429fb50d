//! Tests that tensors which an exporter merged or dropped are tensors of their own again.

use super::{claim, exported, floats, loaded, ones, traced};
use crate::model::samples::{int, node};
use crate::proto::{ModelProto, NodeProto, TensorProto};
use ir::Claim;
use std::collections::BTreeMap;

const NORMS: [(&str, &str, &str); 4] = [
    ("p_a_weight", "PARAMETER", "a.weight"),
    ("p_a_bias", "PARAMETER", "a.bias"),
    ("p_b_weight", "PARAMETER", "b.weight"),
    ("p_b_bias", "PARAMETER", "b.bias"),
];

#[test]
fn merged_norms_have_tensors_of_their_own_again() {
    let first = node("LayerNormalization", &["x", "a.weight", "a.bias"], &["h"]);
    let second = node("LayerNormalization", &["h", "a.weight", "a.bias"], &["y"]);
    let nodes = vec![
        traced(first, "layer_norm", "%x, [2], %p_a_weight, %p_a_bias, 1e-05, False"),
        traced(second, "layer_norm", "%h, [2], %p_b_weight, %p_b_bias, 1e-05, False"),
    ];
    let model = loaded(&exported(nodes, vec![ones("a.weight", &[2]), ones("a.bias", &[2])], &NORMS));
    let inputs: Vec<&[String]> = model.graph.nodes.iter().map(|node| &node.inputs[1..]).collect();
    assert_eq!(inputs, [["a.weight", "a.bias"], ["b.weight", "b.bias"]]);
    assert!(model.record.lost.is_empty());
    for name in ["a.weight", "a.bias", "b.weight", "b.bias"] {
        assert_eq!(claim(&model, name), Some(Claim::Parameter), "{name}");
    }
}

#[test]
fn a_zero_bias_that_was_dropped_is_back() {
    let conv = traced(node("Conv", &["x", "c.weight"], &["y"]), "conv1d", "%x, %p_c_weight, %p_c_bias");
    let listed = [("p_c_weight", "PARAMETER", "c.weight"), ("p_c_bias", "PARAMETER", "c.bias")];
    let model = loaded(&exported(vec![conv], vec![ones("c.weight", &[3, 2, 1])], &listed));
    assert_eq!(model.graph.nodes[0].inputs, ["x", "c.weight", "c.bias"]);
    let bias = model.graph.tensor("c.bias").expect("the bias is there");
    assert_eq!(bias.dims, [3]);
    assert!(bias.present().is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0)));
    assert!(model.record.lost.is_empty());
}

#[test]
fn a_zero_bias_of_a_transposed_weight_is_back() {
    // `functional.linear(x, w.t(), bias)` with a weight that is too large to be transposed in advance.
    let turned = traced(node("Transpose", &["w"], &["t"]), "t", "%p_w");
    let product = traced(node("Gemm", &["x", "t"], &["y"]), "linear", "%x, %t, %p_b");
    let product = NodeProto { attribute: vec![int("transB", 1)], ..product };
    let listed = [("p_w", "PARAMETER", "w"), ("p_b", "PARAMETER", "outer")];
    let model = loaded(&exported(vec![turned, product], vec![floats("w", &[2, 3], 1.0, 2.0)], &listed));
    assert_eq!(model.graph.nodes[1].inputs, ["x", "t", "outer"]);
    assert_eq!(model.graph.tensor("outer").map(|bias| bias.dims.clone()), Some(vec![3]));
}

#[test]
fn identities_of_the_legacy_exporter_are_separated_where_all_elements_are_equal() {
    let nodes = vec![
        node("Identity", &["a.weight"], &["b.weight"]),
        node("Identity", &["a.scale"], &["b.scale"]),
        node("Mul", &["x", "b.weight"], &["h"]),
        node("Mul", &["h", "b.scale"], &["y"]),
    ];
    let tensors = vec![ones("a.weight", &[2]), floats("a.scale", &[2], 1.0, 2.0)];
    let model = loaded(&exported(nodes, tensors, &[]));
    assert!(model.graph.tensor("b.weight").is_some() && model.graph.tensor("b.scale").is_none());
    assert_eq!(claim(&model, "b.weight"), Some(Claim::Named));
    let warnings = model.record.warnings(&model.graph, &BTreeMap::new());
    assert!(warnings[0].message.contains("`b.scale` and `a.scale` have the same bytes"), "{}", warnings[0]);
}

#[test]
fn without_a_record_untied_gives_each_norm_its_own_tensors() {
    let nodes = vec![
        node("LayerNormalization", &["x", "one", "offset"], &["h"]),
        node("LayerNormalization", &["h", "one", "offset"], &["y"]),
    ];
    let mut file = exported(nodes, vec![ones("one", &[2]), floats("offset", &[2], 1.0, 2.0)], &[]);
    let read = |file: &ModelProto, untied: bool| {
        let mut file = file.clone();
        crate::record::restore(&mut file, untied);
        let graph = file.graph.expect("it has a graph");
        (graph.node[1].input.clone(), graph.initializer.len())
    };
    assert_eq!(read(&file, false), (vec!["h".into(), "one".into(), "offset".into()], 2));
    // Tensors with unequal elements are equal for another reason than their initialisation, so they stay tied.
    let separated = (vec!["h".into(), "one.2".into(), "offset".into()], 3);
    assert_eq!(read(&file, true), separated);
    file.producer_name = Some("another".into());
    assert_eq!(read(&file, true), separated);
}

/// Returns the inputs of each node from the second on, after equal tensors were separated.
fn separated(nodes: Vec<NodeProto>, tensors: Vec<TensorProto>) -> (Vec<Vec<String>>, Vec<String>) {
    let mut file = exported(nodes, tensors, &[]);
    let record = crate::record::restore(&mut file, false);
    let graph = file.graph.expect("it has a graph");
    let inputs = graph.node.iter().map(|node| node.input[1..].to_vec()).collect();
    (inputs, record.separated.into_keys().collect())
}

fn gemm(inputs: [&str; 3], output: &str) -> NodeProto {
    node("Gemm", &inputs, &[output])
}

#[test]
fn equal_tensors_that_an_optimiser_merged_are_apart_again() {
    let own = |name: &str| floats(name, &[2, 2], 1.0, 2.0);
    // Two linear layers, each followed by a norm; all biases are zero.
    let nodes = vec![
        gemm(["x", "a.weight", "a.bias"], "h"),
        node("LayerNormalization", &["h", "n1.weight", "a.bias"], &["n"]),
        gemm(["n", "b.weight", "a.bias"], "i"),
        node("LayerNormalization", &["i", "n1.weight", "a.bias"], &["j"]),
        gemm(["j", "c.weight", "a.bias"], "y"),
    ];
    let tensors = vec![
        own("a.weight"),
        floats("a.bias", &[2], 0.0, 0.0),
        ones("n1.weight", &[2]),
        own("b.weight"),
        own("c.weight"),
    ];
    let (inputs, merged) = separated(nodes, tensors);
    let expected = [
        ["a.weight", "a.bias"],
        ["n1.weight", "a.bias.2"],
        ["b.weight", "b.bias"],
        ["n1.weight.2", "a.bias.3"],
        ["c.weight", "c.bias"],
    ];
    assert_eq!(inputs, expected);
    assert_eq!(merged, ["a.bias", "n1.weight"]);
}

#[test]
fn zero_matrices_of_several_layers_are_apart_and_those_of_a_shared_block_are_one() {
    let tensors = |second: &str| {
        let matrix = |name: &str| floats(name, &[2, 2], 1.0, 2.0);
        let nodes = vec![
            node("MatMul", &["x", "l.0.A"], &["a"]),
            node("MatMul", &["a", "l.0.B"], &["b"]),
            node("MatMul", &["b", second], &["c"]),
            node("MatMul", &["c", "l.0.B"], &["d"]),
            node("MatMul", &["d", "head"], &["y"]),
        ];
        separated(
            nodes,
            vec![matrix("l.0.A"), matrix("l.1.A"), matrix("head"), floats("l.0.B", &[2, 2], 0.0, 0.0)],
        )
    };
    assert_eq!(tensors("l.1.A").0[3], ["l.0.B.2"]);
    // The same block, called twice.
    assert_eq!(tensors("l.0.A").0[3], ["l.0.B"]);
}

#[test]
fn the_names_of_nodes_tell_a_module_that_is_called_twice_from_two_modules() {
    let norms = |second: &str| {
        let named = |name: &str, input: &str, output: &str| NodeProto {
            name: Some(name.into()),
            ..node("LayerNormalization", &[input, "n1.weight", "n1.bias"], &[output])
        };
        let nodes = vec![
            named("/n1/LayerNormalization", "x", "a"),
            node("MatMul", &["a", "w"], &["b"]),
            named(second, "b", "y"),
        ];
        let tensors =
            vec![ones("n1.weight", &[2]), floats("n1.bias", &[2], 0.0, 0.0), floats("w", &[2, 2], 1.0, 2.0)];
        separated(nodes, tensors).0[2].clone()
    };
    assert_eq!(norms("/n2/LayerNormalization"), ["n2.weight", "n2.bias"]);
    assert_eq!(norms("/n1_1/LayerNormalization"), ["n1.weight", "n1.bias"]);
}

#[test]
fn a_constant_of_a_norm_is_kept_apart_from_the_tensor_that_it_was_merged_with() {
    let norm = node("InstanceNormalization", &["x", "running_var", "running_mean"], &["y"]);
    let norm = traced(norm, "instance_norm", "%x, None, None, None, None, True, 0.1, 1e-05, False");
    let listed =
        [("b_m", "BUFFER", "running_mean"), ("b_v", "BUFFER", "running_var"), ("p_w", "PARAMETER", "w")];
    let tensors = vec![ones("running_var", &[2]), floats("running_mean", &[2], 0.0, 0.0)];
    let model = loaded(&exported(vec![norm], tensors, &listed));
    assert_eq!(model.graph.nodes[0].inputs, ["x", "running_var.constant", "running_mean.constant"]);
    // One parameter is lost. Nevertheless the constants are not parameters.
    assert_eq!(model.record.lost, ["w"]);
    assert_eq!(claim(&model, "running_var.constant"), Some(Claim::Unlisted));
}
