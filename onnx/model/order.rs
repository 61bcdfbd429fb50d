//! Checks that each value has one definition, and sorts nodes so that definitions come before uses.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::{Graph, Node};
use crate::error::{Problem, Problems, quoted};

/// Checks the definitions of a graph and of its subgraphs, and sorts their nodes. A graph with problems is sorted as far as
/// possible. `broken` has values whose definition could not be read, which has already been reported.
pub(super) fn check_and_sort(mut graph: Graph, broken: &BTreeSet<String>, problems: &mut Problems) -> Graph {
    check(&mut graph, &mut BTreeSet::new(), broken, problems);
    graph
}

/// Checks a graph; `around` has the values of outer graphs.
fn check(
    graph: &mut Graph,
    around: &mut BTreeSet<String>,
    broken: &BTreeSet<String>,
    problems: &mut Problems,
) {
    let before = problems.count();
    let defined = definitions(graph, around, problems);
    let ambiguous = problems.count() > before;
    let known = |name: &String| defined.contains(name) || around.contains(name) || broken.contains(name);
    for node in &graph.nodes {
        for name in node.inputs.iter().filter(|name| !name.is_empty()) {
            if !known(name) {
                let message = format!("no node or tensor defines input {}", quoted(name));
                problems.push(Problem::new(message).at(node.label()));
            }
        }
    }
    for output in &graph.outputs {
        if !known(&output.name) {
            let shown = quoted(&output.name);
            let message =
                format!("no node or tensor defines output {shown} of graph {}", quoted(&graph.name));
            problems.push(Problem::new(message).at(format!("output {shown}")));
        }
    }
    if !ambiguous {
        sort(graph, problems);
    }
    let added: Vec<String> = defined.difference(around).cloned().collect();
    around.extend(added.iter().cloned());
    for node in &mut graph.nodes {
        for attribute in node.attributes.values_mut() {
            attribute.graphs_mut().iter_mut().for_each(|inner| check(inner, around, broken, problems));
        }
    }
    for name in &added {
        around.remove(name);
    }
}

/// Returns the values of a graph. A second definition of a value is a problem.
fn definitions<'g>(graph: &'g Graph, around: &BTreeSet<String>, problems: &mut Problems) -> BTreeSet<String> {
    let inputs = graph.inputs.iter().map(|input| (&input.name, format!("input {}", quoted(&input.name))));
    let tensors = graph.tensors.iter().map(|tensor| (&tensor.name, tensor.label()));
    let mut first: BTreeMap<&String, String> = BTreeMap::new();
    let mut define = |name: &'g String, place: String| {
        if around.contains(name) {
            let message = format!("value {} hides a value of the same name in an outer graph", quoted(name));
            problems.push(Problem::new(message).at(place));
        } else if let Some(other) = first.get(name) {
            let message = format!("value {} is defined twice, first by {other}", quoted(name));
            problems.push(Problem::new(message).at(place));
        } else {
            first.insert(name, place);
        }
    };
    inputs.chain(tensors).for_each(|(name, place)| define(name, place));
    for node in &graph.nodes {
        node.outputs.iter().filter(|name| !name.is_empty()).for_each(|name| define(name, node.label()));
    }
    first.into_keys().cloned().collect()
}

/// Sorts the nodes by their uses. Nodes that are already in order keep it.
fn sort(graph: &mut Graph, problems: &mut Problems) {
    let uses = uses(&graph.nodes);
    let mut waits: Vec<usize> = vec![0; graph.nodes.len()];
    uses.iter().flatten().for_each(|&user| waits[user] += 1);
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..waits.len()).filter(|&at| waits[at] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(waits.len());
    while let Some(Reverse(at)) = ready.pop() {
        order.push(at);
        for &user in &uses[at] {
            waits[user] -= 1;
            if waits[user] == 0 {
                ready.push(Reverse(user));
            }
        }
    }
    if order.len() < waits.len() {
        problems.push(cycle(&graph.nodes, &uses, &waits));
        return;
    }
    let mut nodes: Vec<Option<Node>> = std::mem::take(&mut graph.nodes).into_iter().map(Some).collect();
    graph.nodes = order.into_iter().filter_map(|at| nodes[at].take()).collect();
}

/// Returns, for each node, the nodes that read its outputs, each once.
fn uses(nodes: &[Node]) -> Vec<BTreeSet<usize>> {
    let mut definer: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, node) in nodes.iter().enumerate() {
        definer.extend(node.outputs.iter().filter(|name| !name.is_empty()).map(|name| (&name[..], at)));
    }
    let mut uses = vec![BTreeSet::new(); nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        for name in reads(node) {
            if let Some(&definer) = definer.get(name) {
                uses[definer].insert(at);
            }
        }
    }
    uses
}

/// Returns the values that a node reads, including those of its subgraphs.
fn reads(node: &Node) -> BTreeSet<&str> {
    let mut names: BTreeSet<&str> = node.inputs.iter().map(String::as_str).collect();
    let graphs = node.attributes.values().flat_map(|attribute| attribute.graphs());
    graphs.for_each(|graph| names.extend(captures(graph)));
    names
}

/// Returns the values of outer graphs that a graph reads.
fn captures(graph: &Graph) -> BTreeSet<&str> {
    let mut names: BTreeSet<&str> = graph.outputs.iter().map(|output| &output.name[..]).collect();
    graph.nodes.iter().for_each(|node| names.extend(reads(node)));
    let inputs = graph.inputs.iter().map(|input| &input.name);
    let tensors = graph.tensors.iter().map(|tensor| &tensor.name);
    for name in inputs.chain(tensors).chain(graph.nodes.iter().flat_map(|node| &node.outputs)) {
        names.remove(&name[..]);
    }
    names
}

/// Reports the nodes of a cycle among the nodes that could not be sorted.
fn cycle(nodes: &[Node], uses: &[BTreeSet<usize>], waits: &[usize]) -> Problem {
    const SHOWN: usize = 12;
    // Each waiting node waits for another waiting node, so going back along the uses must reach a node twice.
    let mut before = vec![None; nodes.len()];
    for (at, users) in uses.iter().enumerate().filter(|(at, _)| waits[*at] > 0) {
        users.iter().for_each(|&user| before[user] = Some(at));
    }
    let mut seen: BTreeMap<usize, usize> = BTreeMap::new();
    let mut path = Vec::new();
    let mut next = waits.iter().position(|&waiting| waiting > 0);
    while let Some(at) = next.filter(|at| !seen.contains_key(at)) {
        seen.insert(at, path.len());
        path.push(at);
        next = before[at];
    }
    let start = next.and_then(|at| seen.get(&at).copied()).unwrap_or(0);
    let mut names: Vec<String> = path[start..].iter().rev().map(|&at| nodes[at].label()).collect();
    let count = names.len();
    names.truncate(SHOWN);
    let more = if count > SHOWN { format!(" -> {} nodes more", count - SHOWN) } else { String::new() };
    Problem::new(format!("{count} nodes form a cycle: {}{more} -> back to the first", names.join(" -> ")))
}
