//! Canonicalize: the forward graph in one spelling.
//!
//! Contractions lose the reshapes and transposes around them, and what exporters spell out (attention, norms,
//! activations, rotary embedding) becomes one operator again. The forward nodes go into an e-graph, directional rules
//! add what is equal, and the cheapest program comes out, counted as a DAG.
//!
//! Invariants: forward nodes of one stage and copy alone; nothing that writes state; every result has the type it had.

mod cuts;
mod graph;
mod near;
#[allow(clippy::collapsible_match)] // `find!` nests one match for each argument
mod rules;
mod stored;
mod term;
#[cfg(test)]
mod tests;

use crate::arguments::Arguments;
use crate::pass::{PassContext, Transform};
use crate::reports::NearMiss;
use crate::rewriting::egraph::{Limits, Problem, Rule, saturate};
use egg::Id;
use graph::{Ask, ENode, Graph, Head, Typing};
use ir::ops::{Cost, Operator};
use ir::{
    At, Builder, Changed, Diagnostic, Inference, Module, Movement, Node, NodeId, Op, Phase, Signature, Type,
    ValueId,
};
use near::is_fused;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the search found: the nodes to put in place of the region.
#[derive(Debug)]
pub struct Decision {
    nodes: Vec<Chosen>,
    region: Vec<NodeId>,
    /// For each value that leaves the region, the class it is in.
    exits: Vec<(ValueId, Id)>,
}

/// A node of the new region.
#[derive(Debug)]
struct Chosen {
    class: Id,
    node: ENode,
    origin: Arc<str>,
    /// The rule that made it; of a node that stood in the program, what made that.
    by: Arc<str>,
}

/// The pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Canonicalize {
    /// Names of rules that are left out, to see what they are for.
    pub without: Vec<String>,
}

/// The names of all rules.
pub fn rules() -> impl Iterator<Item = &'static str> {
    rules::all().into_iter().map(|rule| rule.name)
}

impl Transform for Canonicalize {
    const NAME: &'static str = "canonicalize";
    const NEEDED: bool = false;

    fn parse(arguments: &mut Arguments) -> Result<Self, String> {
        let without = arguments.take_all("without");
        match without.iter().find(|name| rules().all(|rule| rule != name.as_str())) {
            Some(name) => Err(format!(
                "there is no rule `{name}`; there are {}",
                rules().collect::<Vec<_>>().join(", ")
            )),
            None => Ok(Self { without }),
        }
    }

    fn print(&self, arguments: &mut Arguments) {
        self.without.iter().for_each(|rule| arguments.push("without", rule));
    }

    /// Rewrites the forward graph. A limit that is hit leaves it as it was, with a warning.
    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        match self.decide(module) {
            Ok((decision, near_misses)) => {
                cx.near_misses = near_misses;
                decision.map_or(Ok(Changed::No), |decision| apply(module, &decision))
            }
            Err(limit) => {
                cx.warn(limit);
                Ok(Changed::No)
            }
        }
    }
}

impl Canonicalize {
    /// Searches; no decision when no rule applies, `Err` when a limit was hit. And what was nearly found.
    pub fn decide(&self, module: &Module) -> Result<(Option<Decision>, Vec<NearMiss>), Diagnostic> {
        let mut rules = rules::all();
        rules.retain(|rule| self.without.iter().all(|without| without != rule.name));
        decide(module, &rules)
    }
}

/// The most nodes that the e-graph of a region of so many nodes may have. A node of a model in the tests becomes at most 6 in
/// the e-graph. A node of a model with unrolled recurrent layers becomes 210, and the time grows with every one.
fn most_nodes(region: usize) -> usize {
    (250 * region).clamp(20_000, 100_000).max(20 * region)
}

