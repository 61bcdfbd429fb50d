//! Tests of the author's names and claims for the tensors of a file.

use super::{claim, entry, exported, floats, loaded, ones, traced};
use crate::Model;
use crate::model::samples::node;
use crate::proto::{NodeProto, TensorProto};
use crate::recorded::call;
use ir::Claim;
use std::collections::BTreeMap;

#[test]
fn packed_weights_of_a_recurrent_layer_are_parameters_that_the_file_holds() {
    let call = "%x, %p_h0, [%p_ih, %p_hh, %p_b_ih, %p_b_hh], True, 1, 0.0, False, False, True";
    let layer = |inputs: &[&str]| {
        let nodes = vec![
            traced(node("GRU", inputs, &["h"]), "gru", call),
            traced(node("Add", &["h", "val_9"], &["y"]), "add", "%h, 1"),
        ];
        let listed = [
            ("p_h0", "PARAMETER", "start"),
            ("p_ih", "PARAMETER", "g.weight_ih_l0"),
            ("p_hh", "PARAMETER", "g.weight_hh_l0"),
            ("p_b_ih", "PARAMETER", "g.bias_ih_l0"),
            ("p_b_hh", "PARAMETER", "g.bias_hh_l0"),
        ];
        let tensor = |name: &str, dims: &[i64]| floats(name, dims, 1.0, 2.0);
        let tensors = vec![
            tensor("w", &[1, 6, 2]),
            tensor("r", &[1, 6, 2]),
            tensor("b", &[1, 12]),
            tensor("start", &[2]),
            tensor("val_9", &[2]),
        ];
        loaded(&exported(nodes, tensors, &listed))
    };
    let model = layer(&["x", "w", "r", "b", "", "start"]);
    assert!(model.record.lost.is_empty(), "{:?}", model.record.lost);
    for name in ["w", "r", "b", "start"] {
        assert_eq!(claim(&model, name), Some(Claim::Parameter), "{name}");
    }
    assert_eq!(claim(&model, "val_9"), Some(Claim::Unlisted));
    // The initial state is also a parameter, but not a weight.
    let weights = model.record.weights_of(&model.graph.nodes[0]);
    assert_eq!(weights, ["g.weight_ih_l0", "g.weight_hh_l0", "g.bias_ih_l0", "g.bias_hh_l0"]);
    assert_eq!(layer(&["x", "w", "r"]).record.lost, ["g.bias_ih_l0", "g.bias_hh_l0"]);
}

/// A bidirectional layer after the exporter's optimizer: the weights of the input are computed, because they are large, and the
/// other tensors are folded.
#[test]
fn each_tensor_of_a_recurrent_layer_is_looked_at_by_itself() {
    let call = "%x, %zeros, [%p_ih, %p_hh, %p_b_ih, %p_b_hh], True, 1, 0.0, False, False, True";
    let made = |start: &str| {
        let nodes = vec![
            traced(node("Concat", &["g.weight_ih_l0", "g.weight_ih_l0"], &["joined"]), "gru", call),
            traced(node("Identity", &["joined"], &["w"]), "gru", call),
            traced(
                node("GRU", &["x", "w", "val_1", "val_2", "", "val_3"], &["y"]),
                "gru",
                &call.replace("%zeros", start),
            ),
        ];
        let listed = [
            ("p_ih", "PARAMETER", "g.weight_ih_l0"),
            ("p_hh", "PARAMETER", "g.weight_hh_l0"),
            ("p_b_ih", "PARAMETER", "g.bias_ih_l0"),
            ("p_b_hh", "PARAMETER", "g.bias_hh_l0"),
            ("p_unused", "PARAMETER", "unused"),
        ];
        let tensors = vec![
            floats("g.weight_ih_l0", &[3, 2], 1.0, 2.0),
            floats("val_1", &[1, 6, 2], 1.0, 2.0),
            floats("val_2", &[1, 12], 1.0, 2.0),
            floats("val_3", &[1, 1, 2], 0.5, 0.25),
        ];
        loaded(&exported(nodes, tensors, &listed))
    };
    let model = made("%zeros");
    assert_eq!(model.record.lost, ["unused"]);
    for name in ["g.weight_ih_l0", "val_1", "val_2"] {
        assert_eq!(claim(&model, name), Some(Claim::Parameter), "{name}");
    }
    assert_eq!(claim(&model, "val_3"), Some(Claim::Unlisted), "the author's code made the first state");
    // A first state that may have been made from a parameter that is not in the file.
    assert_eq!(claim(&made("%expand"), "val_3"), None);
}

