//! Tests of the inlining of functions.

use super::samples::*;
use super::*;
use crate::proto::{AttributeType, StringStringEntryProto};

/// Returns `op(inputs) -> outputs` for every node.
fn shown(graph: &Graph) -> Vec<String> {
    let line =
        |node: &Node| format!("{}({}) -> {}", node.op_type, node.inputs.join(", "), node.outputs.join(", "));
    graph.nodes.iter().map(line).collect()
}

#[test]
fn a_call_becomes_its_nodes_with_new_names_inside() {
    let twice =
        function("Twice", &["a"], &["r"], vec![node("Neg", &["a"], &["t"]), node("Relu", &["t"], &["r"])]);
    let nodes = vec![call("Twice", &["x"], &["m"]), call("Twice", &["m"], &["y"])];
    let graph = load(&model_with(nodes, vec![twice])).unwrap().graph;
    assert_eq!(
        shown(&graph),
        ["Neg(x) -> Twice.m/t", "Relu(Twice.m/t) -> m", "Neg(m) -> Twice.y/t", "Relu(Twice.y/t) -> y",]
    );
    let first = &graph.nodes[0];
    assert_eq!((first.name.as_str(), first.opset), ("Twice.m/Neg.t", 18));
    assert_eq!(first.function.as_deref(), Some("local.Twice"));
    assert_eq!(first.label(), "node \"Twice.m/Neg.t\" (Neg, opset 18, in function local.Twice)");
}

#[test]
fn nested_calls_and_names_that_are_taken_stay_apart() {
    let inner =
        function("Inner", &["a"], &["r"], vec![node("Neg", &["a"], &["t"]), node("Relu", &["t"], &["r"])]);
    let outer =
        function("Outer", &["a"], &["r"], vec![call("Inner", &["a"], &["t"]), call("Inner", &["t"], &["r"])]);
    let nodes = vec![node("Neg", &["x"], &["Outer.y/t"]), call("Outer", &["Outer.y/t"], &["y"])];
    let graph = load(&model_with(nodes, vec![outer, inner])).unwrap().graph;
    assert_eq!(
        shown(&graph),
        [
            "Neg(x) -> Outer.y/t",
            "Neg(Outer.y/t) -> Outer.y/Inner.t/t",
            "Relu(Outer.y/Inner.t/t) -> Outer.y/t_1",
            "Neg(Outer.y/t_1) -> Outer.y/Inner.r/t",
            "Relu(Outer.y/Inner.r/t) -> y",
        ]
    );
}

#[test]
fn attributes_come_from_the_caller_else_the_default_else_not_at_all() {
    let reader = || {
        let op = with(node("Op", &["a"], &["r"]), reference("axis", "given", AttributeType::Int));
        with(
            with(op, reference("size", "default", AttributeType::Int)),
            reference("left", "out", AttributeType::Int),
        )
    };
    let mut f = function("F", &["a"], &["r"], vec![reader()]);
    f.attribute = vec!["given".into(), "out".into()];
    f.attribute_proto = vec![int("default", 5)];
    let graph = load(&model_with(vec![with(call("F", &["x"], &["y"]), int("given", 3))], vec![f.clone()]))
        .unwrap()
        .graph;
    let op = &graph.nodes[0];
    assert_eq!(
        (op.int("axis").unwrap(), op.int("size").unwrap(), op.int("left").unwrap()),
        (Some(3), Some(5), None)
    );
    let both = with(with(call("F", &["x"], &["y"]), int("given", 3)), int("default", 6));
    let graph = load(&model_with(vec![both], vec![f.clone()])).unwrap().graph;
    assert_eq!(graph.nodes[0].int("size").unwrap(), Some(6));

    f.attribute.clear();
    let message = only_problem(&model_with(
        vec![with(call("F", &["x"], &["y"]), int("out", 1))],
        vec![crate::proto::FunctionProto { attribute: vec!["out".into()], ..f }],
    ));
    assert!(
        message.contains("refers to the attribute \"given\", and function local.F does not have it"),
        "{message}"
    );
}

#[test]
fn omitted_inputs_and_outputs_stay_omitted() {
    let f = function(
        "F",
        &["a", "b"],
        &["r", "s"],
        vec![node("Op", &["a", "b"], &["r"]), node("Neg", &["r"], &["s"])],
    );
    let graph = load(&model_with(vec![call("F", &["x"], &["y"])], vec![f])).unwrap().graph;
    assert_eq!(shown(&graph), ["Op(x, ) -> y", "Neg(y) -> F.y/s"]);
}

#[test]
fn an_output_that_passes_an_input_on_is_an_identity() {
    let f = function("F", &["a"], &["r", "a", "r"], vec![node("Neg", &["a"], &["r"])]);
    let nodes = vec![call("F", &["x"], &["p", "q", "s"]), node("Op", &["p", "q", "s"], &["y"])];
    let graph = load(&model_with(nodes, vec![f])).unwrap().graph;
    assert_eq!(shown(&graph), ["Identity(x) -> q", "Neg(x) -> p", "Identity(p) -> s", "Op(p, q, s) -> y"]);
}