fn decide<'m>(
    module: &'m Module,
    rules: &[Rule<Head, Typing<'m>>],
) -> Result<(Option<Decision>, Vec<NearMiss>), Diagnostic> {
    let region: Vec<NodeId> = module
        .nodes()
        .filter(|(_, node)| node.phase == Phase::Forward && node.stage == 0 && node.copy == 0)
        .map(|(id, _)| id)
        .collect();
    let mut graph = Graph::new(Typing::new(module));
    let classes = insert(&mut graph, module, &region);
    let original = graph.nodes().len();
    let exits: Vec<(ValueId, Id)> =
        exits(module, &region).into_iter().map(|value| (value, classes[&value])).collect();
    let root = graph.add(ENode { head: Head::Root, args: exits.iter().map(|&(_, class)| class).collect() });
    let limits = Limits { iterations: 100, nodes: most_nodes(region.len()) };
    let end = saturate(&mut graph, rules, limits);
    if !end.complete {
        let message =
            format!("canonicalize stopped after {} rounds: the graph is not changed", end.iterations);
        return Err(Diagnostic::new(message));
    }
    let origins = origins(module, &graph, &region, &classes);
    let near_misses = near::report(&graph, classes.values().copied(), &origins);
    if end.provenance.is_empty() && graph.nodes().len() == original + 1 {
        return Ok((None, near_misses));
    }
    let exits = exits.into_iter().map(|(value, class)| (value, graph.find(class))).collect();
    let (tables, cut) = (stored(&graph), cuts::cut_classes(&graph, module, &region, &classes));
    let problem = Problem::new(&graph, root, |_, node| Some(price(&graph, &tables, &cut, node)));
    let stood = stood(module, &graph, &region, &classes);
    let stands = |node: &ENode| stood.contains_key(node);
    let choice = problem
        .solve(stands)
        .ok_or_else(|| Diagnostic::new("canonicalize found no program in its e-graph"))?;
    let order = problem.order(&choice).ok_or_else(|| Diagnostic::new("canonicalize chose a circle"))?;
    let made_by = made_by(&graph, original, &end.provenance);
    let (mut nodes, mut kept): (Vec<Chosen>, usize) = (Vec::new(), 0);
    for class in order {
        let node = problem.classes[class][choice[class].expect("ordered classes are chosen")].node.clone();
        let id = problem.ids[class];
        let by = match (stood.get(&node), made_by.get(&node).copied().flatten()) {
            (Some(by), _) => {
                kept += 1;
                by.clone()
            }
            (None, Some(rule)) => format!("canonicalize: {rule}").into(),
            (None, None) => "canonicalize".into(),
        };
        nodes.push(Chosen { class: id, origin: origins.get(&id).cloned().unwrap_or_default(), node, by });
    }
    let operators = nodes.iter().filter(|chosen| chosen.node.op().is_some()).count();
    if kept == operators && kept == region.len() {
        return Ok((None, near_misses));
    }
    inherit_origins(&graph, &mut nodes);
    Ok((Some(Decision { nodes, region, exits }), near_misses))
}

/// Puts the region into the graph; the class of every value it reads or makes.
fn insert(graph: &mut Graph, module: &Module, region: &[NodeId]) -> BTreeMap<ValueId, Id> {
    let mut classes: BTreeMap<ValueId, Id> = BTreeMap::new();
    for &id in region {
        let node = module.node(id);
        let mut args = Vec::new();
        for &operand in &node.operands {
            let leaf = || ENode { head: Head::Leaf(operand), args: Default::default() };
            args.push(*classes.entry(operand).or_insert_with(|| graph.add(leaf())));
        }
        let declared = declared(module, node);
        let made = graph.add(ENode::of(node.op.clone(), declared, args));
        if let [result] = node.results[..] {
            classes.insert(result, made);
            continue;
        }
        for (i, &result) in node.results.iter().enumerate() {
            let head = Head::Result(i as u32);
            classes.insert(result, graph.add(ENode { head, args: smallvec::smallvec![made] }));
        }
    }
    classes
}

