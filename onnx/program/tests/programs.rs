//! Tests of programs at every level: layouts over devices, operators of the compiler, states, and the forward part of a training
//! step.

use crate::program::{Absent, Form, Header, model, shown, write};
use crate::proto::{ModelProto, NodeProto, SimpleShardedDimProtoDim};
use bytes::Bytes;
use ir::Module;
use std::collections::BTreeMap;

/// A training step on two data ranks with two tensor ranks each.
const PLACED: &str = r#"trainyard-ir 1
module @row placed mesh [dp=2, tp=2] {
  data @0 "w" : f32[4, 8]
  state @w : f32[4, 8] {tp, -} parameter = data @0
  state @adam.m : f32[4, 8] {tp, -} optimizer = zeros
  func @train(%0 "x" batched : f32[6, 4] {dp, tp}, %1 = @w, %2 = @adam.m) {
    %3 = contract %0, %1 {lhs = bk, rhs = kn, out = bn} : f32[6, 8] {dp, -} partial(sum tp) !{fwd, origin "node \"/fc\" (MatMul, opset 20)"}
    %4 = all_reduce %3 : f32[6, 8] {dp, -} !{fwd, by spmd}
    %5 = reduce %4 {kind = sum, dims = [1], keep = false} : f32[6] {dp} !{fwd}
    %6 = splat {value = 0.5} : f32[] !{update, origin "optimizer"}
    %7 = mul %1, %6 : f32[4, 8] {tp, -} !{update, origin "optimizer"}
  }
  output "y" = %4
  update @w = %7
}
"#;

fn placed() -> Module {
    ir::text::parse(PLACED).unwrap_or_else(|error| panic!("{error}"))
}

fn node<'p>(proto: &'p ModelProto, operator: &str) -> &'p NodeProto {
    let nodes = &proto.graph.as_ref().unwrap().node;
    nodes.iter().find(|node| node.op_type() == operator).unwrap_or_else(|| panic!("no {operator}"))
}

fn names(values: &[crate::proto::ValueInfoProto]) -> Vec<&str> {
    values.iter().map(|value| value.name()).collect()
}

fn fact<'p>(node: &'p NodeProto, key: &str) -> Option<&'p str> {
    node.metadata_props.iter().find(|entry| entry.key() == key).map(|entry| entry.value())
}

