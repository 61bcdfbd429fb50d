//! Turns the chosen e-nodes into the nodes of the new program, in order, each with its origin.

use super::graph::{ENode, Graph, Head, StepPlace};
use super::insert::Inserted;
use super::order::{Chosen, order, positions};
use egg::{Id, Language};
use ir::{Module, NodeId, Op, Type, ValueId};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The result of the search: the whole program anew.
#[derive(Debug)]
pub struct Decision {
    pub(super) steps: Vec<Step>,
    /// Values that something outside the nodes reads, each with its replacement.
    pub(super) exits: Vec<(ValueId, Source)>,
}

/// A node of the new program.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) op: Op,
    pub(super) operands: Vec<Source>,
    pub(super) types: Vec<Type>,
    pub(super) place: StepPlace,
    pub(super) origin: Arc<str>,
    /// The rule that made the node; for a node of the old program, the pass that made it.
    pub(super) by: Arc<str>,
}

/// The source of a value of the new program.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// A value that no node makes.
    Leaf(ValueId),
    /// A result of a step.
    Step(usize, usize),
}

impl Source {
    /// Returns the value, given the values of the steps.
    pub(super) fn value(self, steps: &[SmallVec<[ValueId; 2]>]) -> ValueId {
        match self {
            Self::Leaf(value) => value,
            Self::Step(step, result) => steps[step][result],
        }
    }
}

/// A finished search.
pub(super) struct Search<'a, 'm> {
    pub(super) module: &'m Module,
    pub(super) graph: &'a Graph<'m>,
    pub(super) inserted: Inserted,
    pub(super) stood: BTreeMap<ENode, Option<NodeId>>,
    /// The number of e-nodes before the first rule was applied.
    pub(super) original: usize,
    /// The first id that each application of a rule made, with the rule.
    pub(super) provenance: Vec<(usize, &'static str)>,
}

impl Search<'_, '_> {
    /// Returns the new program, given the chosen nodes with arguments before their readers; `None` if it is the old program.
    pub(super) fn decision(&self, chosen: &[Chosen]) -> Option<Decision> {
        let steps = || chosen.iter().filter(|chosen| matches!(chosen.node.head, Head::Op(..)));
        let stands = |chosen: &Chosen| self.stood.contains_key(&chosen.node);
        if steps().all(stands) && steps().count() == self.module.order().len() {
            return None;
        }
        let positions = positions(self.module, self.graph, &self.inserted);
        let (origins, made_by) = (self.origins(chosen, &positions), self.made_by());
        let mut sources: Vec<Option<Source>> = vec![None; chosen.len()];
        let index: BTreeMap<Id, usize> = chosen.iter().enumerate().map(|(i, c)| (c.class, i)).collect();
        let mut decision = Decision { steps: Vec::new(), exits: Vec::new() };
        for i in order(chosen, &positions) {
            let Chosen { node, .. } = &chosen[i];
            let source = |arg: &Id| sources[index[&self.graph.find(*arg)]].expect("arguments come first");
            sources[i] = Some(match &node.head {
                Head::Leaf(value) => Source::Leaf(*value),
                Head::Saved(_) => source(&node.args[0]),
                Head::Result(result) => match source(&node.args[0]) {
                    Source::Step(step, _) => Source::Step(step, *result as usize),
                    leaf => leaf,
                },
                Head::Root => continue,
                Head::Op(op, types, place) => {
                    let old = self.stood.get(node).copied().flatten().map(|id| self.module.node(id));
                    let by = || match made_by.get(node) {
                        Some(rule) => format!("collectives: {rule}").into(),
                        None => "collectives".into(),
                    };
                    decision.steps.push(Step {
                        op: op.clone(),
                        operands: node.args.iter().map(source).collect(),
                        types: types.iter().map(|&id| Type::clone(&self.graph.analysis.ty(id))).collect(),
                        place: *place,
                        origin: origins[i].clone(),
                        by: old.map_or_else(by, |old| old.by.clone()),
                    });
                    Source::Step(decision.steps.len() - 1, 0)
                }
            });
        }
        decision.exits = self
            .inserted
            .exits
            .iter()
            .map(|&value| {
                let class = self.graph.find(self.inserted.classes[&value]);
                (value, sources[index[&class]].expect("exits are chosen"))
            })
            .collect();
        Some(decision)
    }

    /// Returns the origin of each chosen node. A node of the old program keeps its own. A new node that computes a value of the old
    /// program, or a part of one, has the origin of that value. Any other node has the origin of its first reader.
    fn origins(&self, chosen: &[Chosen], positions: &BTreeMap<Id, usize>) -> Vec<Arc<str>> {
        let node = |&position: &usize| self.module.node(self.module.order()[position]).origin.clone();
        let known = |chosen: &Chosen| match self.stood.get(&chosen.node) {
            Some(Some(id)) => Some(self.module.node(*id).origin.clone()),
            _ => positions.get(&chosen.class).map(node),
        };
        let known: Vec<Option<Arc<str>>> = chosen.iter().map(known).collect();
        let mut origins: Vec<Arc<str>> =
            known.iter().map(|known| known.clone().unwrap_or_default()).collect();
        for reader in (0..chosen.len()).rev() {
            let origin = origins[reader].clone();
            for &arg in chosen[reader].args.iter().filter(|&&arg| known[arg].is_none()) {
                origins[arg] = origin.clone();
            }
        }
        origins
    }

    /// Returns the rule that first made each e-node of the graph.
    fn made_by(&self) -> BTreeMap<ENode, &'static str> {
        let mut made_by = BTreeMap::new();
        for (i, node) in self.graph.nodes().iter().enumerate().skip(self.original) {
            let canonical = node.clone().map_children(|child| self.graph.find(child));
            let at = self.provenance.partition_point(|(first, _)| *first <= i);
            if let Some((_, rule)) = at.checked_sub(1).map(|at| self.provenance[at]) {
                made_by.entry(canonical).or_insert(rule);
            }
        }
        made_by
    }
}
