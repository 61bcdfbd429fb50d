//! Tensors without elements, and equations and types that mean nothing, are answered without a panic.

use super::models::{File, node, value, weight};
use super::refused;
use crate::TRAINYARD;
use onnx::proto::{AttributeProto, NodeProto};
use testing::workplace::Workplace;

/// A node of the operator Einsum.
fn einsum(equation: &str) -> NodeProto {
    let attribute = AttributeProto {
        name: Some("equation".into()),
        s: Some(equation.as_bytes().to_vec().into()),
        r#type: Some(3),
        ..AttributeProto::default()
    };
    NodeProto { attribute: vec![attribute], ..node("Einsum", &["x", "w"], "y") }
}

/// Writes a model, and returns its folder.
fn written(file: File) -> Workplace {
    let place = Workplace::new(TRAINYARD);
    place.write("model.onnx", &file.bytes());
    place
}

#[test]
fn a_product_over_no_elements_is_zero_on_the_processor() {
    let nodes = vec![node("MatMul", &["x", "a"], "t"), node("MatMul", &["t", "b"], "y")];
    let tensors = vec![weight("a", &[4, 0]), weight("b", &[0, 8])];
    let place =
        written(File { nodes, tensors, input: value("x", &["2", "4"]), output: value("y", &["2", "8"]) });
    for command in
        ["verify model.onnx --loss mse", "compile model.onnx --loss mse --train synthetic --steps 1 -o run"]
    {
        let ended = place.run(command);
        assert!(matches!(ended.status.code(), Some(0 | 2)), "{command}: {}", ended.stderr);
    }
}

#[test]
fn an_output_without_elements_is_compared_on_the_processor() {
    let nodes = vec![node("MatMul", &["x", "w"], "y")];
    let tensors = vec![weight("w", &[4, 0])];
    let place =
        written(File { nodes, tensors, input: value("x", &["2", "4"]), output: value("y", &["2", "0"]) });
    for mode in ["exact", "cpu"] {
        let ended = place.run(&format!("verify model.onnx --loss mse --mode {mode}"));
        assert!(matches!(ended.status.code(), Some(0 | 2 | 3)), "{mode}: {}", ended.stderr);
    }
}

#[test]
fn a_term_with_two_ellipses_is_refused() {
    let (input, output) = (value("x", &["2", "4"]), value("y", &["2", "4"]));
    let place = written(File {
        nodes: vec![einsum("......ii,...jj->...ij")],
        tensors: vec![weight("w", &[4, 3])],
        input,
        output,
    });
    assert!(refused(&place.run("inspect model.onnx")).contains("the term `......ii` has two ellipses"));
}

#[test]
fn a_product_of_three_is_refused() {
    let (input, output) = (value("x", &["2", "4"]), value("y", &["2", "4"]));
    let nodes = vec![node("Mul", &["x", "w", "w"], "y")];
    let place = written(File { nodes, tensors: vec![weight("w", &[4])], input, output });
    assert!(refused(&place.run("inspect model.onnx")).contains("`Mul` takes two inputs, not 3"));
}
