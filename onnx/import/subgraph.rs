//! Bodies of control flow: graphs whose nodes are imported in place of their operator, once or, when unrolled, many times.
//!
//! Names of a graph hide none of an outer graph, so its values are in the same table. Sibling graphs may use the same name: the
//! entries of a graph are added again each time before it runs.

use super::call::Call;
use super::context::{Context, Entry, Problem};
use super::integers::{Int, Ints};
use super::{import_node, tensor_entry};
use crate::{Attribute, Graph};
use ir::ops::shape::Concat;
use ir::{DType, Definition, Dim, Type, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// The most nodes into which all loops of a file together are unrolled.
pub(super) const MOST_NODES: usize = 8192;

/// The state of control flow during an import.
#[derive(Debug, Default)]
pub(super) struct Bodies {
    /// The tensors of each graph that has run, by the graph's address. They are added only once to the data table.
    entered: BTreeMap<usize, Vec<(String, Entry)>>,
    /// The names of these tensors in the data table.
    names: BTreeSet<String>,
    /// The number of nodes into which loops were unrolled.
    unrolled: usize,
}

/// Imports a graph with these inputs. Returns its outputs.
pub(super) fn run(cx: &mut Context, graph: &Graph, inputs: Vec<Entry>) -> Result<Vec<Entry>, Problem> {
    if graph.inputs.len() != inputs.len() {
        let (wanted, given) = (graph.inputs.len(), inputs.len());
        return Err(Problem::new(format!(
            "the node passes {given} values to its graph, which takes {wanted}"
        )));
    }
    enter(cx, graph);
    for (input, entry) in graph.inputs.iter().zip(inputs) {
        cx.entries.insert(input.name.clone(), entry);
    }
    let before = cx.problems.len();
    for node in &graph.nodes {
        import_node(cx, &Call::new(node));
    }
    if cx.problems.len() > before {
        return Err(Problem::Reported);
    }
    let output = |name: &String| match cx.entries.get(name) {
        Some(Entry::Failed) => Err(Problem::Reported),
        Some(entry) => Ok(entry.clone()),
        None => Err(Problem::new(format!("no node or tensor defines output `{name}` of the node's graph"))),
    };
    graph.outputs.iter().map(|value| output(&value.name)).collect()
}

/// Adds the tensors of a graph to the entries. They are the same tensors each time the graph runs.
fn enter(cx: &mut Context, graph: &Graph) {
    let place = std::ptr::from_ref(graph) as usize;
    if !cx.bodies.entered.contains_key(&place) {
        let mut tensors = Vec::new();
        for tensor in &graph.tensors {
            let mut stored = tensor.clone();
            let mut times = 1;
            while !cx.bodies.names.insert(stored.name.clone()) {
                times += 1;
                stored.name = format!("{}_{times}", tensor.name);
            }
            let entry = match tensor.dtype.dtype() {
                Some(dtype) => tensor_entry(cx.b.tables(), &stored, dtype, None),
                None => Entry::Failed,
            };
            tensors.push((tensor.name.clone(), entry));
        }
        cx.bodies.entered.insert(place, tensors);
    }
    let tensors = cx.bodies.entered.get(&place).cloned().unwrap_or_default();
    cx.entries.extend(tensors);
}

/// Returns the number of nodes of a graph and of the graphs in it.
pub(super) fn node_count(graph: &Graph) -> usize {
    let inner = |node: &crate::Node| -> usize {
        node.attributes.values().flat_map(Attribute::graphs).map(node_count).sum()
    };
    graph.nodes.iter().map(|node| 1 + inner(node)).sum()
}

impl Context<'_> {
    /// Counts one more step of a loop with so many nodes. Fails if there are too many nodes in total.
    pub(super) fn unroll(&mut self, nodes: usize) -> Result<(), Problem> {
        // A body without nodes also takes time.
        self.bodies.unrolled = self.bodies.unrolled.saturating_add(nodes.max(1));
        if self.bodies.unrolled <= MOST_NODES {
            return Ok(());
        }
        Err(Problem::new(format!(
            "this loop repeats {nodes} nodes; unrolled, the file's loops have more than {MOST_NODES} nodes"
        ))
        .note(
            "bind a shorter sequence with --bind NAME=SIZE, or export the loop's body as operators on whole \
             tensors",
        ))
    }

    /// Returns a truth value that must be known now; `what` names the value in errors.
    pub(super) fn truth(&mut self, entry: Entry, what: &str) -> Result<bool, Problem> {
        match self.folded(entry) {
            Entry::Failed => Err(Problem::Reported),
            Entry::Ints(ints, _) if ints.elements().len() == 1 && ints.numbers().is_some() => {
                Ok(ints.elements()[0] != Int::Known(0))
            }
            Entry::Ints(..) => Err(Problem::new(format!("{what} depends on sizes that are not bound"))
                .note("bind the sizes with --bind NAME=SIZE")),
            entry => Err(Problem::new(format!(
                "{what} is computed from data{}; a static program needs it as a constant",
                self.inputs_of(&entry)
            ))
            .note(
                "export the condition as a constant: trace the model, or replace the branch by torch.where",
            )),
        }
    }

    /// Returns ` (input `a`, `b`)`: the model's inputs from which an entry is computed; empty if there are none, or more than
    /// three.
    fn inputs_of(&self, entry: &Entry) -> String {
        let module = self.b.module();
        let (mut names, mut seen, mut stack) = (BTreeSet::new(), BTreeSet::new(), vec![]);
        stack.extend(if let Entry::Value(value) = entry { Some(*value) } else { None });
        while let Some(value) = stack.pop() {
            match module.value(value).definition {
                _ if !seen.insert(value) => {}
                Definition::Node(id, _) => stack.extend(&module.node(id).operands),
                Definition::Input(index) => {
                    names.insert(format!("`{}`", module.inputs[index as usize].name));
                }
                Definition::State(_) => {}
            }
        }
        let names: Vec<String> = names.into_iter().collect();
        if (1..=3).contains(&names.len()) { format!(" (input {})", names.join(", ")) } else { String::new() }
    }

    /// Stacks entries along a new dim. Known integers stay known.
    pub(super) fn stacked(&mut self, parts: &[Entry], axis: i64) -> Result<Entry, Problem> {
        if axis == 0
            && let Some(known) = stacked_ints(parts)
        {
            return Ok(known);
        }
        let mut values = Vec::new();
        for part in parts {
            let value = self.materialize(part)?;
            let dim = super::context::dim(axis, self.ty(value).ndim() + 1).ok_or_else(|| {
                Problem::new(format!("{} cannot be stacked along axis {axis}", self.ty(value)))
            })?;
            values.push((self.with_dim(value, dim)?, dim));
        }
        let &(first, dim) = values.first().ok_or_else(|| Problem::new("stacks nothing"))?;
        let operands: Vec<ValueId> = values.iter().map(|(value, _)| *value).collect();
        let one = operands.len() == 1;
        Ok(Entry::Value(if one { first } else { self.b.one(Concat { dim }, &operands)? }))
    }

    /// Returns the stacked output of a loop that never runs: no elements, of the type that the graph declares.
    pub(super) fn empty_stack(&mut self, graph: &Graph, output: usize, axis: i64) -> Result<Entry, Problem> {
        let unknown = || {
            Problem::new("the loop never runs, and the file does not declare the shape of its stacked output")
                .note("export with the shapes of the loop's outputs, or without the loop")
        };
        let declared = graph.outputs.get(output).and_then(|value| value.ty.tensor()).ok_or_else(unknown)?;
        let dtype = declared.dtype.dtype().ok_or_else(unknown)?;
        let size = |dim: &crate::Dim| match dim {
            crate::Dim::Known(size) => Some(Dim::known(*size as u64)),
            _ => None,
        };
        let dims: Option<Vec<Dim>> = declared.dims.as_ref().and_then(|dims| dims.iter().map(size).collect());
        let mut dims = dims.ok_or_else(unknown)?;
        let at = super::context::dim(axis, dims.len() + 1).ok_or_else(unknown)?;
        dims.insert(at as usize, Dim::known(0));
        Ok(Entry::Value(self.b.splat(Type::new(dtype, dims), 0.0)?))
    }
}

/// Stacks known integers of equal sizes along a new first dim, if they are few.
fn stacked_ints(parts: &[Entry]) -> Option<Entry> {
    let Entry::Ints(first, dtype) = parts.first()? else { return None };
    let mut elements = Vec::new();
    for part in parts {
        let Entry::Ints(ints, other) = part else { return None };
        if ints.sizes() != first.sizes() || other != dtype || elements.len() > Ints::LIMIT {
            return None;
        }
        elements.extend_from_slice(ints.elements());
    }
    let sizes = [parts.len()].into_iter().chain(first.sizes().iter().copied()).collect();
    Some(Entry::Ints(Ints::new(sizes, elements)?, *dtype))
}

/// Returns a number as an entry.
pub(super) fn number(number: i64, dtype: DType) -> Entry {
    Entry::Ints(Ints::scalar(Int::Known(number)), dtype)
}
