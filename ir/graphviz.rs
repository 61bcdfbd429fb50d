//! A program as a graph for Graphviz. Each operator is a node, and each phase a cluster. An edge leads from the definition of a value to a
//! reader of the value. Nodes and edges are written in program order, so equal programs give equal text.

use crate::{Definition, Module, Phase, ValueId, visible};
use std::fmt::Display;

/// Returns a program in the DOT language.
pub fn graphviz(module: &Module) -> String {
    let inputs = module.inputs.iter().enumerate().map(|(index, input)| {
        let label = label([&input.name, &module.ty(input.value).to_string()]);
        format!("  input{index} [label={label}, shape=ellipse];\n")
    });
    let states = module.states.iter().map(|(id, state)| {
        let label = label([&format!("@{}", state.name), &state.ty.to_string()]);
        format!("  {id} [label={label}, shape=cylinder];\n")
    });
    let clusters = Phase::ALL.into_iter().map(|(phase, name)| cluster(module, phase, name));
    let outputs = module.outputs.iter().enumerate().map(|(index, output)| {
        format!("  output{index} [label={}, shape=ellipse];\n", label([&output.name]))
    });
    let read = module.nodes().flat_map(|(id, node)| node.operands.iter().map(move |&value| (id, value)));
    let to_nodes = read.map(|(id, value)| edge(module, value, id, ""));
    let given = module.outputs.iter().enumerate();
    let to_outputs = given.map(|(index, output)| edge(module, output.value, format!("output{index}"), ""));
    let to_states = module.states.iter().filter_map(|(id, state)| {
        let new = state.output.filter(|&new| new != state.input)?;
        // The edge from the new value back to the state does not move the state below the node.
        Some(edge(module, new, id, " [style=dashed, constraint=false]"))
    });
    let nodes = inputs.chain(states).chain(clusters).chain(outputs);
    let lines: String = nodes.chain(to_nodes).chain(to_outputs).chain(to_states).collect();
    format!(
        "digraph {} {{\n  node [shape=box, style=rounded, fontname=\"sans-serif\", fontsize=10];\n  edge \
         [fontname=\"sans-serif\", fontsize=8];\n{lines}}}\n",
        quoted(&module.name)
    )
}

/// The nodes of a phase. Empty if there are none.
fn cluster(module: &Module, phase: Phase, name: &str) -> String {
    let nodes = module.nodes().filter(|(_, node)| node.phase == phase).map(|(id, node)| {
        let types: Vec<String> = node.results.iter().map(|&result| module.ty(result).to_string()).collect();
        format!("    {id} [label={}];\n", label([node.op.name(), &types.join(", "), &node.origin]))
    });
    let nodes: String = nodes.collect();
    if nodes.is_empty() {
        return nodes;
    }
    format!("  subgraph cluster_{name} {{\n    label={};\n{nodes}  }}\n", quoted(name))
}

/// An edge from the definition of a value. The edge of a second or later result of a node is labelled with the number of the result.
fn edge(module: &Module, value: ValueId, to: impl Display, style: &str) -> String {
    match module.value(value).definition {
        Definition::Input(index) => format!("  input{index} -> {to}{style};\n"),
        Definition::State(id) => format!("  {id} -> {to}{style};\n"),
        Definition::Node(id, 0) => format!("  {id} -> {to}{style};\n"),
        Definition::Node(id, result) => format!("  {id} -> {to} [label=\"{result}\"]{style};\n"),
    }
}

/// Returns a label of the lines that are not empty.
fn label<const N: usize>(lines: [&str; N]) -> String {
    let lines = lines.iter().filter(|line| !line.is_empty()).map(|line| escaped(line));
    format!("\"{}\"", lines.collect::<Vec<_>>().join("\\n"))
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text))
}

fn escaped(text: &str) -> String {
    visible(text).replace('\\', "\\\\").replace('"', "\\\"")
}
