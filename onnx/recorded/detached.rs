//! `detach`: ONNX has no such operator, so only the record tells through which values no gradient flows.
//!
//! A node that reads a detached value has `%detach` among the arguments of its call. The exporter may have merged such a node with
//! a node that reads the value itself. Then a call names a value of the trace that no node defines any more.

use super::call;
use crate::record::Record;
use crate::record::traced::{self, TracedCall};
use crate::{Graph, Node};
use ir::Diagnostic;
use std::collections::{BTreeMap, BTreeSet};

/// The detached inputs of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Detached {
    /// The names of the values that a node reads detached, by the first output of the node.
    reads: BTreeMap<String, Vec<Read>>,
    /// Calls with a detached argument that could not be matched to an input of their nodes.
    unknown: Vec<String>,
}

/// A value that a node reads detached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Read {
    value: String,
    /// The detached input; `None` for all inputs that read the value.
    input: Option<usize>,
}

impl Detached {
    /// Reads the traced calls of a graph's nodes.
    pub(crate) fn find(graph: &Graph, record: &Record) -> Self {
        let mut detached = Self::default();
        if !record.is_listed {
            return detached;
        }
        let stored: BTreeSet<&str> = graph.tensors.iter().map(|tensor| &tensor.name[..]).collect();
        // A `detach` that is a value of the graph is a separate node, which the import handles.
        let mut values: BTreeSet<&str> = graph.inputs.iter().map(|input| &input.name[..]).collect();
        values.extend(graph.nodes.iter().flat_map(|node| node.outputs.iter().map(String::as_str)));
        let mut calls: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
        for node in &graph.nodes {
            if let Some(text) = node.metadata.get(traced::KEY).filter(|text| text.contains("detach")) {
                calls.entry(text).or_default().push(node);
            }
        }
        for nodes in calls.values() {
            let Some(call) = call(nodes[0]) else { continue };
            detached.of_call(&call, nodes, |name| stored.contains(name), &values);
        }
        detached
    }

    /// Adds the detached reads of a call that became `nodes`. A call `detach` detaches the input of its node.
    ///
    /// Otherwise the call's arguments that are not parameters are matched in order with the values that the nodes read from
    /// outside: with the inputs of the node if it is a single node with as many; else the values that the call does not name, with
    /// the arguments that the nodes do not read by name or that are detached. If the numbers differ, the call goes to `unknown`.
    ///
    /// Example: for `add(%detach, %x)` that became `Add(h, x)`, input 0 is read detached.
    fn of_call(
        &mut self,
        call: &TracedCall,
        nodes: &[&Node],
        is_stored: impl Fn(&str) -> bool,
        values: &BTreeSet<&str>,
    ) {
        // If the file was exported without the optimizer, the call is a separate node.
        if call.operator == "detach" {
            for node in nodes {
                let read = node.input(0).map(|value| Read { value: value.to_owned(), input: Some(0) });
                self.add(node, read);
            }
            return;
        }
        let defined: BTreeSet<&str> =
            nodes.iter().flat_map(|node| node.outputs.iter().map(String::as_str)).collect();
        let is_outer = |name: &str| !name.is_empty() && !defined.contains(name) && !is_stored(name);
        let arguments = call.values();
        let is_detached = |argument: &str| is_detach(argument) && !values.contains(argument);
        if !arguments.iter().any(|argument| is_detached(argument)) {
            return;
        }
        // A single node with an input for each argument: both are in the same order.
        if let [node] = nodes {
            let reads: Vec<usize> = (0..node.inputs.len()).filter(|&i| is_outer(&node.inputs[i])).collect();
            let values: Vec<&&str> = arguments.iter().filter(|name| !is_parameter(name)).collect();
            if reads.len() == values.len() {
                for (&i, _) in reads.iter().zip(values).filter(|(_, argument)| is_detached(argument)) {
                    self.add(node, Some(Read { value: node.inputs[i].clone(), input: Some(i) }));
                }
                return;
            }
        }
        let mut outer: Vec<&str> = Vec::new();
        for name in
            nodes.iter().flat_map(|node| &node.inputs).map(String::as_str).filter(|name| is_outer(name))
        {
            if !outer.contains(&name) && !arguments.contains(&name) {
                outer.push(name);
            }
        }
        let unnamed: Vec<&str> = arguments
            .iter()
            .copied()
            .filter(|name| !is_parameter(name) && (is_detached(name) || !reads_by_name(nodes, name)))
            .collect();
        if outer.len() != unnamed.len() {
            self.unknown.push(nodes[0].label());
            return;
        }
        let values = outer.iter().zip(&unnamed).filter(|(_, argument)| is_detached(argument));
        for (value, _) in values {
            for node in nodes.iter().filter(|node| node.inputs.iter().any(|input| input == value)) {
                self.add(node, Some(Read { value: (*value).to_owned(), input: None }));
            }
        }
    }

