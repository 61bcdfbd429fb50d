//! Tests of names and layouts on small graphs. `tests/state_dict.rs` compares them with a PyTorch module.

use super::*;
use crate::model::samples::{int, load, model, node, tensor, with};
use crate::proto::{AttributeProto, AttributeType, ModelProto, NodeProto};
use ir::ViewStep;

/// Makes a model of PyTorch with these initializers (name, dims) and nodes. The numbers that it computes do not matter.
fn written(initializers: &[(&str, &[i64])], nodes: Vec<NodeProto>) -> Model {
    let mut proto: ModelProto = model(nodes);
    proto.producer_name = Some("pytorch".into());
    let numbers = |count: i64| (0..count).map(|i| i as f32).collect::<Vec<_>>();
    let tensors = initializers.iter().map(|(name, dims)| tensor(name, dims, &numbers(dims.iter().product())));
    proto.graph.as_mut().unwrap().initializer = tensors.collect();
    load(&proto).unwrap()
}

fn named(name: &str, node: NodeProto) -> NodeProto {
    NodeProto { name: Some(name.into()), ..node }
}

/// Returns the entries as `NAME = TENSOR view`, with all parts one after the other.
fn found(model: &Model, recorded: Recorded) -> Vec<String> {
    let part = |part: &TensorPart| format!("{}{}", part.tensor, ir::text::view_text(&part.view));
    let dict = StateDict::recorded(model, recorded);
    let entry = |entry: &StateDictEntry| {
        let parts: Vec<String> = entry.parts.iter().map(part).collect();
        format!("{} = {}", entry.name, parts.join(" + "))
    };
    dict.entries.iter().map(entry).collect()
}

#[test]
fn a_renamed_weight_has_the_name_of_its_bias_or_of_its_module() {
    let model = written(
        &[
            ("onnx::MatMul_5", &[2, 6]),
            ("attn.in_proj_bias", &[6]),
            ("onnx::MatMul_6", &[6, 2]),
            ("onnx::Gemm_7", &[2, 2]),
            ("head.bias", &[2]),
            ("onnx::PRelu_8", &[2, 1, 1]),
        ],
        vec![
            named("/attn/MatMul", node("MatMul", &["x", "onnx::MatMul_5"], &["a"])),
            named("/attn/Add", node("Add", &["attn.in_proj_bias", "a"], &["b"])),
            named("/net/net.0/MatMul", node("MatMul", &["b", "onnx::MatMul_6"], &["c"])),
            with(node("Gemm", &["c", "onnx::Gemm_7", "head.bias"], &["d"]), int("transB", 1)),
            named("/act/PRelu", node("PRelu", &["d", "onnx::PRelu_8"], &["y"])),
        ],
    );
    let expected = [
        "attn.in_proj_weight = onnx::MatMul_5[transpose [1, 0]]",
        "net.0.weight = onnx::MatMul_6[transpose [1, 0]]",
        "head.weight = onnx::Gemm_7",
        "act.weight = onnx::PRelu_8[reshape [2]]",
        "attn.in_proj_bias = attn.in_proj_bias",
        "head.bias = head.bias",
    ];
    assert_eq!(found(&model, Recorded::default()), expected);
    // Only files from PyTorch have such names.
    let other = Model { producer: "tf2onnx 1.16".into(), ..model };
    assert_eq!(StateDict::recorded(&other, Recorded::default()), StateDict::default());
}

#[test]
fn the_transposed_copy_of_a_tied_weight_is_named_after_a_layer_alone() {
    let names = |path: &str| {
        let tensors: [(&str, &[i64]); 2] = [("m.embedding.weight", &[3, 1]), ("onnx::MatMul_5", &[1, 3])];
        let model = written(&tensors, vec![named(path, node("MatMul", &["x", "onnx::MatMul_5"], &["y"]))]);
        StateDict::recorded(&model, Recorded::default())
            .entries
            .into_iter()
            .map(|entry| entry.name)
            .collect::<Vec<_>>()
    };
    assert_eq!(names("/m/head/MatMul"), ["m.head.weight", "m.embedding.weight"]);
    // `functional.linear(x, self.embedding.weight)` in the module's own `forward`.
    assert_eq!(names("/m/MatMul"), ["m.embedding.weight"]);
}

#[test]
fn a_name_that_a_tensor_of_the_file_has_is_not_given_to_another() {
    let model = written(
        &[("onnx::MatMul_5", &[2, 2]), ("fc.weight", &[2, 2])],
        vec![
            named("/fc/MatMul", node("MatMul", &["x", "onnx::MatMul_5"], &["a"])),
            named("/MatMul", node("MatMul", &["a", "fc.weight"], &["y"])),
        ],
    );
    assert_eq!(found(&model, Recorded::default()), ["fc.weight = fc.weight"]);
}

#[test]
fn a_tensor_that_the_exporter_merged_with_an_equal_one_keeps_its_key() {
    let model = written(
        &[("ln1.weight", &[3])],
        vec![
            named("Identity_24", node("Identity", &["ln1.weight"], &["ln2.weight"])),
            named("/Identity", node("Identity", &["ln1.weight"], &["/Identity_output_0"])),
            node("Mul", &["ln2.weight", "/Identity_output_0"], &["a"]),
            node("Mul", &["x", "a"], &["y"]),
        ],
    );
    let expected = ["ln1.weight = ln1.weight", "ln2.weight = ln1.weight"];
    assert_eq!(found(&model, Recorded::default()), expected);
}

