//! Tests of control flow: graphs that cannot be unrolled are refused with a remedy, and tensors of a body are added once.

use super::{ImportOptions, import};
use crate::model::samples::{body, graph_attribute, load, model, node, tensor, value, with};
use crate::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use crate::{ElementType, Imported};
use ir::Diagnostic;

fn imported(model: &ModelProto) -> Result<Imported, Vec<Diagnostic>> {
    import(&load(model).expect("the model loads"), &ImportOptions::default())
}

/// Returns the text of the only problem of a model.
fn refused(model: &ModelProto) -> String {
    let problems = imported(model).expect_err("the model is refused");
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems[0].to_string()
}

fn scalar(name: &str, dtype: ElementType, bytes: &[u8]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        data_type: Some(dtype.code()),
        raw_data: Some(bytes.to_vec().into()),
        ..TensorProto::default()
    }
}

/// Makes a model from `x` to `y` that also has the scalars `yes`, `no` and `zero`.
fn model_of(nodes: Vec<NodeProto>) -> ModelProto {
    let mut model = model(nodes);
    let graph = model.graph.as_mut().expect("a sample has a graph");
    graph.initializer = vec![
        scalar("yes", ElementType::Bool, &[1]),
        scalar("no", ElementType::Bool, &[0]),
        scalar("zero", ElementType::F32, &0f32.to_le_bytes()),
        scalar("two", ElementType::I64, &2i64.to_le_bytes()),
    ];
    model
}

/// Makes the body of an endless loop that carries one f32[2].
fn steps(nodes: Vec<NodeProto>, next: &str, tensors: Vec<TensorProto>) -> GraphProto {
    GraphProto {
        name: Some("body".into()),
        node: [nodes, vec![node("Identity", &["go"], &["more"])]].concat(),
        initializer: tensors,
        input: vec![
            value("i", ElementType::I64, &[]),
            value("go", ElementType::Bool, &[]),
            value("state", ElementType::F32, &[2]),
        ],
        output: vec![value("more", ElementType::Bool, &[]), value(next, ElementType::F32, &[2])],
        ..GraphProto::default()
    }
}

fn branch(output: &str, nodes: Vec<NodeProto>, tensors: Vec<TensorProto>) -> GraphProto {
    GraphProto { initializer: tensors, ..body(nodes, output) }
}

#[test]
fn a_branch_that_data_decides_is_refused_with_what_would_work() {
    let pick = with(
        with(
            node("If", &["positive"], &["y"]),
            graph_attribute("then_branch", branch("a", vec![node("Neg", &["x"], &["a"])], vec![])),
        ),
        graph_attribute("else_branch", branch("b", vec![node("Exp", &["x"], &["b"])], vec![])),
    );
    let sum = with(node("ReduceSum", &["x"], &["sum"]), crate::model::samples::int("keepdims", 0));
    let told = refused(&model_of(vec![sum, node("Greater", &["sum", "zero"], &["positive"]), pick]));
    assert!(told.contains("the condition of the branch is computed from data (input `x`)"), "{told}");
    assert!(told.contains("node \"If.y\" (If, opset 20)"), "{told}");
    assert!(told.contains("torch.where"), "{told}");
}

#[test]
fn a_loop_without_end_or_with_a_number_of_steps_from_data_is_refused() {
    let neg = || steps(vec![node("Neg", &["state"], &["next"])], "next", vec![]);
    let endless = with(node("Loop", &["", "yes", "x"], &["y"]), graph_attribute("body", neg()));
    let told = refused(&model_of(vec![endless]));
    assert!(told.contains("more than 8192 nodes"), "{told}");
    let cast = with(node("Cast", &["sum"], &["count"]), crate::model::samples::int("to", 7));
    let sum = with(node("ReduceSum", &["x"], &["sum"]), crate::model::samples::int("keepdims", 0));
    let counted = with(node("Loop", &["count", "", "x"], &["y"]), graph_attribute("body", neg()));
    let told = refused(&model_of(vec![sum, cast, counted]));
    assert!(told.contains("the number of the loop's steps is computed from data"), "{told}");
    assert!(told.contains("(Loop, opset 20)"), "{told}");
}

#[test]
fn what_is_wrong_in_a_body_is_told_once() {
    let wrong = steps(vec![node("Foo", &["state"], &["next"])], "next", vec![]);
    let loops = with(node("Loop", &["two", "", "x"], &["y"]), graph_attribute("body", wrong));
    let told = refused(&model_of(vec![loops]));
    assert!(told.contains("operator Foo is not supported"), "{told}");
}

#[test]
fn a_weight_in_a_body_is_one_tensor_however_often_it_runs() {
    let weight = |number: f32| tensor("w", &[2], &[number, 1.0]);
    let add = |from: &str, to: &str, number| {
        branch(to, vec![node("Mul", &[from, "w"], &[to])], vec![weight(number)])
    };
    let pick = |from: &str, to: &str, inner: &str, number| {
        let pick =
            with(node("If", &["yes"], &[to]), graph_attribute("then_branch", add(from, inner, number)));
        with(
            pick,
            graph_attribute("else_branch", branch("other", vec![node("Neg", &[from], &["other"])], vec![])),
        )
    };
    let inner = vec![pick("state", "half", "first", 2.0), pick("half", "next", "second", 3.0)];
    let loops =
        with(node("Loop", &["two", "", "x"], &["y"]), graph_attribute("body", steps(inner, "next", vec![])));
    let imported = imported(&model_of(vec![loops])).expect("the model is imported");
    let names: Vec<&str> = imported.module.data.values().map(|data| data.name.as_str()).collect();
    let weights: Vec<&&str> = names.iter().filter(|name| name.starts_with('w')).collect();
    assert_eq!(weights, [&"w", &"w_2"], "{names:?}");
    let products = imported.module.nodes().filter(|(_, node)| node.op.name() == "mul").count();
    assert_eq!(products, 4);
}

#[test]
fn a_recurrent_layer_over_too_many_steps_is_refused() {
    // The reset gate of this GRU acts on the state, which the operator lacks, so it is unrolled.
    let told = refused(&over_many_steps("GRU", 3));
    assert!(told.contains("the 100000 steps of this layer") && told.contains("16384"), "{told}");
    assert!(told.contains("--bind") && told.contains("`linear_before_reset` is 0"), "{told}");
}

#[test]
fn a_recurrent_layer_over_many_steps_is_one_operator() {
    let imported = imported(&over_many_steps("RNN", 1)).expect("the model is imported");
    let layers = imported.module.nodes().filter(|(_, node)| node.op.name() == "recurrent").count();
    assert!(layers == 1 && imported.module.nodes().count() < 20 && imported.warnings.is_empty());
}

/// Returns a model with a recurrent layer of so many gates over 100,000 steps.
fn over_many_steps(operator: &str, gates: i64) -> ModelProto {
    let mut model = model(vec![node(operator, &["long", "w", "r"], &["y"])]);
    let graph = model.graph.as_mut().expect("a sample has a graph");
    graph.input = vec![
        value("long", ElementType::F32, &[100_000, 1, 1]),
        value("w", ElementType::F32, &[1, gates, 1]),
        value("r", ElementType::F32, &[1, gates, 1]),
    ];
    model
}
