//! The live nodes of a program, and the readers of each value.

use crate::{Definition, Module, Movement, Node, NodeId, Op, ValueId};
use cranelift_entity::{EntitySet, SecondaryMap};
use smallvec::SmallVec;

/// Returns the nodes on which an output or the new value of a state depends, and the transfers that report an output to other
/// stages.
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

/// Returns the transfers that report an output to other stages.
pub fn reports(module: &Module) -> Vec<NodeId> {
    let mut reported = EntitySet::new();
    reported.extend(module.outputs.iter().map(|output| output.value));
    let reports = |node: &Node| matches!(node.op, Op::Transfer(_)) && reported.contains(node.operands[0]);
    module.nodes().filter(|(_, node)| reports(node)).map(|(id, _)| id).collect()
}

/// Returns the values of outputs and the new values of states.
pub fn held_values(module: &Module) -> EntitySet<ValueId> {
    let mut held = EntitySet::new();
    held.extend(module.roots());
    held
}

/// The readers of values, and the positions of nodes.
#[derive(Clone, Debug)]
pub struct Readers {
    /// The live nodes that read a value, each once, in program order.
    pub of: SecondaryMap<ValueId, SmallVec<[NodeId; 2]>>,
    /// The values of outputs and the new values of states.
    pub held: EntitySet<ValueId>,
    /// The position of a live node in program order.
    pub position: SecondaryMap<NodeId, u32>,
}

impl Readers {
    /// Collects the readers among the `live` nodes.
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

    /// Returns the reader of a value, if it is the only one and the value is neither an output nor a state's new value.
    pub fn only(&self, value: ValueId) -> Option<NodeId> {
        match self.of[value][..] {
            [reader] if !self.held.contains(value) => Some(reader),
            _ => None,
        }
    }
}

/// Returns the value that a kernel makes and that `value` is a view of, and the views between them, the last first. `None` if the
/// kernel chooses the layout of its result (`writes_anywhere` says which kernels do not), or if an output or a state holds the
/// value.
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
