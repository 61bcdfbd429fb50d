//! Finds sums of several addends: additions whose results only other additions read.

use cranelift_entity::SecondaryMap;
use ir::ops::elementwise::Binary;
use ir::{Definition, Module, Node, NodeId, Op, ValueId};
use std::collections::BTreeMap;

/// The sums of a module, by their last addition.
#[derive(Debug, Default)]
pub(super) struct Sums {
    of: BTreeMap<NodeId, Sum>,
    inner: SecondaryMap<NodeId, bool>,
}

/// One sum.
#[derive(Debug, Default)]
pub(super) struct Sum {
    /// The additions in program order, with the last one.
    pub(super) nodes: Vec<NodeId>,
    /// The addends, from left to right.
    pub(super) leaves: Vec<ValueId>,
}

impl Sums {
    /// Whether the node is an addition of a sum, but not its last one.
    pub(super) fn is_inner(&self, id: NodeId) -> bool {
        self.inner[id]
    }

    /// Removes and returns the sum that ends with this node.
    pub(super) fn take(&mut self, id: NodeId) -> Option<Sum> {
        self.of.remove(&id)
    }
}

/// Finds every sum of three addends or more, all of one type.
pub(super) fn find(module: &Module) -> Sums {
    let uses = module.uses();
    let mut held: SecondaryMap<ValueId, bool> = SecondaryMap::new();
    module.roots().for_each(|value| held[value] = true);
    let adds = |node: &Node| {
        let alike = |&operand: &ValueId| module.ty(operand).same_shape(module.ty(node.results[0]));
        matches!(node.op, Op::Binary(Binary::Add)) && node.operands.iter().all(alike)
    };
    let region = |node: &Node| (node.phase, node.stage, node.copy);
    // The addition that is the only reader of a value.
    let into = |value: ValueId, node: &Node| match uses[value][..] {
        [reader]
            if !held[value] && adds(module.node(reader)) && region(module.node(reader)) == region(node) =>
        {
            (module.node(reader).operands[0] != module.node(reader).operands[1]).then_some(reader)
        }
        _ => None,
    };
    let mut position: SecondaryMap<NodeId, usize> = SecondaryMap::new();
    module.order().iter().enumerate().for_each(|(at, &id)| position[id] = at);
    let mut sums = Sums::default();
    for (id, node) in module.nodes().filter(|(_, node)| adds(node)) {
        if into(node.results[0], node).is_some() {
            sums.inner[id] = true;
        }
    }
    for (id, _) in module.nodes().filter(|(_, node)| adds(node)).filter(|(id, _)| !sums.inner[*id]) {
        let mut sum = Sum::default();
        collect(module, &sums.inner, id, &mut sum);
        sum.nodes.sort_unstable_by_key(|&node| position[node]);
        if sum.nodes.len() > 1 {
            sums.of.insert(id, sum);
        }
    }
    sums
}

fn collect(module: &Module, inner: &SecondaryMap<NodeId, bool>, root: NodeId, sum: &mut Sum) {
    // A stack in place of recursion, since sums can be as long as a model is deep.
    let mut pending: Vec<ValueId> = vec![module.node(root).results[0]];
    while let Some(value) = pending.pop() {
        match module.value(value).definition {
            Definition::Node(id, _) if id == root || inner[id] => {
                sum.nodes.push(id);
                // The left operand is popped first.
                pending.extend(module.node(id).operands.iter().rev());
            }
            _ => sum.leaves.push(value),
        }
    }
}
