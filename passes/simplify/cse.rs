//! Common subexpressions: a node that repeats the computation of an earlier node is replaced by it.

use super::Simplify;
use crate::pass::Transform;
use ir::ops::elementwise::Binary;
use ir::{Builder, Changed, Module, Node, NodeId, Op, Phase, Type, ValueId};
use std::collections::BTreeMap;

/// A node, and an earlier node with the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    /// The node that is removed.
    pub from: NodeId,
    /// The node whose results replace those of the other.
    pub into: NodeId,
}

/// The properties that two nodes must share to be merged: all but their origins.
type Key = (Op, Vec<ValueId>, Vec<Type>, Phase, u32, u32);

/// Finds every node that repeats an earlier node of the same phase, stage and copy.
pub fn decide(module: &Module) -> Vec<Merge> {
    let mut first: BTreeMap<Key, NodeId> = BTreeMap::new();
    let mut same: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let mut merges = Vec::new();
    for (id, node) in module.nodes() {
        let into = *first.entry(key(module, node, &same)).or_insert(id);
        if into != id {
            merges.push(Merge { from: id, into });
            let results = node.results.iter().copied();
            same.extend(results.zip(module.node(into).results.iter().copied()));
        }
    }
    merges
}

fn key(module: &Module, node: &Node, same: &BTreeMap<ValueId, ValueId>) -> Key {
    let mut operands: Vec<ValueId> =
        node.operands.iter().map(|value| same.get(value).copied().unwrap_or(*value)).collect();
    if matches!(node.op, Op::Binary(Binary::Add | Binary::Mul)) {
        operands.sort();
    }
    let types = node.results.iter().map(|&value| module.ty(value).clone()).collect();
    (node.op.clone(), operands, types, node.phase, node.stage, node.copy)
}

/// Merges the nodes.
pub(super) fn apply(module: &mut Module, merges: &[Merge]) -> Changed {
    let mut b = Builder::new(module, Simplify::NAME);
    for merge in merges {
        let from = b.module().node(merge.from).results.clone();
        let into = b.module().node(merge.into).results.clone();
        from.into_iter().zip(into).for_each(|(old, new)| b.replace(old, new));
        b.remove(merge.from);
    }
    b.finish()
}
