//! Who reads each value of a program: what the rewrites of lowering ask.

use super::{LowerOptions, select};
use cranelift_entity::{EntitySet, SecondaryMap};
use ir::{Module, NodeId, ValueId};
use smallvec::SmallVec;

/// The readers of values, and where nodes stand.
pub(super) struct Readers {
    /// The live nodes that read a value, each once, in program order.
    pub(super) of: SecondaryMap<ValueId, SmallVec<[NodeId; 2]>>,
    /// What kept outputs and states hold on to.
    pub(super) held: EntitySet<ValueId>,
    /// The place of a node in program order.
    pub(super) position: SecondaryMap<NodeId, u32>,
}

impl Readers {
    pub(super) fn new(module: &Module, live: &EntitySet<NodeId>, options: &LowerOptions) -> Self {
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
        Self { of, held: select::held(module, options), position }
    }

    /// The only reader of a value that nothing holds on to.
    pub(super) fn only(&self, value: ValueId) -> Option<NodeId> {
        match self.of[value][..] {
            [reader] if !self.held.contains(value) => Some(reader),
            _ => None,
        }
    }
}