#[test]
fn a_batch_norm_in_a_convolution_claims_none_of_its_tensors() {
    let conv = node("Conv", &["x", "c.weight", "c.bias"], &["y"]);
    let nodes = vec![traced(
        conv,
        "_native_batch_norm_legit_no_training",
        "%conv2d, %p_n_weight, %p_n_bias, %b_mean, %b_var, 0.1, 1e-05",
    )];
    let listed = [
        ("p_c_weight", "PARAMETER", "c.weight"),
        ("p_c_bias", "PARAMETER", "c.bias"),
        ("p_n_weight", "PARAMETER", "n.weight"),
        ("p_n_bias", "PARAMETER", "n.bias"),
    ];
    let tensors = vec![ones("c.weight", &[3, 2, 1]), ones("c.bias", &[3])];
    let model = loaded(&exported(nodes, tensors, &listed));
    assert_eq!(model.graph.nodes[0].inputs, ["x", "c.weight", "c.bias"]);
    assert_eq!(model.record.lost, ["n.weight", "n.bias"]);
}

#[test]
fn a_group_norm_is_told_from_the_instance_norm_in_it() {
    let nodes = ["InstanceNormalization", "Mul", "Add"].into_iter().zip([
        (["x", "one", "zero"].as_slice(), "n"),
        (["n", "scale"].as_slice(), "s"),
        (["s", "shift"].as_slice(), "y"),
    ]);
    let call = "%x, 2, %p_g_weight, %p_g_bias, 1e-05, False";
    let text = format!(
        "%g : [num_users=1] = call_function[target=torch.ops.aten.group_norm.default](args = ({call}), kwargs = {{}})"
    );
    let nodes = nodes.map(|(op, (inputs, output))| NodeProto {
        metadata_props: vec![entry(crate::record::traced::KEY, &text)],
        ..node(op, inputs, &[output])
    });
    let listed = [("p_g_weight", "PARAMETER", "g.weight"), ("p_g_bias", "PARAMETER", "g.bias")];
    let tensors = [("one", [2, 1]), ("zero", [2, 1]), ("scale", [4, 1]), ("shift", [4, 1])];
    let tensors = tensors.iter().map(|(name, dims)| ones(name, dims)).collect();
    let model = loaded(&exported(nodes.collect(), tensors, &listed));
    let author = |name: &str| model.record.tensors.get(name).map(|recorded| recorded.name.as_str());
    assert_eq!((author("scale"), author("shift")), (Some("g.weight"), Some("g.bias")));
    assert_eq!((claim(&model, "one"), claim(&model, "zero")), (Some(Claim::Unlisted), Some(Claim::Unlisted)));
}

#[test]
fn what_a_complete_list_does_not_have_is_a_constant() {
    let mul = traced(node("Mul", &["x", "w"], &["h"]), "mul", "%x, %p_w");
    let nodes = vec![mul, node("Add", &["h", "table"], &["s"]), node("Add", &["s", "val_3"], &["y"])];
    let table = |name: &str| floats(name, &[2], 1.0, 2.0);
    let tensors = vec![table("w"), table("table"), table("val_3")];
    let whole = loaded(&exported(nodes.clone(), tensors.clone(), &[("p_w", "PARAMETER", "w")]));
    assert_eq!(claim(&whole, "val_3"), Some(Claim::Unlisted));
    // A name of the trace: the tensor may have been computed from `w`.
    assert_eq!(claim(&whole, "table"), Some(Claim::Computed));
    let more = [("p_w", "PARAMETER", "w"), ("p_v", "PARAMETER", "v")];
    let partly = loaded(&exported(nodes, tensors, &more));
    assert_eq!(claim(&partly, "table"), None);
    let warnings = partly.record.warnings(&partly.graph, &BTreeMap::new());
    assert!(warnings[0].message.contains("not in the file: `v`"), "{}", warnings[0]);
}

