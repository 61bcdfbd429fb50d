//! Tests of headers, order, definitions, attributes and constants.

use super::samples::*;
use super::*;
use crate::proto::{
    AttributeProto, AttributeType, GraphProto, NodeProto, TensorShapeProtoDimensionValue, TypeProtoValue,
};
use crate::tensor::{ElementType, TensorSource};

fn order(graph: &Graph) -> Vec<&str> {
    graph.nodes.iter().map(|node| &node.op_type[..]).collect()
}

fn edited(
    mut model: crate::proto::ModelProto,
    edit: impl FnOnce(&mut GraphProto),
) -> crate::proto::ModelProto {
    edit(model.graph.as_mut().unwrap());
    model
}

#[test]
fn nodes_out_of_order_are_sorted_and_the_rest_stays() {
    let nodes = vec![
        node("Tanh", &["x"], &["t"]),
        node("Add", &["t", "late"], &["y"]),
        node("Relu", &["x"], &["late"]),
        node("Neg", &["x"], &["n"]),
    ];
    assert_eq!(order(&load(&model(nodes)).unwrap().graph), ["Tanh", "Relu", "Add", "Neg"]);
}

#[test]
fn a_cycle_is_named_node_by_node() {
    let nodes = vec![
        node("Neg", &["b"], &["y"]),
        node("Add", &["x", "b"], &["a"]),
        node("Relu", &["a"], &["c"]),
        node("Tanh", &["c"], &["b"]),
    ];
    let message = only_problem(&model(nodes));
    assert!(message.starts_with("3 nodes form a cycle: "), "{message}");
    for name in ["Add.a", "Relu.c", "Tanh.b"] {
        assert!(message.contains(name), "{message}");
    }
    assert!(!message.contains("Neg"), "{message}");
}

#[test]
fn all_problems_of_a_graph_are_reported_at_once() {
    let nodes =
        vec![node("Add", &["x", "ghost"], &["a"]), node("Relu", &["x"], &["a"]), node("Neg", &["a"], &["x"])];
    let problems = problems(&model(nodes));
    let messages: Vec<&str> = problems.iter().map(|problem| &problem.message[..]).collect();
    assert_eq!(
        messages,
        [
            "value \"a\" is defined twice, first by node \"Add.a\" (Add, opset 20)",
            "value \"x\" is defined twice, first by input \"x\"",
            "no node or tensor defines input \"ghost\"",
            "no node or tensor defines output \"y\" of graph \"g\"",
        ]
    );
    assert_eq!(problems[2].origin.as_deref(), Some("node \"Add.a\" (Add, opset 20)"));
}

#[test]
fn versions_that_are_not_known_are_refused() {
    let relu = || vec![node("Relu", &["x"], &["y"])];
    let mut old = model(relu());
    old.ir_version = Some(2);
    old.opset_import = vec![opset("ai.onnx", 29)];
    let problems = problems(&old);
    assert_eq!(
        problems[0].message,
        "the file has ONNX IR version 2, which is older than the supported versions 3 to 14"
    );
    assert_eq!(problems[1].message, "opset 29 of ai.onnx is outside the supported range 5 to 28");
    let foreign = NodeProto { domain: Some("com.example".into()), ..node("Op", &["x"], &["y"]) };
    assert!(
        only_problem(&model(vec![foreign]))
            .contains("the file does not import the opset of domain \"com.example\"")
    );
    let mut none = model(relu());
    none.ir_version = None;
    assert!(only_problem(&none).contains("no ONNX IR version"));
}

#[test]
fn an_initializer_that_is_also_an_input_is_one_value() {
    let old = edited(model(vec![node("Add", &["x", "w"], &["y"])]), |graph| {
        graph.initializer = vec![tensor("w", &[2], &[1.0, 2.0])];
        graph.input.push(value("w", ElementType::F32, &[-1]));
    });
    let graph = load(&old).unwrap().graph;
    assert_eq!(graph.inputs.len(), 1);
    assert_eq!(graph.tensor("w").unwrap().floats().unwrap(), [1.0, 2.0]);
    assert_eq!(graph.tensor("w").unwrap().source, TensorSource::Initializer);

    let wrong = edited(old, |graph| graph.input[1] = value("w", ElementType::F32, &[3]));
    let message = only_problem(&wrong);
    assert!(
        message.contains("input \"w\" is declared as f32[3], and its initializer has another type"),
        "{message}"
    );
    assert!(message.contains("tensor \"w\" (f32[2])"), "{message}");
}

