//! A program as a graph for Graphviz: a node an operator, a cluster a phase, edges from what defines a value to what reads
//! it. The text is a function of the program: nodes and edges stand in program order.

use ir::{Definition, Module, Phase, ValueId, visible};
use std::fmt::{self, Display, Write as _};

/// The program in the DOT language.
pub fn dot(module: &Module) -> String {
    let mut text = String::new();
    let written = write(&mut text, module);
    debug_assert!(written.is_ok(), "writing to a string does not fail");
    text
}

fn write(out: &mut String, module: &Module) -> fmt::Result {
    writeln!(out, "digraph {} {{", quoted(&module.name))?;
    writeln!(out, "  node [shape=box, style=rounded, fontname=\"sans-serif\", fontsize=10];")?;
    writeln!(out, "  edge [fontname=\"sans-serif\", fontsize=8];")?;
    for (index, input) in module.inputs.iter().enumerate() {
        let label = label([&input.name, &module.ty(input.value).to_string()]);
        writeln!(out, "  input{index} [label={label}, shape=ellipse];")?;
    }
    for (id, state) in module.states.iter() {
        let label = label([&format!("@{}", state.name), &state.ty.to_string()]);
        writeln!(out, "  {id} [label={label}, shape=cylinder];")?;
    }
    for (phase, name) in Phase::ALL {
        write_phase(out, module, phase, name)?;
    }
    for (index, output) in module.outputs.iter().enumerate() {
        writeln!(out, "  output{index} [label={}, shape=ellipse];", label([&output.name]))?;
    }
    for (id, node) in module.nodes() {
        for &operand in &node.operands {
            write_edge(out, module, operand, id, "")?;
        }
    }
    for (index, output) in module.outputs.iter().enumerate() {
        write_edge(out, module, output.value, format_args!("output{index}"), "")?;
    }
    for (id, state) in module.states.iter() {
        if let Some(new) = state.output.filter(|&new| new != state.input) {
            // The new value of a state is above the step that reads it.
            write_edge(out, module, new, id, " [style=dashed, constraint=false]")?;
        }
    }
    writeln!(out, "}}")
}

fn write_phase(out: &mut String, module: &Module, phase: Phase, name: &str) -> fmt::Result {
    let mut nodes = module.nodes().filter(|(_, node)| node.phase == phase).peekable();
    if nodes.peek().is_none() {
        return Ok(());
    }
    writeln!(out, "  subgraph cluster_{name} {{\n    label={};", quoted(name))?;
    for (id, node) in nodes {
        let types: Vec<String> = node.results.iter().map(|&result| module.ty(result).to_string()).collect();
        let label = label([node.op.name(), &types.join(", "), &node.origin]);
        writeln!(out, "    {id} [label={label}];")?;
    }
    writeln!(out, "  }}")
}

/// An edge from what defines a value; the second and later results of a node are told apart by their number.
fn write_edge(
    out: &mut String,
    module: &Module,
    value: ValueId,
    to: impl Display,
    style: &str,
) -> fmt::Result {
    match module.value(value).definition {
        Definition::Input(index) => writeln!(out, "  input{index} -> {to}{style};"),
        Definition::State(id) => writeln!(out, "  {id} -> {to}{style};"),
        Definition::Node(id, 0) => writeln!(out, "  {id} -> {to}{style};"),
        Definition::Node(id, result) => writeln!(out, "  {id} -> {to} [label=\"{result}\"]{style};"),
    }
}

/// The lines that are not empty, one below the other.
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