/// The result type of a node where it does not follow from those of the operands.
fn declared(module: &Module, node: &Node) -> Option<Type> {
    let operands: Vec<Type> = node.operands.iter().map(|&operand| module.ty(operand).clone()).collect();
    let inferred = node.op.infer(&Inference { operands: &operands, declared: &[] });
    inferred.is_err().then(|| module.ty(node.results[0]).clone())
}

/// Values made in the region that something outside reads.
fn exits(module: &Module, region: &[NodeId]) -> BTreeSet<ValueId> {
    let inside: BTreeSet<NodeId> = region.iter().copied().collect();
    let made: BTreeSet<ValueId> =
        region.iter().flat_map(|&id| module.node(id).results.iter().copied()).collect();
    let outside = module
        .nodes()
        .filter(|(id, _)| !inside.contains(id))
        .flat_map(|(_, node)| node.operands.iter().copied());
    outside.chain(module.roots()).filter(|value| made.contains(value)).collect()
}

/// Added to the price of a softmax that a fused operator makes unnecessary. With few tokens the transposes around that operator
/// take longer than the products and the softmax; but the form of a program must not depend on its batch or its sequence.
const REPLACED: u64 = 1 << 40;

/// Picoseconds on a device of 10 TFLOP/s and 1 TB/s, plus a little for being there at all. Views of what is stored
/// are free: they become views of a state. A node that becomes no kernel costs the least. A part of a tensor in `cut` costs more than everything
/// else.
fn price(graph: &Graph, stored: &BTreeSet<Id>, cut: &BTreeSet<Id>, node: &ENode) -> u64 {
    const PRESENCE: u64 = 1000;
    let Some(op) = node.op() else { return 1 };
    let free = match op {
        Op::Constant(_) | Op::Splat(_) => true,
        op if op.movement() == Movement::Reshaped => true,
        op if op.movement().is_part() => stored.contains(&graph.find(node.args[0])),
        _ => false,
    };
    if free {
        return 1;
    }
    let class = graph.lookup(node.clone()).expect("the node is in the graph");
    let signature = Signature {
        operands: node.args.iter().map(|&arg| graph.ty(arg).clone()).collect(),
        results: graph[class].data.types.clone(),
    };
    let Cost { flops, read, written } = op.cost(&signature);
    let replaced = if matches!(op, Op::Softmax(_)) && is_fused(graph, class) { REPLACED } else { 0 };
    let late = if cuts::is_part(op) && cut.contains(&graph.find(node.args[0])) { cuts::LATE } else { 0 };
    // Of two views of a weight, the one without dims of size one, whatever the batch.
    let of_weights = node.args.iter().filter(|&&arg| stored.contains(&graph.find(arg)));
    let ones = of_weights.map(|&arg| graph.ty(arg).dims.iter().filter(|dim| dim.is_one()).count() as u64);
    let ones: u64 = if matches!(op, Op::Contract(_)) { ones.sum() } else { 0 };
    replaced + PRESENCE + late + ones + (flops / 10).max(read.saturating_add(written))
}

/// The classes that are a constant seen through views. Walked from the constants up: classes have many nodes, and the
/// paths between them are too many to be tried.
fn stored(graph: &Graph) -> BTreeSet<Id> {
    let mut views: BTreeMap<Id, Vec<Id>> = BTreeMap::new();
    let mut pending = Vec::new();
    for class in graph.classes() {
        for node in &class.nodes {
            match node.op() {
                Some(Op::Constant(_)) => pending.push(class.id),
                Some(op) if op.movement().is_part() => {
                    views.entry(graph.find(node.args[0])).or_default().push(class.id);
                }
                _ => {}
            }
        }
    }
    let mut stored = BTreeSet::new();
    while let Some(class) = pending.pop() {
        if stored.insert(class) {
            pending.extend(views.get(&class).into_iter().flatten());
        }
    }
    stored
}