#[test]
fn a_renamed_vector_is_guessed_to_be_of_its_module_and_a_table_is_not() {
    let named = |name: &str, node: NodeProto| NodeProto { name: Some(name.into()), ..node };
    let nodes = vec![
        named("/norm/Mul", node("Mul", &["x", "onnx::Mul_1"], &["a"])),
        named("/norm/Add", node("Add", &["a", "onnx::Add_2"], &["b"])),
        named("/m/Add", node("Add", &["b", "onnx::Add_3"], &["c"])),
        named("/m/MatMul", node("MatMul", &["onnx::MatMul_4", "c"], &["y"])),
    ];
    let tensor = |name: &str, dims: &[i64]| floats(name, dims, 1.0, 2.0);
    let tensors = vec![
        tensor("onnx::Mul_1", &[4, 1]),
        tensor("onnx::Add_2", &[4, 1]),
        tensor("onnx::Add_3", &[1, 4, 2]),
        tensor("onnx::MatMul_4", &[2, 4]),
    ];
    let model = loaded(&exported(nodes, tensors, &[]));
    let aliases = crate::import::names::aliases(&model.graph, &model.record);
    let guesses: Vec<(&str, &str)> = aliases.iter().map(|(name, all)| (&name[..], &all[0][..])).collect();
    assert_eq!(guesses, [("onnx::Add_2", "norm.bias"), ("onnx::Mul_1", "norm.weight")]);
}

/// RWKV multiplies by `mix` and by `1 - mix` for keys, values and receptances. The exporter computes `1 - mix` in advance.
#[test]
fn several_renamed_vectors_of_one_module_are_not_guessed_to_be_one_parameter() {
    let named = |name: &str, node: NodeProto| NodeProto { name: Some(name.into()), ..node };
    let nodes = vec![
        named("/m/Mul", node("Mul", &["x", "onnx::Mul_1"], &["a"])),
        named("/m/Mul_1", node("Mul", &["a", "onnx::Mul_2"], &["b"])),
        named("/m/Add", node("Add", &["b", "onnx::Add_3"], &["y"])),
    ];
    let tensor = |name: &str, first: f32| floats(name, &[4], first, 2.0);
    let tensors = vec![tensor("onnx::Mul_1", 1.0), tensor("onnx::Mul_2", 3.0), tensor("onnx::Add_3", 5.0)];
    let model = loaded(&exported(nodes, tensors, &[]));
    let aliases = crate::import::names::aliases(&model.graph, &model.record);
    assert_eq!(aliases.into_iter().collect::<Vec<_>>(), [("onnx::Add_3".into(), vec!["m.bias".into()])]);
}

#[test]
fn a_folded_weight_of_the_legacy_exporter_counts_as_named() {
    let nodes =
        vec![node("MatMul", &["x", "onnx::MatMul_5"], &["h"]), node("Add", &["h", "onnx::Add_7"], &["y"])];
    let tensors = vec![floats("onnx::MatMul_5", &[2, 2], 1.0, 2.0), floats("onnx::Add_7", &[2], 1.0, 2.0)];
    let model = loaded(&exported(nodes, tensors, &[]));
    assert_eq!(claim(&model, "onnx::MatMul_5"), Some(Claim::Named));
    assert_eq!(claim(&model, "onnx::Add_7"), None);
}

#[test]
fn a_matrix_of_experts_that_a_mask_indexes_has_its_name_and_layout() {
    let picks = |arguments: &str| {
        let product = traced(node("GatherND", &["val_1", "rows"], &["y"]), "index", arguments);
        let listed = [("p_w", "PARAMETER", "experts.down_proj")];
        loaded(&exported(
            vec![node("Cast", &["x"], &["rows"]), product],
            vec![floats("val_1", &[2, 3, 4], 1.0, 2.0)],
            &listed,
        ))
    };
    let view = |model: &Model| model.record.tensors["val_1"].view.clone();
    assert_eq!(view(&picks("%p_w, [%rows]")), Some(ir::View::new()));
    // The exporter would have moved another indexed dim to the front.
    assert_eq!(view(&picks("%p_w, [None, %rows]")), None);
}

#[test]
fn a_product_of_two_parameters_keeps_its_operands() {
    let product = traced(node("Gemm", &["a", "b"], &["y"]), "linear", "%p_a, %p_b");
    let listed = [("p_a", "PARAMETER", "a"), ("p_b", "PARAMETER", "b")];
    let tensors = vec![floats("a", &[2, 2], 1.0, 2.0), floats("b", &[2, 2], 1.0, 3.0)];
    let model = loaded(&exported(vec![product], tensors, &listed));
    assert_eq!(model.graph.nodes[0].inputs, ["a", "b"]);
    let author = |name: &str| &model.record.tensors[name].name[..];
    assert_eq!((author("a"), author("b")), ("a", "b"));
}

