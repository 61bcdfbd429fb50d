//! Tests of the inference form at every opset, and of everything that changed nodes leave behind.

use super::inference::to_inference_form;
use super::*;
use crate::model::samples::*;
use crate::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto};
use crate::tensor::ElementType;

const STATISTICS: [&str; 5] = ["x", "scale", "bias", "mean", "variance"];

/// Makes a model of these nodes at an opset. The statistics, `ratio`, and the flags `on` and `off` are initializers.
fn model_of(opset_version: i64, nodes: Vec<NodeProto>) -> ModelProto {
    let mut proto = model(nodes);
    proto.opset_import = vec![opset("", opset_version)];
    let graph = proto.graph.as_mut().unwrap();
    graph.initializer = STATISTICS[1..].iter().map(|name| tensor(name, &[2], &[1.0, 2.0])).collect();
    graph.initializer.push(tensor("ratio", &[], &[0.3]));
    graph.initializer.extend([flag("on", 1), flag("off", 0)]);
    proto
}

fn flag(name: &str, value: u8) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        data_type: Some(ElementType::Bool.code()),
        raw_data: Some(vec![value].into()),
        ..TensorProto::default()
    }
}

fn changed(mut proto: ModelProto) -> (usize, GraphProto) {
    let count = to_inference_form(&mut proto);
    (count, proto.graph.unwrap())
}

fn inputs(node: &NodeProto) -> Vec<&str> {
    node.input.iter().map(String::as_str).collect()
}

fn has(graph: &GraphProto, initializer: &str) -> bool {
    graph.initializer.iter().any(|tensor| tensor.name.as_deref() == Some(initializer))
}

#[test]
fn a_batch_norm_of_every_opset_keeps_its_first_output_alone() {
    let outputs = ["y", "new_mean", "new_variance", "saved_mean", "saved_variance"];
    for (version, count, attribute, after) in [
        (20, 3, Some(("training_mode", 1)), Some(0)),
        (14, 1, Some(("training_mode", 1)), Some(0)),
        (11, 5, None, None),
        (7, 2, None, None),
        (6, 5, Some(("is_test", 0)), Some(1)),
    ] {
        let mut norm = node("BatchNormalization", &STATISTICS, &outputs[..count]);
        norm.attribute = attribute.iter().map(|(name, value)| int(name, *value)).collect();
        let mut proto = model_of(version, vec![norm]);
        proto.graph.as_mut().unwrap().value_info = vec![value("new_mean", ElementType::F32, &[2])];
        let (changes, graph) = changed(proto);
        assert_eq!((changes, graph.node[0].output.as_slice()), (1, &["y".to_owned()][..]), "opset {version}");
        assert_eq!(
            graph.node[0].attribute.first().and_then(|attribute| attribute.i),
            after,
            "opset {version}"
        );
        assert_eq!((inputs(&graph.node[0]), graph.value_info.is_empty()), (STATISTICS.to_vec(), count > 1));
    }
}

#[test]
fn a_batch_norm_in_inference_form_stays_as_it_is() {
    for (version, attribute) in
        [(20, None), (20, Some(("training_mode", 0))), (11, None), (6, Some(("is_test", 1))), (6, None)]
    {
        let mut norm = node("BatchNormalization", &STATISTICS, &["y"]);
        norm.attribute = attribute.iter().map(|(name, value)| int(name, *value)).collect();
        let proto = model_of(version, vec![norm]);
        let before = proto.graph.clone().unwrap();
        assert_eq!(changed(proto), (0, before), "opset {version}");
    }
}

#[test]
fn readers_of_updated_statistics_read_the_running_ones() {
    let training: AttributeProto = int("training_mode", 1);
    let first = with(node("BatchNormalization", &STATISTICS, &["h", "mean1", "variance1"]), training.clone());
    // The second norm reads the updated statistics of the first, as shared buffers are exported.
    let second = ["h", "scale", "bias", "mean1", "variance1"];
    let second = with(node("BatchNormalization", &second, &["z", "mean2", "variance2"]), training);
    let reader = node("Add", &["z", "mean2"], &["y"]);
    let mut proto = model_of(20, vec![first, second, reader]);
    proto.graph.as_mut().unwrap().output.push(value("variance2", ElementType::F32, &[2]));
    let (changes, graph) = changed(proto);
    assert_eq!(changes, 2);
    assert_eq!(inputs(&graph.node[1]), ["h", "scale", "bias", "mean", "variance"]);
    assert_eq!(inputs(&graph.node[2]), ["z", "mean"]);
    let result = &graph.node[3];
    assert_eq!((result.op_type.as_deref(), inputs(result)), (Some("Identity"), vec!["variance"]));
    assert_eq!(result.output, ["variance2"]);
}

