//! The lifetimes of values in the interpreter: [`StepInterpreter`](super::run::StepInterpreter) frees values by these
//! rules, and [`memory`](super::memory()) counts them by the same rules.

use crate::{Module, Node, NodeId, Op, ValueId};
use cranelift_entity::{EntitySet, SecondaryMap};

/// The readers of every value of a module.
pub(super) struct ValueLifetimes<'m> {
    module: &'m Module,
    /// The last node that reads each value. Additions to sums over microbatches happen when the value is made, and do not count.
    last_reader: SecondaryMap<ValueId, Option<NodeId>>,
    /// The new values of states, which are held until the step ends.
    kept: EntitySet<ValueId>,
    /// The sums over microbatches to which each value is added.
    sums: SecondaryMap<ValueId, Vec<ValueId>>,
}

impl<'m> ValueLifetimes<'m> {
    pub(super) fn new(module: &'m Module) -> Self {
        let (mut last_reader, mut sums) = (SecondaryMap::new(), SecondaryMap::<_, Vec<ValueId>>::new());
        for (id, node) in module.nodes() {
            if matches!(node.op, Op::Accumulate(_)) {
                sums[node.operands[0]].push(node.results[0]);
            } else {
                node.operands.iter().for_each(|&operand| last_reader[operand] = Some(id));
            }
        }
        let mut kept = EntitySet::new();
        kept.extend(module.states.values().filter_map(|state| state.output));
        Self { module, last_reader, kept, sums }
    }

    /// Returns the sums over microbatches to which a value is added when it is made.
    pub(super) fn sums(&self, value: ValueId) -> &[ValueId] {
        &self.sums[value]
    }

    /// Whether a value is still held after it was made, added and reported.
    pub(super) fn is_held(&self, value: ValueId) -> bool {
        self.last_reader[value].is_some() || self.kept.contains(value)
    }

    /// Whether a value is held, added to a sum or reported.
    pub(super) fn is_needed(&self, value: ValueId) -> bool {
        self.is_held(value)
            || !self.sums[value].is_empty()
            || self.module.outputs.iter().any(|output| output.value == value)
    }

    /// Whether an operand of a node is freed after the node. Each microbatch reads a value from before the microbatches again;
    /// `more` says whether another microbatch follows.
    pub(super) fn is_freed(&self, operand: ValueId, id: NodeId, node: &Node, more: bool) -> bool {
        let is_read_again =
            more && node.phase.is_microbatch() && !self.module.phase_of(operand).is_microbatch();
        self.last_reader[operand] == Some(id) && !self.kept.contains(operand) && !is_read_again
    }
}
