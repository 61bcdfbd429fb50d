//! The order of the new program, which follows the old one.
//!
//! A node that computes a value of the old program, or a part of one, takes that value's position. A node without such a value comes
//! just before its first reader. So a gather stays beside its use, and a reduction beside the value that it reduces.

use super::graph::{ENode, Graph, StepPlace};
use super::insert::Inserted;
use egg::Id;
use ir::Module;
use ir::ops::collective::Collective;
use std::collections::BTreeMap;

/// A chosen e-node: its class, the first place that knows the class, and its arguments by index.
pub(super) struct Chosen {
    pub(super) class: Id,
    pub(super) node: ENode,
    pub(super) place: Option<StepPlace>,
    pub(super) args: Vec<usize>,
}

/// Returns the chosen nodes in program order, by index, given the positions of classes. `chosen` has arguments before their readers.
pub(super) fn order(chosen: &[Chosen], positions: &BTreeMap<Id, usize>) -> Vec<usize> {
    let mut at: Vec<Option<usize>> =
        chosen.iter().map(|chosen| positions.get(&chosen.class).copied()).collect();
    let phase = |index: usize| chosen[index].place.map(|place| place.phase);
    for reader in (0..chosen.len()).rev() {
        for &arg in &chosen[reader].args {
            // A tuple takes the position of its results. An argument of an earlier phase is early enough. A transfer reads a value of
            // another stage in the same phase.
            if phase(arg) == phase(reader) {
                at[arg] = at[arg].into_iter().chain(at[reader]).min();
            }
        }
    }
    let mut order: Vec<usize> = (0..chosen.len()).collect();
    let key = |&i: &usize| (phase(i), at[i].unwrap_or(usize::MAX), i);
    order.sort_by_key(key);
    order
}

/// Returns the position in the old program of each class that is a value or a part of one.
pub(super) fn positions(module: &Module, graph: &Graph, inserted: &Inserted) -> BTreeMap<Id, usize> {
    let mut positions: BTreeMap<Id, usize> = BTreeMap::new();
    for (i, (_, node)) in module.nodes().enumerate() {
        for result in &node.results {
            positions.entry(graph.find(inserted.classes[result])).or_insert(i);
        }
    }
    let mut cut: Vec<(Id, usize)> = Vec::new();
    for class in graph.classes() {
        for node in &class.nodes {
            if let Some((Collective::AllSlice, ..)) = node.collective()
                && let Some(&position) = positions.get(&graph.find(node.args[0]))
            {
                cut.push((class.id, position));
            }
        }
    }
    cut.sort_unstable();
    for (class, position) in cut {
        positions.entry(class).or_insert(position);
    }
    positions
}