#[test]
fn shardings_are_the_standards_annotations() {
    let proto = shown(&placed(), &Header::default()).unwrap();
    let mesh = &proto.configuration[0];
    assert_eq!((mesh.name(), mesh.num_devices()), ("mesh", 4));
    assert_eq!(mesh.device, ["dp=0,tp=0", "dp=0,tp=1", "dp=1,tp=0", "dp=1,tp=1"]);
    let product = node(&proto, "MatMul");
    let specs = &product.device_configurations[0].sharding_spec;
    let spec = |name: &str| specs.iter().find(|spec| spec.tensor_name() == name).expect("a sharding");
    // Split along both dims: one shard for each device.
    assert_eq!(spec("x").device, [0, 1, 2, 3]);
    assert!(spec("x").index_to_device_group_map.is_empty());
    let split: Vec<_> =
        spec("x").sharded_dim.iter().map(|dim| (dim.axis(), dim.simple_sharding.clone())).collect();
    assert_eq!(split.iter().map(|(axis, _)| *axis).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(split[0].1[0].num_shards(), 2);
    assert_eq!(split[0].1[0].dim, Some(SimpleShardedDimProtoDim::DimValue(6)));
    // Split only along the tensor axis: data ranks hold the same shard.
    let groups: Vec<_> =
        spec("w").index_to_device_group_map.iter().map(|group| (group.key(), group.value.clone())).collect();
    assert_eq!(spec("w").device, [-1, -2]);
    assert_eq!(groups, [(-1, vec![0, 2]), (-2, vec![1, 3])]);
    assert_eq!(fact(product, "trainyard.partial.%3"), Some("sum over tp"));
    assert_eq!((product.name(), fact(product, "trainyard.phase")), ("/fc", Some("forward")));
}

#[test]
fn operators_of_a_step_are_of_a_domain_of_their_own() {
    let proto = shown(&placed(), &Header::default()).unwrap();
    let collective = node(&proto, "all_reduce");
    assert_eq!(collective.domain(), "trainyard");
    assert!(proto.opset_import.iter().any(|opset| opset.domain() == "trainyard" && opset.version == Some(1)));
    let graph = proto.graph.as_ref().unwrap();
    assert_eq!(names(&graph.input), ["x", "w", "adam.m"]);
    assert_eq!(names(&graph.output), ["y", "w.next"]);
    assert!(graph.initializer.is_empty());
}

#[test]
fn a_placed_program_is_no_model() {
    let error =
        model(&placed(), &Header::default(), &BTreeMap::new(), Form::Inference, Absent::Refuse).unwrap_err();
    assert!(error.message.contains("levels imported and training"), "{error}");
}

/// A training step. Only its output `y` belongs to the model.
const STEP: &str = r#"trainyard-ir 1
module @step training {
  data @0 "file.weight" : f32[2, 4]
  state @w : f32[4, 2] parameter = data @0 view [transpose [1, 0]]
  state @gate : f32[2] parameter = normal 0.02
  state @samples : i64[] counter = zeros
  func @train(%0 "x" batched : f32[3, 4], %1 "labels" batched : i64[3], %2 = @w, %3 = @gate, %4 = @samples) {
    %5 = contract %0, %2 {lhs = bk, rhs = kn, out = bn} : f32[3, 2] !{fwd}
    %6 = mul %5, %3 : f32[3, 2] !{fwd}
    %7, %8, %9 = cross_entropy %6, %1 {ignore_index = -100, label_smoothing = 0.0} : f32[], f32[], f32[3] !{fwd}
    %10 = accumulate %7 : f32[] !{update}
  }
  output "y" = %6
  output "loss.sum" = %7
  output "loss" = %10
}
"#;

#[test]
fn the_model_of_a_training_step_is_its_forward_part() {
    let module = ir::text::parse(STEP).unwrap_or_else(|error| panic!("{error}"));
    let floats = |numbers: &[f32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Bytes>();
    let weight = floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let tensors =
        BTreeMap::from([("file.weight".to_string(), weight.clone()), ("gate".into(), floats(&[1.0, 2.0]))]);
    let proto = model(&module, &Header::default(), &tensors, Form::Inference, Absent::Refuse).unwrap();
    let graph = proto.graph.as_ref().unwrap();
    assert_eq!((names(&graph.input), names(&graph.output)), (vec!["x"], vec!["y"]));
    let initializers: Vec<_> =
        graph.initializer.iter().map(|tensor| (tensor.name(), &tensor.dims[..])).collect();
    assert_eq!(initializers, [("file.weight", &[2, 4][..]), ("gate", &[2])]);
    assert_eq!(graph.initializer[0].raw_data, Some(weight));
    let operators: Vec<&str> = graph.node.iter().map(|node| node.op_type()).collect();
    assert_eq!(operators, ["Transpose", "MatMul", "Mul"]);
}

#[test]
fn a_tensor_without_bytes_or_with_too_few_is_refused() {
    let module = ir::text::parse(STEP).unwrap_or_else(|error| panic!("{error}"));
    let write = |tensors| model(&module, &Header::default(), &tensors, Form::Inference, Absent::Refuse);
    let error = write(BTreeMap::new()).unwrap_err();
    assert!(error.message.contains("\"file.weight\" has no bytes"), "{error}");
    let error =
        write(BTreeMap::from([("file.weight".to_string(), Bytes::from_static(&[0; 8]))])).unwrap_err();
    assert!(error.message.contains("8 bytes are given") && error.message.contains("needs 32"), "{error}");
}

/// Two stages on each of two pipeline ranks, in the form of a V: rank 0 has stages 0 and 3.
#[test]
fn a_stage_is_on_the_devices_of_its_pipeline_rank() {
    let mut module = placed();
    let nodes: Vec<ir::NodeId> = module.order().to_vec();
    module.pipeline = Some(ir::StageTable {
        schedule: "v".into(),
        microbatches: 1,
        placement: vec![0, 1, 1, 0],
        delays: vec![],
        timetable: ir::Timetable { ranks: vec![vec![], vec![]] },
    });
    let mut b = ir::Builder::new(&mut module, "stage");
    b.set_stage(nodes[0], 2);
    b.set_stage(nodes[1], 3);
    b.finish();
    let proto = shown(&module, &Header::default()).unwrap();
    assert_eq!(proto.configuration[0].num_devices(), 8);
    assert_eq!(proto.configuration[0].device[5], "pp=1,dp=0,tp=1");
    let placed = |operator: &str| {
        let configuration = &node(&proto, operator).device_configurations[0];
        (configuration.pipeline_stage(), configuration.sharding_spec[0].device.clone())
    };
    assert_eq!(placed("MatMul"), (2, vec![4, 5, 6, 7]));
    let all_reduce = &node(&proto, "all_reduce").device_configurations[0];
    let held: Vec<i64> = all_reduce.sharding_spec[0]
        .index_to_device_group_map
        .iter()
        .flat_map(|group| group.value.clone())
        .collect();
    assert_eq!((all_reduce.pipeline_stage(), held), (3, vec![0, 1, 2, 3]));
}

#[test]
fn outputs_that_no_node_computes_keep_their_names() {
    let text = r#"trainyard-ir 1
module @same imported {
  data @0 "table" : f32[2] = [1.0, 2.0]
  data @1 "weight" : f32[512]
  func @forward(%0 "x" batched : f32[3]) {
    %1 = constant {data = @0} : f32[2] !{fwd}
    %2 = constant {data = @1} : f32[512] !{fwd}
    %3 = splat {value = 0.1} : f32[] !{fwd}
    %4 = tanh %0 : f32[3] !{fwd}
  }
  output "x" = %0
  output "again" = %0
  output "weight" = %2
  output "also" = %1
  output "tenth" = %3
  output "y" = %4
  output "z" = %4
}
"#;
    let module = ir::text::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let tensors = BTreeMap::from([("weight".to_string(), Bytes::from(vec![0; 2048]))]);
    let proto = model(&module, &Header::default(), &tensors, Form::Training, Absent::Refuse).unwrap();
    let graph = proto.graph.as_ref().unwrap();
    assert_eq!(names(&graph.output), ["x", "again", "weight", "also", "tenth", "y", "z"]);
    assert_eq!(graph.initializer.iter().map(|tensor| tensor.name()).collect::<Vec<_>>(), ["weight"]);
    let read = crate::Model::from_bytes(crate::program::bytes(&proto).into(), None).unwrap();
    let read = crate::import(&read, &crate::ImportOptions::default()).unwrap().module;
    assert_eq!(read.outputs.len(), 7);
}

#[test]
fn a_written_model_computes_what_the_step_does_forward() {
    computes_what_the_step_does(STEP);
}

#[test]
fn a_state_that_views_the_tensor_of_its_own_name_is_written_as_the_view() {
    computes_what_the_step_does(&STEP.replace("@w", "@file.weight"));
}

/// Writes the model of a step, reads it back, and compares its output with the right values.
fn computes_what_the_step_does(step: &str) {
    let module = ir::text::parse(step).unwrap_or_else(|error| panic!("{error}"));
    let floats = |numbers: &[f32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Bytes>();
    let weight = [1.0, 0.0, 0.0, 2.0, 0.0, 3.0, 0.0, 0.0];
    let tensors =
        BTreeMap::from([("file.weight".to_string(), floats(&weight)), ("gate".into(), floats(&[1.0, 10.0]))]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.onnx");
    write(&module, &Header::default(), &tensors, Form::Inference, &path).unwrap();
    let read = crate::Model::load(&path).unwrap();
    let read = crate::import(&read, &crate::ImportOptions::default()).unwrap().module;
    let x = ir::Tensor::float(ir::DType::F32, vec![3, 4], (0..12).map(f64::from).collect());
    let inputs = BTreeMap::from([("x".to_string(), x)]);
    // Row r of x is 4r, 4r + 1, 4r + 2, 4r + 3.
    let expected = [6.0, 30.0, 18.0, 150.0, 30.0, 270.0];
    assert_eq!(super::outputs(&read, &inputs)["y"][0].floats(), expected);
    let error = write(&module, &Header::default(), &BTreeMap::new(), Form::Inference, &path).unwrap_err();
    assert!(error.to_string().contains("has no bytes"), "{error}");
    assert!(crate::Model::load(&path).is_ok(), "the file of before is there");
}
