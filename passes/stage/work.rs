//! The work of the forward phase: its nodes in program order with their times, and the bytes of messages if the program is cut
//! before a node.

use crate::recompute::DeviceRates;
use ir::{Definition, Module, NodeId, StateId, ValueId};
use std::collections::BTreeSet;

/// A node of the forward phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// The time of the node and of its gradient, in picoseconds.
    pub(super) time: u64,
    /// The bytes of the values that are made before it and read by it or a later node.
    pub(super) bytes: u64,
    /// The time to send these bytes over the link between stages and to send their gradients back, in picoseconds.
    pub(super) messages: u64,
}

/// The nodes of the forward phase, by the values that they depend on.
pub(super) struct Forward {
    /// Nodes that depend on inputs and states, which are divided into stages.
    pub(super) divided: Vec<NodeId>,
    /// Nodes that depend only on states, such as transposed weights. Each stage that reads one has a copy.
    pub(super) of_weights: BTreeSet<NodeId>,
}

/// The time of a node's gradient, as a multiple of the node's time. The gradient of a contraction is one contraction for each operand.
const GRADIENT: u64 = 2;

impl Forward {
    pub(super) fn of(module: &Module) -> Self {
        let (mut divided, mut of_weights) = (vec![], BTreeSet::new());
        let mut depends = Depends { module, on_states: BTreeSet::new(), on_inputs: BTreeSet::new() };
        for (id, node) in module.nodes() {
            let [on_states, on_inputs] = depends.node(&node.operands);
            node.results.iter().for_each(|&result| depends.add(result, on_states, on_inputs));
            let is_heavy = !crate::rewriting::settle::is_cheap(module, node);
            match (on_states, on_inputs) {
                (true, false) => drop(of_weights.insert(id)),
                (true, true) => divided.push(id),
                (false, _) if is_heavy => {
                    // The node is too much work for every stage, so its readers depend on a stage.
                    node.results.iter().for_each(|&result| depends.add(result, true, true));
                    divided.push(id);
                }
                (false, _) => {}
            }
        }
        Self { divided, of_weights }
    }

    /// Returns the work of the divided nodes.
    pub(super) fn work(&self, module: &Module, rates: &DeviceRates) -> Vec<Work> {
        let device = rates.device();
        let mut work: Vec<Work> = Vec::with_capacity(self.divided.len());
        for &id in &self.divided {
            let node = module.node(id);
            // Readers read a view's elements in place.
            let is_view = node.op.movement().is_layout();
            let time = if is_view { 0 } else { device.node_time(&node.op, &module.signature(node)) };
            work.push(Work { time: time.saturating_mul(1 + GRADIENT), ..Work::default() });
        }
        for (bytes, range) in self.lifetimes(module) {
            work[range].iter_mut().for_each(|work| work.bytes = work.bytes.saturating_add(bytes));
        }
        let there_and_back = |bytes| device.link.transfer_time(bytes).saturating_mul(2);
        work.iter_mut().for_each(|work| work.messages = there_and_back(work.bytes));
        work
    }

    /// Returns for each value its bytes, and the indices of the nodes after its own node up to its last reader.
    fn lifetimes(&self, module: &Module) -> Vec<(u64, std::ops::Range<usize>)> {
        let mut place = vec![None; module.node_count()];
        self.divided.iter().enumerate().for_each(|(at, id)| place[id.as_u32() as usize] = Some(at));
        let uses = module.uses();
        let mut lifetimes = vec![];
        for (at, &id) in self.divided.iter().enumerate() {
            for &value in &module.node(id).results {
                let last = uses[value].iter().filter_map(|reader| place[reader.as_u32() as usize]).max();
                let bytes = module.ty(value).bytes().unwrap_or(0);
                lifetimes.extend(last.map(|last| (bytes, at + 1..last + 1)));
            }
        }
        lifetimes
    }
}

/// The values that depend on states (except those that every stage counts itself), and the values that depend on inputs.
struct Depends<'m> {
    module: &'m Module,
    on_states: BTreeSet<ValueId>,
    on_inputs: BTreeSet<ValueId>,
}

impl Depends<'_> {
    /// Returns whether any of the operands depends on states, and whether any depends on inputs.
    fn node(&self, operands: &[ValueId]) -> [bool; 2] {
        let on_states = |value: &ValueId| match self.module.value(*value).definition {
            Definition::State(id) => !is_counted(self.module, id),
            _ => self.on_states.contains(value),
        };
        let on_inputs = |value: &ValueId| match self.module.value(*value).definition {
            Definition::Input(_) => true,
            Definition::State(id) => self.module.states[id].output.is_some(),
            Definition::Node(..) => self.on_inputs.contains(value),
        };
        [operands.iter().any(on_states), operands.iter().any(on_inputs)]
    }

    fn add(&mut self, value: ValueId, on_states: bool, on_inputs: bool) {
        if on_states {
            self.on_states.insert(value);
        }
        if on_inputs {
            self.on_inputs.insert(value);
        }
    }
}

/// Whether every stage computes the new value of a state itself.
fn is_counted(module: &Module, id: StateId) -> bool {
    matches!(module.states[id].role, ir::Role::Counter | ir::Role::Rng)
}