#[test]
fn subgraphs_of_a_function_are_renamed_and_read_its_values() {
    let inner = body(vec![node("Neg", &["t"], &["deep"])], "deep");
    let f = function(
        "F",
        &["a"],
        &["r"],
        vec![
            node("Relu", &["a"], &["t"]),
            with(node("If", &["a"], &["r"]), graph_attribute("then_branch", inner)),
        ],
    );
    let graph = load(&model_with(vec![call("F", &["x"], &["y"])], vec![f])).unwrap().graph;
    let then = graph.nodes[1].graph("then_branch").unwrap().unwrap();
    assert_eq!(shown(then), ["Neg(F.y/t) -> F.y/deep"]);
    assert_eq!(then.outputs[0].name, "F.y/deep");
}

#[test]
fn nodes_inherit_the_metadata_of_their_call() {
    let entry =
        |key: &str, value: &str| StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) };
    let mut own = node("Neg", &["a"], &["r"]);
    own.metadata_props = vec![entry("kept", "inner")];
    let mut outer = call("F", &["x"], &["y"]);
    outer.metadata_props = vec![entry("kept", "outer"), entry("pkg.torch.onnx.name_scopes", "['h']")];
    let graph = load(&model_with(vec![outer], vec![function("F", &["a"], &["r"], vec![own])])).unwrap().graph;
    assert_eq!(graph.nodes[0].metadata["kept"], "inner");
    assert_eq!(graph.nodes[0].metadata["pkg.torch.onnx.name_scopes"], "['h']");
}

#[test]
fn overloads_are_different_functions() {
    let overload = |overload: &str, op| crate::proto::FunctionProto {
        overload: Some(overload.into()),
        ..function("F", &["a"], &["r"], vec![node(op, &["a"], &["r"])])
    };
    let mut second = call("F", &["x"], &["y"]);
    second.overload = Some("b".into());
    let graph =
        load(&model_with(vec![second], vec![overload("a", "Neg"), overload("b", "Relu")])).unwrap().graph;
    assert_eq!(shown(&graph), ["Relu(x) -> y"]);
}

#[test]
fn recursion_is_refused_with_the_chain() {
    let a = function("A", &["a"], &["r"], vec![call("B", &["a"], &["r"])]);
    let b = function("B", &["a"], &["r"], vec![call("A", &["a"], &["r"])]);
    let message = only_problem(&model_with(vec![call("A", &["x"], &["y"])], vec![a, b]));
    assert!(message.contains("functions call themselves: local.A -> local.B -> local.A"), "{message}");
}

#[test]
fn a_function_with_undefined_values_or_wrong_arity_is_refused() {
    let ghost = function("F", &["a"], &["r"], vec![node("Add", &["a", "x"], &["r"])]);
    let message = only_problem(&model_with(vec![call("F", &["x"], &["y"])], vec![ghost]));
    assert!(message.contains("no node or input of function local.F defines \"x\""), "{message}");
    let empty = function("F", &["a"], &["r"], vec![]);
    let message = only_problem(&model_with(vec![call("F", &["x"], &["y"])], vec![empty]));
    assert!(message.contains("no node of the function's body defines its output \"r\""), "{message}");
    let narrow = || function("F", &["a"], &["r"], vec![node("Neg", &["a"], &["r"])]);
    let message = only_problem(&model_with(vec![call("F", &["x", "x"], &["y"])], vec![narrow()]));
    assert!(message.contains("function local.F has 1 inputs, and the call gives 2"), "{message}");
    let twice = only_problem(&model_with(vec![call("F", &["x"], &["y"])], vec![narrow(), narrow()]));
    assert!(twice.contains("function local.F is defined twice"), "{twice}");
}

#[test]
fn growth_without_end_is_refused() {
    // 2^40 nodes from 40 functions.
    let mut functions = vec![function("F0", &["a"], &["r"], vec![node("Neg", &["a"], &["r"])])];
    for level in 1..40 {
        let below = format!("F{}", level - 1);
        let calls = vec![call(&below, &["a"], &["t"]), call(&below, &["t"], &["r"])];
        functions.push(function(&format!("F{level}"), &["a"], &["r"], calls));
    }
    let message = only_problem(&model_with(vec![call("F39", &["x"], &["y"])], functions));
    assert!(message.contains("the model's functions need more than"), "{message}");
}

#[test]
fn deep_chains_of_calls_are_refused() {
    let mut functions = vec![function("F0", &["a"], &["r"], vec![node("Neg", &["a"], &["r"])])];
    for level in 1..500 {
        let below = format!("F{}", level - 1);
        functions.push(function(&format!("F{level}"), &["a"], &["r"], vec![call(&below, &["a"], &["r"])]));
    }
    let message = only_problem(&model_with(vec![call("F499", &["x"], &["y"])], functions));
    assert!(message.contains("nested more than 64 levels deep"), "{message}");
}
