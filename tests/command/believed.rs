//! Results that `verify` must not accept, and results that it must accept.

use crate::TRAINYARD;
use crate::hostile::models::{File, node, value, weight};
use onnx::proto::{AttributeProto, NodeProto};
use testing::workplace::Workplace;

/// A model in a folder, with an input of dims `input` and an output of dims `output`. Its weights `weights` are all 0.1.
fn written(nodes: Vec<NodeProto>, weights: &[(&str, &[i64])], input: &[&str], output: &[&str]) -> Workplace {
    let tensors = weights.iter().map(|(name, dims)| weight(name, dims)).collect();
    let place = Workplace::new(TRAINYARD);
    let file = File { nodes, tensors, input: value("x", input), output: value("y", output) };
    place.write("model.onnx", &file.bytes());
    place
}

/// A model of f32[2, 2] with these nodes, which have no attributes.
fn model(nodes: &[(&str, &[&str], &str)]) -> Workplace {
    let nodes = nodes.iter().map(|(op_type, inputs, output)| node(op_type, inputs, output)).collect();
    written(nodes, &[("w", &[2, 2])], &["2", "2"], &["2", "2"])
}

fn integers(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        ints: ints.to_vec(),
        r#type: Some(7),
        ..AttributeProto::default()
    }
}

fn integer(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: Some(name.into()), i: Some(i), r#type: Some(2), ..AttributeProto::default() }
}

fn text(name: &str, text: &str) -> AttributeProto {
    let s = Some(text.as_bytes().to_vec().into());
    AttributeProto { name: Some(name.into()), s, r#type: Some(3), ..AttributeProto::default() }
}

/// The exit code of a command, and all that it wrote.
fn ended(place: &Workplace, command: &str) -> (Option<i32>, String) {
    let output = place.command(command).output().expect("the binary runs");
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.code(), out + &err)
}

/// In PyTorch and in ONNX Runtime, the ReLU of a NaN is NaN.
#[test]
fn nan_on_both_sides_is_not_equal() {
    let place = model(&[
        ("MatMul", &["x", "w"], "product"),
        ("Abs", &["product"], "size"),
        ("Neg", &["size"], "negative"),
        ("Log", &["negative"], "log"),
        ("Relu", &["log"], "y"),
    ]);
    for mode in ["exact", "cpu"] {
        let (code, text) = ended(&place, &format!("verify model.onnx --loss mse --mode {mode}"));
        assert_eq!(code, Some(3), "{mode}: {text}");
        assert!(text.contains("NaN on both sides: nothing to compare"), "{mode}: {text}");
        assert!(text.contains("loss NaN") && text.contains("\nNOT COMPARED: "), "{mode}: {text}");
    }
    let (_, text) = ended(&place, "verify model.onnx --loss mse --bisect");
    assert!(!text.contains("broken by"), "{text}");
}

#[test]
fn a_model_without_a_gradient_is_refused_by_every_command() {
    let place = model(&[("MatMul", &["x", "w"], "product"), ("Sign", &["product"], "y")]);
    for command in
        ["inspect model.onnx", "verify model.onnx", "compile model.onnx --train synthetic --steps 1 -o run"]
    {
        let (code, text) = ended(&place, &format!("{command} --loss mse"));
        assert_eq!(code, Some(2), "{command}: {text}");
        assert!(
            text.contains("no parameter has a gradient: the loss does not depend on `w`"),
            "{command}: {text}"
        );
    }
}

/// The normalisation of two numbers is 1 and -1, whatever they are, so the gradient is only rounding.
#[test]
fn a_gradient_that_is_rounding_alone_is_equal_in_mode_exact() {
    let axes = vec![integers("axes", &[1])];
    let normalization = NodeProto { attribute: axes, ..node("MeanVarianceNormalization", &["scaled"], "y") };
    let nodes = vec![node("Mul", &["x", "w"], "scaled"), normalization];
    let place = written(nodes, &[("w", &[2, 2])], &["2", "2"], &["2", "2"]);
    let (code, text) = ended(&place, "verify model.onnx --loss mse --train-also w");
    assert_eq!(code, Some(0), "{text}");
}

/// The rows of a fresh recurrent layer's bias are equal, but different operands read them.
#[test]
fn equal_rows_that_are_read_apart_are_states_of_their_own() {
    let attribute = vec![integer("hidden_size", 2), text("direction", "bidirectional")];
    let layer = NodeProto { attribute, ..node("LSTM", &["x", "W", "R", "B"], "y") };
    let weights: &[(&str, &[i64])] = &[("W", &[2, 8, 2]), ("R", &[2, 8, 2]), ("B", &[2, 16])];
    let place = written(vec![layer], weights, &["3", "2", "2"], &["3", "2", "2", "2"]);
    let (code, text) = ended(&place, "inspect model.onnx --loss mse");
    assert_eq!(code, Some(0), "{text}");
    let states: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("state B[")).collect();
    assert_eq!(states.len(), 4, "{text}");
    let (code, text) = ended(&place, "verify model.onnx --loss mse");
    assert_eq!(code, Some(0), "{text}");
}
