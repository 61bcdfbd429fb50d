//! Canonicalize: rewrites the forward graph into one canonical form.
//!
//! Contractions absorb the reshapes and transposes around them, and the many nodes that exporters write for attention, norms,
//! activations and rotary embedding become one operator again. The forward nodes go into an e-graph, directional rules add equal
//! forms, and the cheapest program is extracted, counted as a DAG.
//!
//! Invariants: only forward nodes of one stage and copy change; none of them writes state; every result keeps its type.

mod cuts;
mod graph;
mod near;
#[allow(clippy::collapsible_match)] // `find!` nests one match for each argument
mod rules;
mod stored;
mod term;
#[cfg(test)]
mod tests;

use crate::arguments::Options;
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

/// The result of the search: the nodes that replace the region.
#[derive(Debug)]
pub struct Decision {
    nodes: Vec<Chosen>,
    region: Vec<NodeId>,
    /// The values that leave the region, each with its class.
    exits: Vec<(ValueId, Id)>,
}

/// A node of the new region.
#[derive(Debug)]
struct Chosen {
    class: Id,
    node: ENode,
    origin: Arc<str>,
    /// The rule that made the node; for a node of the original program, the pass that made it.
    by: Arc<str>,
}

/// The pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Canonicalize {
    /// Names of rules to leave out, so that their effect can be seen.
    pub without: Vec<String>,
}

/// Returns the names of all rules.
pub fn rules() -> impl Iterator<Item = &'static str> {
    rules::all().into_iter().map(|rule| rule.name)
}

impl Transform for Canonicalize {
    const NAME: &'static str = "canonicalize";
    const NEEDED: bool = false;

    fn options(&mut self, options: &mut Options) {
        options.list("without", &mut self.without);
        let unknown = self.without.iter().find(|name| rules().all(|rule| rule != name.as_str()));
        options.check(|| {
            let names = || rules().collect::<Vec<_>>().join(", ");
            unknown.map(|name| format!("there is no rule `{name}`; there are {}", names()))
        });
    }

    /// Rewrites the forward graph. If a limit is reached, the graph stays as it was and the user gets a warning.
    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        match self.decide(module) {
            Ok((decision, near_misses)) => {
                cx.reports.near_misses = near_misses;
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
    /// Searches. Returns the decision (`None` if no rule applies) and the near misses. Errors: a limit was reached.
    pub fn decide(&self, module: &Module) -> Result<(Option<Decision>, Vec<NearMiss>), Diagnostic> {
        let mut rules = rules::all();
        rules.retain(|rule| self.without.iter().all(|without| without != rule.name));
        decide(module, &rules)
    }
}

/// Returns the most nodes that the e-graph of a region may have. For the models in the tests an e-graph has at most 6 nodes for each
/// node of the region. For a model with unrolled recurrent layers it has 210, and the time grows with every one.
fn most_nodes(region: usize) -> usize {
    (250 * region).clamp(20_000, 100_000).max(20 * region)
}

/// Puts the region into an e-graph, applies the rules, and extracts the cheapest program. Returns no decision if the rules add nothing,
/// or if all chosen nodes are those of the region. A chosen node keeps its maker if it was in the region; otherwise its maker is the rule.
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

/// Puts the region into the graph. Returns the class of every value that the region reads or makes.
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

/// Returns the result type of a node if it does not follow from the types of the operands.
fn declared(module: &Module, node: &Node) -> Option<Type> {
    let operands: Vec<Type> = node.operands.iter().map(|&operand| module.ty(operand).clone()).collect();
    let inferred = node.op.infer(&Inference { operands: &operands, declared: &[] });
    inferred.is_err().then(|| module.ty(node.results[0]).clone())
}

/// Returns the values of the region that something outside reads.
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

/// The extra price of a softmax that a fused operator makes unnecessary. With few tokens the transposes around that operator
/// take longer than the products and the softmax; but the form of a program must not depend on its batch or its sequence.
const REPLACED: u64 = 1 << 40;

/// Returns the time of a node in picoseconds on a device of 10 TFLOP/s and 1 TB/s, plus a little for each node. Views of stored tensors
/// are free: they become views of a state. A node that becomes no kernel has the lowest price. A part of a tensor in `cut` costs more
/// than everything else.
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
    // Among views of a weight, those without dims of size one are cheaper, at any batch.
    let of_weights = node.args.iter().filter(|&&arg| stored.contains(&graph.find(arg)));
    let ones = of_weights.map(|&arg| graph.ty(arg).dims.iter().filter(|dim| dim.is_one()).count() as u64);
    let ones: u64 = if matches!(op, Op::Contract(_)) { ones.sum() } else { 0 };
    replaced + PRESENCE + late + ones + (flops / 10).max(read.saturating_add(written))
}

/// Returns the classes that are a constant seen through views. The walk goes up from the constants: classes have many nodes, and the
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

/// Returns the origin of each class of the original program: the origin of the first node that made it.
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

/// Returns the e-nodes of the original program, each with its maker.
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

/// Gives a class that a rule made the origin of its first reader.
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

/// Returns the rule that first made each e-node; `None` for nodes of the original program.
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

/// Replaces the region by the chosen nodes.
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
