//! Tests of forms of operators that occur in files of other programs, with PyTorch's numbers.

use super::{ImportOptions, import};
use crate::ElementType;
use crate::model::samples::{int, load, model, node, opset, tensor, value, with};
use crate::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use ir::interp::{self, Missing, Mode};
use ir::{DType, Tensor};
use std::collections::BTreeMap;

/// Makes a model from `x` with the dims `x` to `y` with the dims `y`.
fn model_of(node: NodeProto, tensors: Vec<TensorProto>, x: &[i64], y: &[i64]) -> ModelProto {
    let mut file = model(vec![node]);
    let graph = file.graph.take().expect("a sample has a graph");
    let (input, output) = (vec![value("x", ElementType::F32, x)], vec![value("y", ElementType::F32, y)]);
    file.graph = Some(GraphProto { initializer: tensors, input, output, ..graph });
    file
}

/// Returns the elements of `y`, given the elements of `x`.
fn run(file: &ModelProto, x: &[f64]) -> Vec<f64> {
    let model = load(file).expect("the model loads");
    let module = import(&model, &ImportOptions::default()).expect("the model is imported").module;
    let sizes = module.ty(module.inputs[0].value).sizes().expect("bound");
    let sizes = sizes.into_iter().map(|size| size as usize).collect();
    let inputs: BTreeMap<String, Tensor> =
        [("x".to_owned(), Tensor::float(DType::F32, sizes, x.to_vec()))].into();
    let mut states = interp::initial_states(&module, 0, Missing::Refuse).expect("there are none");
    let outputs = interp::step(&module, Mode::Exact, &mut states, &[inputs]).expect("it runs");
    outputs["y"][0].numbers()
}

#[track_caller]
fn check(file: &ModelProto, x: &[f64], expected: &[f64]) {
    let found = run(file, x);
    let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-5;
    assert!(
        found.len() == expected.len() && found.iter().zip(expected).all(close),
        "{found:?}, not {expected:?}"
    );
}

fn indices(name: &str, dims: &[i64], values: &[i64]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(ElementType::I64.code()),
        raw_data: Some(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into()),
        ..TensorProto::default()
    }
}

#[test]
fn operators_of_onnx_runtime_have_version_1_where_the_file_names_none() {
    let gelu = |domain: &str| NodeProto { domain: Some(domain.into()), ..node("FastGelu", &["x"], &["y"]) };
    check(&model_of(gelu("com.microsoft"), vec![], &[2], &[2]), &[1.0, -2.0], &[0.841_192, -0.045_402]);
    let other = load(&model_of(gelu("com.example"), vec![], &[2], &[2])).expect_err("its version is unknown");
    assert!(other.problems[0].message.contains("does not import the opset of domain"), "{other}");
}

#[test]
fn scales_of_norms_may_have_more_dims_than_those_normalised() {
    let tensors = |dims: &[i64]| {
        vec![tensor("scale", dims, &[1.0, 2.0, 3.0, 4.0]), tensor("shift", dims, &[0.5, 0.0, 0.0, -0.5])]
    };
    let norm = || node("LayerNormalization", &["x", "scale", "shift"], &["y"]);
    let expected = [-0.499_995, 1.999_99, -2.999_996, 3.499_995];
    for dims in [&[2, 2][..], &[1, 2, 2]] {
        check(&model_of(norm(), tensors(dims), &[1, 2, 2], &[1, 2, 2]), &[1.0, 3.0, 2.0, 6.0], &expected);
    }
    // Dims of size one before the normalised dim have no effect.
    let narrow = vec![tensor("scale", &[1, 2], &[1.0, 2.0])];
    let norm = node("LayerNormalization", &["x", "scale"], &["y"]);
    check(&model_of(norm, narrow, &[1, 2], &[1, 2]), &[1.0, 3.0], &[-0.999_995, 1.999_99]);
}

#[test]
fn fewer_indices_than_elements_read_the_first_ones() {
    let gather = with(node("GatherElements", &["x", "at"], &["y"]), int("axis", 1));
    let file = model_of(gather, vec![indices("at", &[1, 2], &[2, 0])], &[2, 3], &[1, 2]);
    check(&file, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], &[2.0, 0.0]);
}

#[test]
fn the_norm_of_each_channel_is_pooled() {
    let file = model_of(node("GlobalLpPool", &["x"], &["y"]), vec![], &[1, 2, 2, 2], &[1, 2, 1, 1]);
    let x: Vec<f64> = (1..9).map(f64::from).collect();
    check(&file, &x, &[5.477_226, 13.190_906]);
}

#[test]
fn up_to_opset_6_an_axis_says_where_an_operand_broadcasts() {
    let add = with(with(node("Add", &["x", "b"], &["y"]), int("broadcast", 1)), int("axis", 0));
    for version in [5, 6] {
        let mut file = model_of(add.clone(), vec![tensor("b", &[2], &[10.0, 20.0])], &[2, 2], &[2, 2]);
        file.opset_import = vec![opset("", version)];
        check(&file, &[1.0, 2.0, 3.0, 4.0], &[11.0, 12.0, 23.0, 24.0]);
    }
    let slope = node("PRelu", &["x", "slope"], &["y"]);
    let mut file = model_of(slope, vec![tensor("slope", &[2], &[0.5, 0.25])], &[1, 2, 1], &[1, 2, 1]);
    file.opset_import = vec![opset("", 6)];
    check(&file, &[-2.0, -4.0], &[-1.0, -1.0]);
}

#[test]
fn a_block_size_that_does_not_divide_is_told_as_a_number() {
    let file = model_of(
        with(node("SpaceToDepth", &["x"], &["y"]), int("blocksize", 2)),
        vec![],
        &[1, 2, 5, 5],
        &[1, 8, 2, 2],
    );
    let model = load(&file).expect("the model loads");
    let problems = import(&model, &ImportOptions::default()).expect_err("5 is no multiple of 2");
    assert!(problems[0].message.ends_with("cannot be divided into blocks of 2"), "{}", problems[0]);
}

#[test]
fn a_cache_of_keys_and_values_is_told_with_the_way_to_export_without_it() {
    let mut file = model_of(node("Relu", &["x"], &["y"]), vec![], &[2], &[2]);
    let graph = file.graph.as_mut().expect("a sample has a graph");
    for name in ["past_key_values.0.key", "past_key_values.0.value"] {
        graph.input.push(value(name, ElementType::F32, &[1, 2, 3, 4]));
    }
    let model = load(&file).expect("the model loads");
    let hint = super::cache_hint(&model.graph).expect("there is a cache");
    assert!(hint.starts_with("`past_key_values.0.key` and 1 more inputs are a cache"), "{hint}");
    assert!(hint.contains("use_cache=False"), "{hint}");
}