#[test]
fn dims_are_numbers_names_or_unknown() {
    let mut input = value("x", ElementType::I64, &[4, -1, 0, 7]);
    let ty = input.r#type.as_mut().unwrap();
    let Some(TypeProtoValue::TensorType(declared)) = &mut ty.value else { panic!() };
    let dims = &mut declared.shape.as_mut().unwrap().dim;
    dims[2].value = Some(TensorShapeProtoDimensionValue::DimParam("batch".into()));
    dims[3].value = None;
    let model = edited(model(vec![node("Relu", &["x"], &["y"])]), |graph| graph.input = vec![input]);
    let graph = load(&model).unwrap().graph;
    let ty = graph.inputs[0].ty.tensor().unwrap();
    assert_eq!(ty.dims, Some(vec![Dim::Known(4), Dim::Unknown, Dim::Named("batch".into()), Dim::Unknown]));
    assert_eq!(ty.to_string(), "i64[4, ?, batch, ?]");
}

#[test]
fn attributes_are_decoded_by_their_type() {
    let named = |name: &str| AttributeProto { name: Some(name.into()), ..Default::default() };
    let mut op = with(node("Op", &["x"], &["y"]), int("axis", -1));
    op = with(op, AttributeProto { f: Some(0.5), ..named("no_type") });
    op = with(op, AttributeProto { s: Some("text".into()), r#type: Some(3), ..named("text") });
    op = with(
        op,
        AttributeProto { ints: vec![1, 2], r#type: Some(AttributeType::Ints as i32), ..named("ints") },
    );
    op = with(op, AttributeProto { r#type: Some(AttributeType::Ints as i32), ..named("empty") });
    let graph = load(&model(vec![op])).unwrap().graph;
    let op = &graph.nodes[0];
    assert_eq!(op.int("axis").unwrap(), Some(-1));
    assert_eq!(op.float("no_type").unwrap(), Some(0.5));
    assert_eq!(op.string("text").unwrap(), Some("text"));
    assert_eq!(op.ints("ints").unwrap(), Some(&[1, 2][..]));
    assert_eq!(op.ints("empty").unwrap(), Some(&[][..]));
    assert_eq!(op.int("missing").unwrap(), None);
    let wrong = op.int("text").unwrap_err().to_string();
    assert_eq!(wrong, "attribute \"text\" must be INT; it is STRING\n  --> node \"Op.y\" (Op, opset 20)");
}

#[test]
fn attributes_that_contradict_themselves_are_refused() {
    let bad = AttributeProto { f: Some(1.0), ..int("axis", 1) };
    let message = only_problem(&model(vec![with(node("Op", &["x"], &["y"]), bad)]));
    assert!(
        message.contains("attribute \"axis\" is declared as INT, and its value has type FLOAT"),
        "{message}"
    );
    let twice = with(with(node("Op", &["x"], &["y"]), int("axis", 1)), int("axis", 2));
    assert!(only_problem(&model(vec![twice])).contains("attribute \"axis\" is given twice"));
    let alone = with(node("Op", &["x"], &["y"]), reference("axis", "a", AttributeType::Int));
    assert!(only_problem(&model(vec![alone])).contains("and its node is not in a function"));
}

#[test]
fn constant_nodes_become_tensors() {
    let constant = |name: &str, attribute: AttributeProto| {
        let attribute = AttributeProto { name: Some(attribute.name.unwrap()), ..attribute };
        with(node("Constant", &[], &[name]), attribute)
    };
    let floats =
        AttributeProto { name: Some("value_floats".into()), floats: vec![1.5, 2.5], ..Default::default() };
    let whole = AttributeProto {
        name: Some("value".into()),
        t: Some(Box::new(tensor("", &[1, 2], &[3.0, 4.0]))),
        ..Default::default()
    };
    let nodes = vec![
        constant("i", int("value_int", 7)),
        constant("f", floats),
        constant("t", whole),
        node("Op", &["x", "i", "f", "t"], &["y"]),
    ];
    let graph = load(&model(nodes)).unwrap().graph;
    assert_eq!(order(&graph), ["Op"]);
    let get = |name: &str| graph.tensor(name).unwrap();
    assert_eq!((get("i").integers().unwrap(), &get("i").dims[..]), (vec![7], &[][..]));
    assert_eq!((get("f").floats().unwrap(), &get("f").dims[..]), (vec![1.5, 2.5], &[2][..]));
    assert_eq!((get("t").floats().unwrap(), &get("t").dims[..]), (vec![3.0, 4.0], &[1, 2][..]));
    assert!(graph.tensors.iter().all(|tensor| tensor.source == TensorSource::Constant));

    let both = with(constant("y", int("value_int", 1)), int("value_ints", 2));
    assert!(only_problem(&model(vec![both])).contains("exactly one of value, value_float"));
}

#[test]
fn a_subgraph_reads_values_around_it_and_orders_its_node_after_them() {
    let inner = body(vec![node("Neg", &["late"], &["inner"])], "inner");
    let nodes = vec![
        with(node("If", &["x"], &["y"]), graph_attribute("then_branch", inner)),
        node("Relu", &["x"], &["late"]),
    ];
    let graph = load(&model(nodes)).unwrap().graph;
    assert_eq!(order(&graph), ["Relu", "If"]);
    let then = graph.nodes[1].graph("then_branch").unwrap().unwrap();
    assert_eq!(order(then), ["Neg"]);
    assert_eq!(then.outputs[0].ty, ValueType::Undeclared);
}

#[test]
fn names_in_subgraphs_must_be_defined_and_new() {
    let hides = body(vec![node("Neg", &["x"], &["x"])], "x");
    let message =
        only_problem(&model(vec![with(node("If", &["x"], &["y"]), graph_attribute("then_branch", hides))]));
    assert!(message.contains("value \"x\" hides a value of the same name"), "{message}");
    let ghost = body(vec![node("Neg", &["ghost"], &["inner"])], "inner");
    let message =
        only_problem(&model(vec![with(node("If", &["x"], &["y"]), graph_attribute("then_branch", ghost))]));
    assert!(message.contains("no node or tensor defines input \"ghost\""), "{message}");
    let own = body(vec![node("Neg", &["y"], &["inner"])], "inner");
    let message =
        only_problem(&model(vec![with(node("If", &["x"], &["y"]), graph_attribute("then_branch", own))]));
    assert!(message.contains("1 nodes form a cycle"), "{message}");
}

#[test]
fn sparse_initializers_and_nameless_ones_are_refused() {
    let model = edited(model(vec![node("Relu", &["x"], &["y"])]), |graph| {
        graph.initializer = vec![tensor("", &[1], &[1.0])];
        graph.sparse_initializer = vec![crate::proto::SparseTensorProto {
            values: Some(tensor("sparse", &[1], &[1.0])),
            ..Default::default()
        }];
    });
    let problems = problems(&model);
    assert!(problems[0].message.contains("has no name"));
    assert!(problems[1].message.contains("\"sparse\" is sparse"));
}

#[test]
fn a_tensor_that_cannot_be_read_is_one_problem_and_its_readers_none() {
    let bad = int("value_floats", 1);
    let constant = with(node("Constant", &[], &["c"]), bad);
    let model = edited(model(vec![constant, node("Op", &["x", "w", "c", "ghost"], &["y"])]), |graph| {
        graph.initializer = vec![tensor("w", &[-1], &[1.0])];
    });
    let problems = problems(&model);
    let messages: Vec<&str> = problems.iter().map(|problem| &problem.message[..]).collect();
    assert_eq!(messages.len(), 3, "{messages:?}");
    assert!(messages[0].contains("negative dim") && messages[1].contains("of Constant"), "{messages:?}");
    assert!(messages[2].contains("no node or tensor defines input \"ghost\""), "{messages:?}");
}
