//! From the chosen e-nodes to the nodes of the new program, in order, each with where it came from.

use super::graph::{ENode, Graph, Head, Place};
use super::insert::Inserted;
use super::order::{Chosen, order, positions};
use egg::{Id, Language};
use ir::{Module, NodeId, Op, Type, ValueId};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What the search found: the whole program anew. Prints what the rules made of it.
#[derive(Debug)]
pub struct Decision {
    pub(super) steps: Vec<Step>,
    /// Values that something outside the nodes reads, and what it is to read.
    pub(super) exits: Vec<(ValueId, Source)>,
}

/// A node of the new program.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) op: Op,
    pub(super) operands: Vec<Source>,
    pub(super) types: Vec<Type>,
    pub(super) place: Place,
    pub(super) origin: Arc<str>,
    /// The rule that made it; of a node that stood in the program, what made that.
    pub(super) by: Arc<str>,
}

/// Where a value of the new program comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// A value that no node makes.
    Leaf(ValueId),
    /// A result of a step.
    Step(usize, usize),
}

impl Source {
    /// The value, given those of the steps.
    pub(super) fn value(self, steps: &[SmallVec<[ValueId; 2]>]) -> ValueId {
        match self {
            Self::Leaf(value) => value,
            Self::Step(step, result) => steps[step][result],
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Step { op, place, origin, by, .. } in &self.steps {
            writeln!(f, "{} in {:?} for `{origin}`, by {by}", op.name(), place.phase)?;
        }
        Ok(())
    }
}

/// A search that has ended.
pub(super) struct Search<'a, 'm> {
    pub(super) module: &'m Module,
    pub(super) graph: &'a Graph<'m>,
    pub(super) inserted: Inserted,
    pub(super) stood: BTreeMap<ENode, Option<NodeId>>,
    /// E-nodes before the first rule was applied.
    pub(super) original: usize,
    /// First id made by each application, with the rule.
    pub(super) provenance: Vec<(usize, &'static str)>,
}

impl Search<'_, '_> {
    /// The new program, given the chosen nodes, arguments before their readers; `None` if it is the old one.
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

    /// Where each chosen node came from: a node that stood, from where it did; one that stands for a value or for a part
    /// of one, from where that came from; any other, from where its first reader does.
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

    /// The rule that made each e-node of the graph first.
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
