//! Embeddings on the host: a weight that microbatches read only by look-ups of rows rests there. The host looks the rows up, sums their
//! gradient up, and updates the weight.

use super::Classes;
use cranelift_entity::SecondaryMap;
use ir::{Module, Node, NodeId, Op, Phase, Role, State, StateId, ValueId};
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// The tables, and the nodes that leave the device with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Embeddings {
    /// The tables and the states of their optimizers.
    pub(super) states: BTreeSet<StateId>,
    /// The look-ups, their gradients, and the sums of these gradients.
    pub(super) nodes: Vec<NodeId>,
}

impl Embeddings {
    /// Returns the embeddings of at least `least` bytes on each device, if their class leaves.
    pub(super) fn of(module: &Module, classes: Classes, least: u64) -> Self {
        let mut all = Self::default();
        if classes.embeddings {
            let search = EmbeddingFinder { module, uses: module.uses() };
            let is_table = |(_, state): &(StateId, &State)| {
                let bytes = state.ty.local_bytes(&module.mesh);
                state.role == Role::Parameter && bytes.is_some_and(|bytes| bytes >= least)
            };
            for (id, state) in module.states.iter().filter(is_table) {
                let Some(look_ups) = search.look_ups(state.input) else { continue };
                all.states.insert(id);
                all.states.extend(search.optimizer_states(state.input));
                all.nodes.extend(search.gradients(&look_ups, state));
                all.nodes.extend(look_ups);
            }
        }
        all
    }
}

struct EmbeddingFinder<'m> {
    module: &'m Module,
    uses: SecondaryMap<ValueId, SmallVec<[NodeId; 2]>>,
}

impl<'m> EmbeddingFinder<'m> {
    fn readers(&self, value: ValueId) -> impl Iterator<Item = (NodeId, &'m Node)> {
        self.uses[value].iter().map(|&reader| (reader, self.module.node(reader)))
    }

    /// Returns the look-ups in a weight or in a cast of it; `None` if a microbatch reads it in any other way, or not at all.
    fn look_ups(&self, weight: ValueId) -> Option<Vec<NodeId>> {
        let mut look_ups = vec![];
        for (id, node) in self.readers(weight).filter(|(_, node)| node.phase != Phase::Update) {
            match &node.op {
                Op::Cast(_) if node.phase == Phase::Prepare => {
                    look_ups.extend(self.look_ups(node.results[0])?)
                }
                Op::Gather(gather) if gather.dim == 0 && node.operands[0] == weight => look_ups.push(id),
                _ => return None,
            }
        }
        (!look_ups.is_empty()).then_some(look_ups)
    }

    /// Returns the gradients of look-ups in a table, with their casts and sums.
    fn gradients(&self, look_ups: &[NodeId], table: &State) -> Vec<NodeId> {
        let indices: BTreeSet<ValueId> =
            look_ups.iter().map(|&look_up| self.module.node(look_up).operands[1]).collect();
        let is_own = |(_, node): &(NodeId, &Node)| {
            let is_gradient = matches!(node.op, Op::GatherGrad(_)) && indices.contains(&node.operands[0]);
            is_gradient && self.module.ty(node.results[0]).dims == table.ty.dims
        };
        let mut nodes: Vec<NodeId> = self.module.nodes().filter(is_own).map(|(id, _)| id).collect();
        let mut next = 0;
        while let Some(&node) = nodes.get(next) {
            let follows = |node: &Node| matches!(node.op, Op::Cast(_) | Op::Accumulate(_));
            let readers = self.readers(self.module.node(node).results[0]);
            nodes.extend(readers.filter(|(_, node)| follows(node)).map(|(id, _)| id));
            next += 1;
        }
        nodes
    }

    /// Returns the optimizer's states that the update of a weight reads.
    fn optimizer_states(&self, weight: ValueId) -> BTreeSet<StateId> {
        let updates = self.readers(weight).filter(|(_, node)| node.phase == Phase::Update);
        let read: BTreeSet<ValueId> = updates.flat_map(|(_, node)| node.operands.iter().copied()).collect();
        let is_own =
            |(_, state): &(StateId, &State)| state.role == Role::Optimizer && read.contains(&state.input);
        self.module.states.iter().filter(is_own).map(|(id, _)| id).collect()
    }
}