#[test]
fn a_dropout_loses_its_flag_and_nothing_keeps_what_it_alone_read() {
    let drop = |flag: &str, output: &str| node("Dropout", &["x", "ratio", flag], &[output]);
    let (changes, graph) = changed(model_of(20, vec![drop("on", "y")]));
    assert_eq!((changes, inputs(&graph.node[0])), (1, vec!["x", "ratio"]));
    assert!(!has(&graph, "on") && has(&graph, "ratio"));
    // A flag that is a Constant node is removed with it.
    let constant = AttributeProto { t: Some(Box::new(flag("", 1))), ..int("value", 0) };
    let constant = with(node("Constant", &[], &["set"]), constant);
    let (changes, graph) = changed(model_of(13, vec![constant, drop("set", "y")]));
    assert_eq!((changes, graph.node.len()), (1, 1));
    // A dropout that is off stays, and a caller who passes the flag still decides.
    let mut given = model_of(20, vec![drop("off", "h"), drop("given", "y")]);
    given.graph.as_mut().unwrap().input.push(value("given", ElementType::Bool, &[]));
    let before = given.graph.clone().unwrap();
    assert_eq!(changed(given), (0, before));
    // Before opset 7 an attribute tells the form; from 7 to 11 a dropout is always in inference form.
    let old = with(node("Dropout", &["x"], &["y"]), int("is_test", 0));
    let (changes, graph) = changed(model_of(6, vec![old]));
    assert_eq!((changes, graph.node[0].attribute[0].i), (1, Some(1)));
    assert_eq!(changed(model_of(10, vec![node("Dropout", &["x"], &["y", "mask"])])).0, 0);
}

#[test]
fn a_flag_that_another_node_reads_stays() {
    let drop = node("Dropout", &["x", "ratio", "on"], &["h"]);
    let (changes, graph) = changed(model_of(20, vec![drop, node("Where", &["on", "h", "h"], &["y"])]));
    assert_eq!(changes, 1);
    assert!(has(&graph, "on"));
}

/// Makes `x · cast(uniform < p) / q`, the exporters' form of stochastic depth.
fn stochastic_depth(q: f32, more: Vec<NodeProto>) -> ModelProto {
    let cast = with(node("Cast", &["less"], &["kept"]), int("to", 1));
    let mut nodes = vec![
        node("RandomUniformLike", &["mean"], &["uniform"]),
        node("Less", &["uniform", "p"], &["less"]),
        cast,
        node("Div", &["kept", "q"], &["scaled"]),
        node("Mul", &["x", "scaled"], &["y"]),
    ];
    nodes.extend(more);
    let mut proto = model_of(20, nodes);
    let graph = proto.graph.as_mut().unwrap();
    graph.initializer.extend([tensor("p", &[], &[0.8]), tensor("q", &[1], &[q])]);
    graph.value_info = ["uniform", "less", "kept"].map(|name| value(name, ElementType::F32, &[2])).into();
    proto
}

#[test]
fn a_layer_is_left_out_at_random_in_training_alone() {
    let (changes, graph) = changed(stochastic_depth(0.8, vec![]));
    let ops: Vec<&str> = graph.node.iter().filter_map(|node| node.op_type.as_deref()).collect();
    assert_eq!((changes, ops), (1, vec!["Shape", "ConstantOfShape", "Cast", "Div", "Mul"]));
    assert_eq!((inputs(&graph.node[0]), inputs(&graph.node[1])), (vec!["mean"], vec!["uniform"]));
    assert_eq!(graph.value_info.len(), 1, "{:?}", graph.value_info);
    // Noise of another form is intended by the author.
    let another_reader = node("Identity", &["less"], &["z"]);
    for noise in [stochastic_depth(0.7, vec![]), stochastic_depth(0.8, vec![another_reader])] {
        let before = noise.graph.clone().unwrap();
        assert_eq!(changed(noise), (0, before));
    }
}

