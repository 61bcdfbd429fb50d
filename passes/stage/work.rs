//! The work of the forward phase: its nodes in program order with their times, and the bytes that travel if the program is cut
//! before a node.

use crate::recompute::DeviceRates;
use ir::{Definition, Module, NodeId, StateId, ValueId};
use std::collections::BTreeSet;

/// A node of the forward phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// The time of the node and of its gradient, in picoseconds.
    pub(super) time: u64,
    /// Bytes of the values that are made before it and read by it or later.
    pub(super) bytes: u64,
    /// The time of these bytes on the link between stages, there and back as gradients, in picoseconds.
    pub(super) messages: u64,
}

/// The nodes of the forward phase, by the values that they depend on.
pub(super) struct Forward {
    /// Nodes that depend on inputs and states: those that are divided into stages.
    pub(super) divided: Vec<NodeId>,
    /// Nodes that depend on states alone, such as transposed weights. Each stage that reads one has it.
    pub(super) of_weights: BTreeSet<NodeId>,
}

/// The gradient of a node takes as long as so many of the node: of a contraction one for each operand.
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
                    // Too much work for every stage, so its readers depend on a stage.
                    node.results.iter().for_each(|&result| depends.add(result, true, true));
                    divided.push(id);
                }
                (false, _) => {}
            }
        }
        Self { divided, of_weights }
    }

    /// The work of the divided nodes.
    pub(super) fn work(&self, module: &Module, rates: &DeviceRates) -> Vec<Work> {
        let device = rates.device();
        let mut work: Vec<Work> = Vec::with_capacity(self.divided.len());
        for &id in &self.divided {
            let node = module.node(id);
            // Readers take a view's elements from where they lie.
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

    /// For each value the bytes, and the places of the nodes after its own up to its last reader.
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

/// The values that depend on states that no stage counts for itself, and those that depend on inputs.
struct Depends<'m> {
    module: &'m Module,
    on_states: BTreeSet<ValueId>,
    on_inputs: BTreeSet<ValueId>,
}

impl Depends<'_> {
    /// Whether any of the operands depends on states, and whether any depends on inputs.
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

/// Whether every stage counts a state for itself.
fn is_counted(module: &Module, id: StateId) -> bool {
    matches!(module.states[id].role, ir::Role::Counter | ir::Role::Rng)
}
