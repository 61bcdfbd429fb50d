//! Finds tensors that the model reads only in disjoint parts, such as queries, keys and values from one multiplication.
//!
//! Such a tensor is made in parts, from parts of a weight, wherever a rule allows it. Prices must not decide this: they depend on the
//! batch, and a parameter would be one state at one batch size and three states at another.

use super::graph::{Ask, Graph};
use egg::Id;
use ir::ops::indexing::Gather;
use ir::ops::shape::Slice;
use ir::{Module, Node, NodeId, Op, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The price, in picoseconds, of a part that is cut from a finished tensor of this kind: more than any program.
pub(super) const LATE: u64 = 1 << 40;

/// Whether a node takes a part of its first operand.
pub(super) fn is_part(op: &Op) -> bool {
    matches!(op, Op::Slice(_) | Op::Gather(_))
}

/// Returns the classes of the values that are read only in disjoint parts, and of the values that serve only to make such a value.
pub(super) fn cut_classes(
    graph: &Graph,
    module: &Module,
    region: &[NodeId],
    classes: &BTreeMap<ValueId, Id>,
) -> BTreeSet<Id> {
    let (uses, roots) = (module.uses(), module.roots().collect::<BTreeSet<_>>());
    let inside: BTreeSet<NodeId> = region.iter().copied().collect();
    let mut cut: BTreeSet<ValueId> = BTreeSet::new();
    for &id in region.iter().rev() {
        for &value in &module.node(id).results {
            let readers: BTreeSet<NodeId> = uses[value].iter().copied().collect();
            if roots.contains(&value) || readers.is_empty() || !readers.is_subset(&inside) {
                continue;
            }
            let nodes: Vec<&Node> = readers.iter().map(|&reader| module.node(reader)).collect();
            let becomes_cut =
                matches!(nodes[..], [reader] if reader.results.iter().all(|result| cut.contains(result)));
            let part = |node: &&Node| part(graph, module, classes, node, value);
            if becomes_cut || nodes.iter().map(part).collect::<Option<Vec<_>>>().is_some_and(are_disjoint) {
                cut.insert(value);
            }
        }
    }
    cut.into_iter().map(|value| graph.find(classes[&value])).collect()
}

/// Returns the dim and the elements of a value that a node takes.
fn part(
    graph: &Graph,
    module: &Module,
    classes: &BTreeMap<ValueId, Id>,
    node: &Node,
    value: ValueId,
) -> Option<(u32, Range<i64>)> {
    let [first, others @ ..] = &node.operands[..] else { return None };
    if *first != value || others.contains(&value) {
        return None;
    }
    match node.op {
        Op::Slice(Slice { dim, start, step: 1 }) => {
            let length = module.ty(node.results[0]).dims[dim as usize].size()?;
            Some((dim, start..start + length as i64))
        }
        Op::Gather(Gather { dim }) if module.ty(others[0]).numel() == Some(1) => {
            let size = module.ty(value).dims[dim as usize].size()? as i64;
            let index = graph.number(classes[&others[0]])? as i64;
            let start = if index < 0 { index + size } else { index };
            Some((dim, start..start + 1))
        }
        _ => None,
    }
}

/// Whether there are several parts that have no element in common. A single part does not divide a tensor.
fn are_disjoint(mut parts: Vec<(u32, Range<i64>)>) -> bool {
    parts.sort_by_key(|(dim, range)| (*dim, range.start));
    let follows = |pair: &[(u32, Range<i64>)]| pair[0].0 == pair[1].0 && pair[0].1.end <= pair[1].1.start;
    parts.len() > 1 && parts.windows(2).all(follows)
}
