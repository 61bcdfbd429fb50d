//! Tests of the import's shape arithmetic: operands that do not fit are refused, and results stay small.

use super::{ImportOptions, import};
use crate::ElementType;
use crate::model::samples::{int, load, model, node, with};
use crate::proto::{NodeProto, TensorProto};
use ir::{Diagnostic, Module};

/// Imports a model from `x` f32[2] to `y` that also has these integer vectors.
fn imported(nodes: Vec<NodeProto>, vectors: &[(&str, Vec<i64>)]) -> Result<Module, Vec<Diagnostic>> {
    let mut model = model(nodes);
    let graph = model.graph.as_mut().expect("a sample has a graph");
    let vector = |(name, numbers): &(&str, Vec<i64>)| TensorProto {
        name: Some((*name).into()),
        dims: vec![numbers.len() as i64],
        data_type: Some(ElementType::I64.code()),
        int64_data: numbers.clone(),
        ..TensorProto::default()
    };
    graph.initializer = vectors.iter().map(vector).collect();
    let imported = import(&load(&model).expect("the model loads"), &ImportOptions::default())?;
    Ok(imported.module)
}

/// Returns the text of the only problem of a model.
fn refused(nodes: Vec<NodeProto>, vectors: &[(&str, Vec<i64>)]) -> String {
    let problems = imported(nodes, vectors).expect_err("the model is refused");
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems[0].to_string()
}

/// Applies an operator with `axes` to `known`, and adds the result to `x`.
fn through(op: &str, known: Vec<i64>, axes: Vec<i64>) -> String {
    let nodes = vec![
        node(op, &["known", "axes"], &["changed"]),
        node("CastLike", &["changed", "x"], &["float"]),
        node("Add", &["x", "float"], &["y"]),
    ];
    refused(nodes, &[("known", known), ("axes", axes)])
}

#[test]
fn only_dims_of_size_one_are_squeezed() {
    let told = through("Squeeze", vec![3, 5], vec![0]);
    assert!(told.contains("axes [0] of i64[2] are not dims of size 1"), "{told}");
    let told = through("Squeeze", vec![3], vec![1]);
    assert!(told.contains("axes [1] of i64[1] are not dims of size 1"), "{told}");
}

#[test]
fn a_dim_is_added_once() {
    let told = through("Unsqueeze", vec![3, 5], vec![0, 0]);
    assert!(told.contains("axes [0, 0] are not dims of the result"), "{told}");
}

#[test]
fn known_vectors_that_double_become_values_of_the_program() {
    let mut nodes: Vec<NodeProto> = (0..20)
        .map(|i| {
            let (part, whole) = (format!("known.{i}"), format!("known.{}", i + 1));
            node("Concat", &[&part, &part], &[&whole])
        })
        .map(|concat| with(concat, int("axis", 0)))
        .collect();
    nodes.extend([
        node("Slice", &["known.20", "start", "end"], &["few"]),
        node("CastLike", &["few", "x"], &["float"]),
        node("Add", &["x", "float"], &["y"]),
    ]);
    let vectors = [("known.0", vec![1; 64]), ("start", vec![0]), ("end", vec![2])];
    let module = imported(nodes, &vectors).expect("the model is imported");
    let data: u64 = module.data.values().map(|data| data.ty.bytes().expect("a known size")).sum();
    // The vector is stored once for each operand of the first Concat.
    assert_eq!(data, 2 * 64 * 8);
}
