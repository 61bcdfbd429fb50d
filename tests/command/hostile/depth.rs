//! Deep graphs: each node reads the result of the node before it. No code may use a stack frame for each node, or search the whole graph
//! for each node. `benches/chains.py` measures the time of `compile` against the length.

use super::models::{File, node, value, weight};
use crate::TRAINYARD;
use testing::workplace::Workplace;

const NODES: usize = 20_000;

/// `x · w`, followed by a chain of nodes of one operator. `others` are the further operands of each node.
fn chain(op_type: &str, others: &[&str]) -> File {
    let mut nodes = vec![node("MatMul", &["x", "w"], "v0")];
    for at in 0..NODES {
        let from = format!("v{at}");
        nodes.push(node(op_type, &[&[from.as_str()], others].concat(), &format!("v{}", at + 1)));
    }
    let mut tensors = vec![weight("w", &[4, 3])];
    tensors.extend(others.iter().map(|name| weight(name, &[3])));
    let output = value(&format!("v{NODES}"), &["2", "3"]);
    File { nodes, tensors, input: value("x", &["2", "4"]), output }
}

fn is_compiled(name: &str, file: File, operator: &str) {
    let place = Workplace::new(TRAINYARD);
    place.write("chain.onnx", &file.bytes());
    place.succeed("compile chain.onnx -o plan");
    let text = String::from_utf8(place.read("plan/program.ir")).expect("a program is UTF-8");
    let nodes = text.lines().filter(|line| line.contains(&format!(" = {operator} "))).count();
    assert!(nodes >= NODES, "{name}: {nodes} nodes are left of {NODES}");
}

#[test]
fn a_deep_chain_of_elementwise_nodes_is_compiled() {
    is_compiled("tanh", chain("Tanh", &[]), "tanh");
}

#[test]
fn a_tensor_that_is_added_at_every_depth_is_one_parameter() {
    is_compiled("add", chain("Add", &["b"]), "add");
}

/// A node with a hundred thousand inputs becomes a chain that is deeper than the call stack.
#[test]
fn a_sum_of_a_hundred_thousand_is_inspected() {
    let inputs: Vec<&str> = std::iter::repeat_n("v", 100_000).collect();
    let nodes = vec![node("MatMul", &["x", "w"], "v"), node("Sum", &inputs, "y")];
    let (input, output) = (value("x", &["2", "4"]), value("y", &["2", "3"]));
    let place = Workplace::new(TRAINYARD);
    place.write("sum.onnx", &File { nodes, tensors: vec![weight("w", &[4, 3])], input, output }.bytes());
    place.succeed("inspect sum.onnx");
}

#[test]
fn a_deep_chain_is_interpreted() {
    let place = Workplace::new(TRAINYARD);
    place.write("chain.onnx", &chain("Tanh", &[]).bytes());
    place.succeed("verify chain.onnx");
    // In f32, such a long sum differs from the exact numbers by more than the tolerance. So the code may be 3, but the stack must not
    // overflow.
    let ended = place.run("verify chain.onnx --mode cpu");
    assert!(matches!(ended.status.code(), Some(0 | 3)), "{}", ended.stderr);
}