#[test]
fn tensors_of_several_nodes_are_matched_by_name_first() {
    let nodes = |merged: [&str; 2]| {
        let first = traced(node("Add", &["x", "first"], &["h"]), "add", "%x, %p_first");
        let call = "%p_b, %h, %p_w";
        let product = traced(node("MatMul", &["h", merged[0]], &["y"]), "baddbmm", call);
        let sum = NodeProto {
            metadata_props: product.metadata_props.clone(),
            ..node("Add", &["y", merged[1]], &["z"])
        };
        vec![first, product, sum]
    };
    let listed = [("p_first", "PARAMETER", "first"), ("p_b", "PARAMETER", "b"), ("p_w", "PARAMETER", "w")];
    let inputs = |merged: [&str; 2], tensors: Vec<TensorProto>| {
        let model = loaded(&exported(nodes(merged), tensors, &listed));
        (model.graph.nodes[1].inputs[1].clone(), model.graph.nodes[2].inputs[1].clone(), model.record.lost)
    };
    let (first, w) = (ones("first", &[2, 2]), floats("w", &[2, 2], 1.0, 2.0));
    assert_eq!(inputs(["w", "first"], vec![first.clone(), w]), ("w".into(), "b".into(), vec![]));
    // Both were merged, and nothing tells which is which.
    let lost = vec!["b".to_owned(), "w".to_owned()];
    assert_eq!(inputs(["first", "first"], vec![first]), ("first".into(), "first".into(), lost));
}

#[test]
fn no_record_changes_a_number() {
    // The call names another matrix of the file, whose elements differ.
    let product = traced(node("MatMul", &["x", "a"], &["y"]), "linear", "%x, %p_b");
    let listed = [("p_a", "PARAMETER", "a"), ("p_b", "PARAMETER", "b")];
    let tensors = vec![floats("a", &[2, 2], 1.0, 2.0), floats("b", &[2, 2], 1.0, 3.0)];
    let model = loaded(&exported(vec![product], tensors, &listed));
    assert_eq!(model.graph.nodes[0].inputs, ["x", "a"]);
}

#[test]
fn a_record_that_does_not_fit_changes_nothing() {
    let odd = traced(node("Mul", &["x", "w"], &["y"]), "mul", "%x, %p_w, %p_v, %p_u, [[[[");
    let file = exported(vec![odd], vec![ones("w", &[2])], &[("p_w", "PARAMETER", "gone"), ("p_v", "X", "v")]);
    let model = loaded(&file);
    assert_eq!(model.graph.nodes[0].inputs, ["x", "w"]);
    assert_eq!(model.graph.tensors.len(), 1);
    assert!(call(&model.graph.nodes[0]).is_none());
}

#[test]
fn a_weight_that_is_named_after_its_transposition_is_found_by_its_module() {
    let scopes = entry("pkg.torch.onnx.name_scopes", "['', 'net', 'net.fc', 'matmul']");
    let product = traced(node("MatMul", &["x", "permute_1"], &["y"]), "matmul", "%x, %permute_1");
    let product =
        NodeProto { metadata_props: [product.metadata_props.clone(), vec![scopes]].concat(), ..product };
    let tensors = vec![floats("permute_1", &[2, 3], 1.0, 2.0)];
    let listed = [("p_w", "PARAMETER", "net.fc.weight"), ("p_v", "PARAMETER", "net.other.weight")];
    let model = loaded(&exported(vec![product], tensors, &listed));
    assert_eq!(model.record.tensors["permute_1"].name, "net.fc.weight");
    assert_eq!(claim(&model, "permute_1"), Some(Claim::Parameter));
    assert_eq!(model.record.lost, ["net.other.weight"]);
}

#[test]
fn a_renamed_weight_without_its_call_is_found_by_its_module() {
    let scopes = entry("pkg.torch.onnx.name_scopes", "['', 'net', 'net.fc', 'linear']");
    let product = NodeProto { metadata_props: vec![scopes], ..node("MatMul", &["x", "val_1"], &["y"]) };
    let listed = [("p_w", "PARAMETER", "net.fc.weight")];
    let model = loaded(&exported(vec![product], vec![floats("val_1", &[2, 3], 1.0, 2.0)], &listed));
    assert_eq!(model.record.tensors["val_1"].name, "net.fc.weight");
    assert!(model.record.lost.is_empty());
}