    fn add(&mut self, node: &Node, read: Option<Read>) {
        let key = node.outputs.iter().find(|output| !output.is_empty());
        if let (Some(key), Some(read)) = (key, read) {
            self.reads.entry(key.clone()).or_default().push(read);
        }
    }

    /// Returns the inputs of a node that are read detached.
    pub(crate) fn inputs(&self, node: &Node) -> Vec<usize> {
        if self.reads.is_empty() {
            return vec![];
        }
        let key = node.outputs.iter().find(|output| !output.is_empty());
        let reads = key.and_then(|key| self.reads.get(key)).into_iter().flatten();
        let mut inputs = BTreeSet::new();
        for read in reads {
            let all = (0..node.inputs.len()).filter(|&i| node.inputs[i] == read.value);
            inputs.extend(all.filter(|i| read.input.is_none_or(|one| one == *i)));
        }
        inputs.into_iter().collect()
    }

    /// Warns of each `detach` that may not have its effect.
    pub(crate) fn warnings(&self, graph: &Graph) -> Vec<Diagnostic> {
        let mut warnings = Vec::new();
        if let Some(first) = self.unknown.first() {
            let count = self.unknown.len();
            let message =
                format!("{count} calls read a detached value, and the file does not say which input it is");
            warnings.push(Diagnostic::new(message).at(first.clone()).note(
                "gradients flow through these values; export with optimize=False, which keeps `detach` as a \
                 node",
            ));
        }
        if !self.reads.is_empty() {
            warnings.extend(self.merged(graph));
        }
        warnings
    }

    /// Warns of a node that reads a value behind a detached one twice, while its call names a value that no longer exists: the
    /// exporter has merged two values, and one of them may not have been detached.
    fn merged(&self, graph: &Graph) -> Option<Diagnostic> {
        let mut behind: BTreeSet<&str> = BTreeSet::new();
        for node in &graph.nodes {
            let detached = !self.inputs(node).is_empty();
            if detached || node.inputs.iter().any(|input| behind.contains(&input[..])) {
                behind.extend(node.outputs.iter().map(String::as_str));
            }
        }
        let defined: BTreeSet<&str> = graph.nodes.iter().flat_map(defined_by).collect();
        let is_gone = |name: &&str| {
            !is_parameter(name) && !is_detach(name) && !defined.contains(name) && is_operator_result(name)
        };
        let suspect = graph.nodes.iter().find(|node| {
            let Some(call) = call(node) else { return false };
            let twice = |input: &String| {
                behind.contains(&input[..]) && node.inputs.iter().filter(|other| *other == input).count() > 1
            };
            node.inputs.iter().any(twice) && call.values().iter().any(is_gone)
        })?;
        let message = "the exporter merged a detached value with a value that may not be detached";
        Some(Diagnostic::new(message).at(suspect.label()).note(
            "no gradient flows through the merged value; export with optimize=False to keep the two values \
             apart",
        ))
    }
}

/// Returns the names of a node's values in the trace.
fn defined_by(node: &Node) -> impl Iterator<Item = &str> {
    let traced = call(node).map(|call| call.result);
    node.outputs.iter().map(String::as_str).chain(traced)
}

fn reads_by_name(nodes: &[&Node], name: &str) -> bool {
    nodes.iter().any(|node| node.inputs.iter().any(|input| input == name))
}

/// Whether a name is one that the trace gives to the result of a `detach`: `detach`, `detach_1`.
fn is_detach(name: &str) -> bool {
    name.strip_prefix("detach").is_some_and(|rest| rest.is_empty() || is_number(rest))
}

/// Whether a name is that of an operator with a number, as the trace names further results of the same operator.
fn is_operator_result(name: &str) -> bool {
    name.rfind('_').is_some_and(|at| is_number(&name[at..]))
}

fn is_number(rest: &str) -> bool {
    rest.strip_prefix('_')
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a name is one that the trace gives to a tensor of the module.
fn is_parameter(symbol: &str) -> bool {
    symbol.starts_with("p_") || symbol.starts_with("b_") || symbol.starts_with("c_")
}
