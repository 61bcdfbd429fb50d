//! The live nodes of a program, and the readers of each value.

use crate::{Definition, Module, Movement, Node, NodeId, Op, ValueId};
use cranelift_entity::{EntitySet, SecondaryMap};
use smallvec::SmallVec;

/// The nodes that some output or the new value of some state depends on, and the transfers that report an output to other stages.
pub fn live_nodes(module: &Module) -> EntitySet<NodeId> {
    let mut live = EntitySet::new();
    let mark = |live: &mut EntitySet<NodeId>, value: ValueId| {
        if let Definition::Node(node, _) = module.value(value).definition {
            live.insert(node);
        }
    };
    module.roots().for_each(|value| mark(&mut live, value));
    live.extend(reports(module));
    for (id, node) in module.nodes().rev() {
        if live.contains(id) {
            node.operands.iter().for_each(|&operand| mark(&mut live, operand));
        }
    }
    live
}

/// The transfers that report an output to other stages.
pub fn reports(module: &Module) -> Vec<NodeId> {
    let mut reported = EntitySet::new();
    reported.extend(module.outputs.iter().map(|output| output.value));
    let reports = |node: &Node| matches!(node.op, Op::Transfer(_)) && reported.contains(node.operands[0]);
    module.nodes().filter(|(_, node)| reports(node)).map(|(id, _)| id).collect()
}

/// The values that outputs and new values of states hold on to.
pub fn held_values(module: &Module) -> EntitySet<ValueId> {
    let mut held = EntitySet::new();
    held.extend(module.roots());
    held
}

/// The readers of values, and the places of nodes.
#[derive(Clone, Debug)]
pub struct Readers {
    /// The live nodes that read a value, each once, in program order.
    pub of: SecondaryMap<ValueId, SmallVec<[NodeId; 2]>>,
    /// The values that outputs and new values of states hold on to.
    pub held: EntitySet<ValueId>,
    /// The place of a live node in program order.
    pub position: SecondaryMap<NodeId, u32>,
}

impl Readers {
    /// The readers among the nodes that are `live`.
    pub fn new(module: &Module, live: &EntitySet<NodeId>) -> Self {
        let mut of: SecondaryMap<ValueId, SmallVec<[NodeId; 2]>> = SecondaryMap::new();
        let mut position = SecondaryMap::new();
        for (index, (id, node)) in module.nodes().enumerate().filter(|(_, (id, _))| live.contains(*id)) {
            position[id] = index as u32;
            for &operand in &node.operands {
                if of[operand].last() != Some(&id) {
                    of[operand].push(id);
                }
            }
        }
        Self { of, held: held_values(module), position }
    }

    /// The only reader of a value that nothing holds on to.
    pub fn only(&self, value: ValueId) -> Option<NodeId> {
        match self.of[value][..] {
            [reader] if !self.held.contains(value) => Some(reader),
            _ => None,
        }
    }
}

/// The value that a kernel makes and that `value` is a view of, with the views between them, the last first. `None` if the
/// kernel decides how its value lies (`writes_anywhere` says which do not), or if something holds on to it.
pub fn made_by_kernel(
    module: &Module,
    held: &EntitySet<ValueId>,
    value: ValueId,
    writes_anywhere: impl Fn(&Op) -> bool,
) -> Option<(ValueId, Vec<NodeId>)> {
    let views = module.views(value, Movement::is_rearrangement).map(|(view, _)| view).collect();
    let base = module.viewed(value, Movement::is_rearrangement);
    (writes_anywhere(&module.producer(base)?.op) && !held.contains(base)).then_some((base, views))
}