#[test]
fn every_form_of_mask_is_gone_in_inference_form() {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata");
    for (name, masks) in [("depth.legacy", 4), ("depth.dynamo", 4), ("noise.legacy", 0)] {
        let model = Model::load(&testdata.join(format!("random/{name}.onnx"))).unwrap();
        let draws = usize::from(masks == 0);
        assert_eq!(model.inference_form(&BTreeSet::new()), InferenceForm { changes: masks, draws }, "{name}");
    }
    // `x · (uniform > p) / (1 - p)`, with numbers of a given shape.
    let shape = AttributeProto { name: Some("shape".into()), ints: vec![2], ..AttributeProto::default() };
    let nodes = vec![
        with(node("RandomUniform", &[], &["u"]), shape),
        node("Greater", &["u", "p"], &["kept"]),
        with(node("Cast", &["kept"], &["mask"]), int("to", 1)),
        node("Mul", &["mask", "x"], &["product"]),
        node("Div", &["product", "q"], &["y"]),
    ];
    let mut proto = model_of(20, nodes);
    proto.graph.as_mut().unwrap().initializer.extend([tensor("p", &[], &[0.25]), tensor("q", &[], &[0.75])]);
    let (changes, graph) = changed(proto);
    let ops: Vec<&str> = graph.node.iter().filter_map(|node| node.op_type.as_deref()).collect();
    assert_eq!((changes, ops), (1, vec!["Constant", "ConstantOfShape", "Cast", "Mul", "Div"]));
    let kept = graph.node[1].attribute[0].t.as_ref().and_then(|tensor| tensor.raw_data.clone());
    assert_eq!(kept.as_deref(), Some(&0.75f32.to_le_bytes()[..]));
}

#[test]
fn nodes_of_functions_and_subgraphs_are_changed_too() {
    let norm =
        |outputs: &[&str]| with(node("BatchNormalization", &STATISTICS, outputs), int("training_mode", 1));
    let branch = graph_attribute("then_branch", body(vec![norm(&["h", "m", "v"])], "h"));
    let choice = with(node("If", &["on"], &["y"]), branch);
    let (changes, graph) = changed(model_of(20, vec![choice]));
    let inner = graph.node[0].attribute[0].g.as_ref().unwrap();
    assert_eq!((changes, inner.node[0].output.len()), (1, 1));
    let mut proto = model_with(
        vec![call("block", &STATISTICS, &["y", "m"])],
        vec![function("block", &STATISTICS, &["h", "m"], vec![norm(&["h", "m", "v"])])],
    );
    assert_eq!(to_inference_form(&mut proto), 1);
    let nodes = &proto.functions[0].node;
    assert_eq!((nodes[0].output.len(), inputs(&nodes[1])), (1, vec!["mean"]));
}

#[test]
fn a_trained_model_loads_again_in_inference_form() {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata");
    let model = Model::load(&testdata.join("models/resnet.legacy-trainmode.onnx")).unwrap();
    assert_eq!(model.inference_form(&BTreeSet::new()), InferenceForm { changes: 20, draws: 0 });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    model.write_for_inference(&path, &BTreeMap::new(), &BTreeSet::new()).unwrap();
    let again = Model::load(&path).unwrap();
    assert_eq!(again.inference_form(&BTreeSet::new()).changes, 0);
    assert_eq!(again.graph.tensors, model.graph.tensors);
    let outputs = |model: &Model| {
        let norms = model.graph.nodes.iter().filter(|node| node.op_type == "BatchNormalization");
        norms.map(|node| node.outputs.len()).collect::<Vec<_>>()
    };
    assert_eq!((outputs(&model), outputs(&again)), (vec![3; 20], vec![1; 20]));
    // A model without nodes in training form is written unchanged.
    let model = Model::load(&testdata.join("models/mlp.legacy.onnx")).unwrap();
    assert_eq!(model.inference_form(&BTreeSet::new()).changes, 0);
    model.write_for_inference(&path, &BTreeMap::new(), &BTreeSet::new()).unwrap();
    assert_eq!(Model::load(&path).unwrap().proto, model.proto);
}
