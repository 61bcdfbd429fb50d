//! Puts a module into an e-graph, and keeps a list of the module's own e-nodes.

use super::graph::{ENode, Graph, Head, StepPlace, TypeIds};
use egg::{Id, Language};
use ir::analysis::reports;
use ir::{Module, Node, NodeId, Phase, ValueId};
use std::collections::BTreeMap;

/// The place of a module's values in its e-graph.
pub(super) struct Inserted {
    /// The class of every value that a node reads or makes.
    pub(super) classes: BTreeMap<ValueId, Id>,
    /// The e-nodes that were put in, each with its node of the module if there is one.
    pub(super) nodes: Vec<(Option<NodeId>, ENode)>,
    /// The class that needs all exits.
    pub(super) root: Id,
    /// The values that something outside the nodes reads.
    pub(super) exits: Vec<ValueId>,
}

/// Puts a module into the graph.
pub(super) fn insert(graph: &mut Graph, module: &Module) -> Inserted {
    let mut classes: BTreeMap<ValueId, Id> = BTreeMap::new();
    let mut nodes = Vec::new();
    let mut add = |graph: &mut Graph, id: Option<NodeId>, node: ENode| {
        nodes.push((id, node.clone()));
        graph.add(node)
    };
    for (id, node) in module.nodes() {
        let place = StepPlace { phase: node.phase, stage: node.stage, copy: node.copy };
        let mut args = Vec::new();
        for &operand in &node.operands {
            let leaf = || ENode::new(Head::Leaf(operand), []);
            let class = *classes.entry(operand).or_insert_with(|| add(graph, None, leaf()));
            let kept = is_kept(module, operand, node);
            args.push(if kept { add(graph, None, ENode::new(Head::Saved(place), [class])) } else { class });
        }
        let types: TypeIds =
            node.results.iter().map(|&result| graph.analysis.number(module.ty(result))).collect();
        let made = add(graph, Some(id), ENode::new(Head::Op(node.op.clone(), types, place), args));
        if let [result] = node.results[..] {
            classes.insert(result, made);
            continue;
        }
        for (i, &result) in node.results.iter().enumerate() {
            classes.insert(result, add(graph, None, ENode::new(Head::Result(i as u32), [made])));
        }
    }
    let reported = reports(module).into_iter().map(|id| module.node(id).results[0]);
    let mut exits: Vec<ValueId> =
        module.roots().chain(reported).filter(|value| classes.contains_key(value)).collect();
    exits.sort_unstable();
    exits.dedup();
    let all = ENode::new(Head::Root, exits.iter().map(|value| classes[value]).collect::<Vec<_>>());
    let root = add(graph, None, all);
    Inserted { classes, nodes, root, exits }
}

/// Whether a value is kept from forward for a reader in backward.
fn is_kept(module: &Module, value: ValueId, reader: &Node) -> bool {
    let made = module.producer(value).map(|node| node.phase);
    reader.phase.is_gradient() && made == Some(Phase::Forward)
}

impl Inserted {
    /// Returns the e-nodes that were put in, in their present form. Of equal e-nodes the first counts.
    pub(super) fn stood(&self, graph: &Graph) -> BTreeMap<ENode, Option<NodeId>> {
        let mut stood = BTreeMap::new();
        for (id, node) in &self.nodes {
            stood.entry(node.clone().map_children(|child| graph.find(child))).or_insert(*id);
        }
        stood
    }
}