/// Where each class of the original program came from: the first node that made it.
fn origins(
    module: &Module,
    graph: &Graph,
    region: &[NodeId],
    classes: &BTreeMap<ValueId, Id>,
) -> BTreeMap<Id, Arc<str>> {
    let mut origins: BTreeMap<Id, Arc<str>> = BTreeMap::new();
    for node in region.iter().map(|&id| module.node(id)).filter(|node| !node.origin.is_empty()) {
        for result in &node.results {
            origins.entry(graph.find(classes[result])).or_insert_with(|| node.origin.clone());
        }
    }
    origins
}

/// The nodes of the program as they stand in the graph, and what made each.
fn stood(
    module: &Module,
    graph: &Graph,
    region: &[NodeId],
    classes: &BTreeMap<ValueId, Id>,
) -> BTreeMap<ENode, Arc<str>> {
    let mut stood = BTreeMap::new();
    for node in region.iter().map(|&id| module.node(id)) {
        let declared = declared(module, node);
        let args = node.operands.iter().map(|operand| graph.find(classes[operand]));
        let standing = ENode::of(node.op.clone(), declared, args);
        stood.entry(standing).or_insert_with(|| node.by.clone());
    }
    stood
}

/// A class that a rule made comes from where its first reader comes from.
fn inherit_origins(graph: &Graph, nodes: &mut [Chosen]) {
    let mut inherited: BTreeMap<Id, Arc<str>> = BTreeMap::new();
    for chosen in nodes.iter_mut().rev() {
        if chosen.origin.is_empty() {
            chosen.origin = inherited.get(&chosen.class).cloned().unwrap_or_default();
        }
        for &arg in &chosen.node.args {
            inherited.insert(graph.find(arg), chosen.origin.clone());
        }
    }
}

/// The rule that made each e-node first; `None` for those of the original program.
fn made_by(
    graph: &Graph,
    original: usize,
    provenance: &[(usize, &'static str)],
) -> BTreeMap<ENode, Option<&'static str>> {
    let mut made_by = BTreeMap::new();
    for (i, node) in graph.nodes().iter().enumerate() {
        let canonical = egg::Language::map_children(node.clone(), |child| graph.find(child));
        let rule = || {
            let at = provenance.partition_point(|(first, _)| *first <= i);
            (i >= original).then(|| at.checked_sub(1).map(|at| provenance[at].1)).flatten()
        };
        made_by.entry(canonical).or_insert_with(rule);
    }
    made_by
}

/// Puts the chosen nodes in place of the region.
pub fn apply(module: &mut Module, decision: &Decision) -> Result<Changed, Diagnostic> {
    let mut b = Builder::new(module, "canonicalize");
    b.at(At::End(Phase::Forward));
    let mut values: BTreeMap<Id, Vec<ValueId>> = BTreeMap::new();
    for chosen in &decision.nodes {
        let first = |id: &Id| values[id][0];
        let made = match &chosen.node.head {
            Head::Leaf(value) => vec![*value],
            Head::Result(i) => vec![values[&chosen.node.args[0]][*i as usize]],
            Head::Root => break,
            Head::Op(op, declared) => {
                let operands: Vec<ValueId> = chosen.node.args.iter().map(first).collect();
                let types: Vec<Type> = declared.as_deref().cloned().into_iter().collect();
                b.origin(chosen.origin.clone());
                b.by(&chosen.by);
                let made = b.push_typed(Op::clone(op), &operands, &types);
                made.map_err(|error| {
                    Diagnostic::new(format!("canonicalize built an ill-typed node: {error}"))
                })?
                .to_vec()
            }
        };
        values.insert(chosen.class, made);
    }
    for (old, class) in &decision.exits {
        b.replace(*old, values[class][0]);
    }
    decision.region.iter().for_each(|&node| b.remove(node));
    Ok(b.finish())
}