#[test]
fn recorded_names_come_first_and_keys_without_a_value_are_told() {
    let model = written(
        &[("val_5", &[2, 2]), ("kept", &[2]), ("c_lifted", &[2])],
        vec![
            node("MatMul", &["x", "val_5"], &["a"]),
            node("Add", &["a", "kept"], &["b"]),
            node("Add", &["b", "c_lifted"], &["y"]),
        ],
    );
    let view: View = [ViewStep::Transpose([1, 0].into_iter().collect())].into_iter().collect();
    let recorded = Recorded {
        keys: ["proj", "kept", "unused"].map(String::from).into(),
        entries: vec![StateDictEntry::whole("proj", "val_5", view)],
        ..Recorded::default()
    };
    assert_eq!(found(&model, recorded.clone()), ["proj = val_5[transpose [1, 0]]", "kept = kept"]);
    assert_eq!(StateDict::recorded(&model, recorded).absent, ["unused"]);
}

/// Makes a recurrent node of hidden size 1 with tensors whose names end in `suffix`.
fn layer(op: &str, name: &str, input: &str, suffix: &str, output: &str) -> NodeProto {
    let tensors = ["W", "R", "B"].map(|part| format!("onnx::{op}_{part}{suffix}"));
    let [w, r, b] = &tensors;
    with(named(name, node(op, &[input, w, r, b], &[output])), int("hidden_size", 1))
}

#[test]
fn gates_have_pytorchs_order_in_every_layer_and_direction() {
    let direction = AttributeProto {
        name: Some("direction".into()),
        r#type: Some(AttributeType::String as i32),
        s: Some("bidirectional".into()),
        ..Default::default()
    };
    let model = written(
        &[
            ("onnx::LSTM_W1", &[2, 4, 2]),
            ("onnx::LSTM_R1", &[2, 4, 1]),
            ("onnx::LSTM_B1", &[2, 8]),
            ("onnx::GRU_W2", &[1, 3, 2]),
            ("onnx::GRU_R2", &[1, 3, 1]),
            ("onnx::GRU_B2", &[1, 6]),
        ],
        vec![
            with(layer("LSTM", "/m/lstm/LSTM", "x", "1", "h"), direction),
            layer("GRU", "/gru/GRU", "h", "2", "y"),
        ],
    );
    let found = found(&model, Recorded::default());
    let part = |tensor: &str, direction: u64, sizes: &str, row: u64| {
        format!("{tensor}[slice 0 {direction} 1, reshape [{sizes}], slice 0 {row} 1]")
    };
    let gates = |tensor: &str, direction: u64, sizes: &str, rows: &[u64]| {
        rows.iter().map(|row| part(tensor, direction, sizes, *row)).collect::<Vec<_>>().join(" + ")
    };
    // Input, forget, cell, output, at the places 0, 2, 3, 1.
    let lstm = format!("m.lstm.weight_ih_l0 = {}", gates("onnx::LSTM_W1", 0, "4, 2", &[0, 2, 3, 1]));
    assert_eq!(found[0], lstm);
    let reverse = format!("m.lstm.bias_hh_l0_reverse = {}", gates("onnx::LSTM_B1", 1, "8", &[4, 6, 7, 5]));
    assert_eq!(found[7], reverse);
    // Reset, update, new, at the places 1, 0, 2.
    let gru = format!("gru.weight_hh_l0 = {}", gates("onnx::GRU_R2", 0, "3, 1", &[1, 0, 2]));
    assert_eq!(found[9], gru);
    assert_eq!(found.len(), 8 + 4);
}

#[test]
fn layers_of_a_module_are_counted_and_a_second_use_is_none() {
    let dims: [&[i64]; 3] = [&[1, 4, 1], &[1, 4, 1], &[1, 8]];
    let names: Vec<String> =
        ["1", "2"].iter().flat_map(|i| ["W", "R", "B"].map(|part| format!("onnx::LSTM_{part}{i}"))).collect();
    let initializers: Vec<(&str, &[i64])> =
        names.iter().enumerate().map(|(i, name)| (name.as_str(), dims[i % 3])).collect();
    let nodes = vec![
        layer("LSTM", "/lstm/LSTM", "x", "1", "a"),
        layer("LSTM", "/lstm/LSTM_1", "a", "2", "b"),
        layer("LSTM", "/lstm/LSTM_2", "b", "1", "y"),
    ];
    let mut model = written(&initializers, nodes);
    // Different numbers, so that the second layer is not taken for a second use of the first.
    let bytes = model.graph.tensors[0].present().unwrap().iter().rev().copied().collect::<Vec<_>>();
    model.graph.tensors[3].bytes = crate::TensorBytes::Present(bytes.into());
    let name = |entry: &StateDictEntry| entry.name.clone();
    let names: Vec<String> =
        StateDict::recorded(&model, Recorded::default()).entries.iter().map(name).collect();
    let kinds = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"];
    let expected: Vec<String> =
        [0, 1].iter().flat_map(|layer| kinds.map(|kind| format!("lstm.{kind}_l{layer}"))).collect();
    assert_eq!(names, expected);
    // A layer whose input weight the exporter computes from the author's tensor is counted nevertheless.
    let mut computed = model.clone();
    computed.graph.nodes[0].inputs[1] = "computed".into();
    let dict = StateDict::recorded(&computed, Recorded::default());
    assert_eq!(dict.entries[0].name, "lstm.weight_hh_l0");
    assert_eq!(dict.entries[3].name, "lstm.weight_ih_l1");
    // The names of the record have priority.
    let own: Vec<String> = (0..8).map(|i| format!("own.{i}")).collect();
    let recurrent = [("/lstm/LSTM_1".to_owned(), own.clone())].into();
    let dict = StateDict::recorded(&model, Recorded { recurrent, ..Recorded::default() });
    assert_eq!(dict.entries[4..].iter().map(name).collect::<Vec<_>>(), own[4..]);
}
