//! Changes of a program: the only way in which nodes are added, replaced and removed.
//!
//! A [`Builder`] collects the edits of one pass and applies them at once in [`Builder::finish`]. Until then the order of the
//! module stays unchanged, so a pass can walk it while it builds.

mod formula;

use crate::module::{Definition, Module, Node, Value};
use crate::ops::{Inference, Op, Operator};
use crate::{Dim, NodeId, Phase, Sharding, Tier, Type, TypeError, ValueId};
use cranelift_entity::{EntitySet, SecondaryMap};
pub use formula::Formula;
use smallvec::SmallVec;
use std::sync::Arc;

/// The place of new nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Just before this node, after the nodes that were put there earlier.
    Before(NodeId),
    /// Just after this node, after the nodes that were put there earlier.
    After(NodeId),
    /// Before the first node of this phase.
    Start(Phase),
    /// After the last node of this phase.
    End(Phase),
}

/// Whether a pass changed the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The pass changed the module.
    Yes,
    /// The pass did not change the module.
    No,
}

impl Changed {
    /// Returns `Yes` if `self` or `other` is `Yes`.
    pub fn or(self, other: Self) -> Self {
        if self == Self::Yes { self } else { other }
    }
}

/// The edits of one pass. New nodes take phase, stage, copy, place and origin from the builder's settings.
pub struct Builder<'m> {
    module: &'m mut Module,
    by: Arc<str>,
    at: At,
    phase: Phase,
    stage: u32,
    copy: u32,
    place: Tier,
    origin: Arc<str>,
    before: SecondaryMap<NodeId, Vec<NodeId>>,
    after: SecondaryMap<NodeId, Vec<NodeId>>,
    start: [Vec<NodeId>; Phase::ALL.len()],
    end: [Vec<NodeId>; Phase::ALL.len()],
    replaced: SecondaryMap<ValueId, Option<ValueId>>,
    removed: EntitySet<NodeId>,
    moved: EntitySet<NodeId>,
    changed: Changed,
}

impl<'m> Builder<'m> {
    /// Creates a builder for the pass `by` that appends to the forward phase.
    pub fn new(module: &'m mut Module, by: &str) -> Self {
        Self {
            module,
            by: Arc::from(by),
            at: At::End(Phase::Forward),
            phase: Phase::Forward,
            stage: 0,
            copy: 0,
            place: Tier::Device,
            origin: Arc::from(""),
            before: SecondaryMap::new(),
            after: SecondaryMap::new(),
            start: Default::default(),
            end: Default::default(),
            replaced: SecondaryMap::new(),
            removed: EntitySet::new(),
            moved: EntitySet::new(),
            changed: Changed::No,
        }
    }

    /// Returns the module in its current state. Nodes added so far have ids and values, but no place in the order yet.
    pub fn module(&self) -> &Module {
        self.module
    }

    /// Returns the module so that the caller can add to its tables of states, data, inputs and outputs.
    pub fn tables(&mut self) -> &mut Module {
        self.changed = Changed::Yes;
        self.module
    }

    /// Puts the next nodes at `at`. `Before` and `After` also copy that node's phase, stage, copy, place and origin.
    pub fn at(&mut self, at: At) -> &mut Self {
        self.at = at;
        match at {
            At::Before(id) | At::After(id) => {
                let node = &self.module.nodes[id];
                (self.phase, self.stage, self.copy) = (node.phase, node.stage, node.copy);
                self.place = node.place;
                self.origin = node.origin.clone();
            }
            At::Start(phase) | At::End(phase) => self.phase = phase,
        }
        self
    }

    /// Sets the origin of the next nodes.
    pub fn origin(&mut self, origin: impl Into<Arc<str>>) -> &mut Self {
        self.origin = origin.into();
        self
    }

    /// Sets the author of the next nodes: the pass, or the pass and its rule.
    pub fn by(&mut self, by: &str) -> &mut Self {
        self.by = Arc::from(by);
        self
    }

    /// Sets the stage of the next nodes.
    pub fn stage(&mut self, stage: u32) -> &mut Self {
        self.stage = stage;
        self
    }

    /// Sets the copy number of the next nodes.
    pub fn copy(&mut self, copy: u32) -> &mut Self {
        self.copy = copy;
        self
    }

    /// Sets the memory in which the next nodes compute.
    pub fn place(&mut self, place: Tier) -> &mut Self {
        self.place = place;
        self
    }

    /// Returns the type of a value.
    pub fn ty(&self, value: ValueId) -> &Type {
        self.module.ty(value)
    }

    /// Adds a node whose result types follow from its operands.
    pub fn push(
        &mut self,
        op: impl Into<Op>,
        operands: &[ValueId],
    ) -> Result<SmallVec<[ValueId; 2]>, TypeError> {
        self.push_typed(op, operands, &[])
    }

    /// Adds a node whose operator reads its declared result types (reshape, broadcast, slice, iota…).
    pub fn push_typed(
        &mut self,
        op: impl Into<Op>,
        operands: &[ValueId],
        declared: &[Type],
    ) -> Result<SmallVec<[ValueId; 2]>, TypeError> {
        let op = op.into();
        let types: Vec<Type> = operands.iter().map(|&id| self.ty(id).clone()).collect();
        let inferred = op.infer(&Inference { operands: &types, declared })?;
        inferred.iter().try_for_each(Type::check_size)?;
        let id = self.module.nodes.next_key();
        let results: SmallVec<[ValueId; 2]> = inferred
            .into_iter()
            .enumerate()
            .map(|(i, ty)| {
                let definition = Definition::Node(id, i as u32);
                self.module.values.push(Value { ty, definition })
            })
            .collect();
        self.module.nodes.push(Node {
            op,
            operands: SmallVec::from_slice(operands),
            results: results.clone(),
            phase: self.phase,
            stage: self.stage,
            copy: self.copy,
            place: self.place,
            origin: self.origin.clone(),
            by: self.by.clone(),
        });
        self.list(self.at).push(id);
        self.changed = Changed::Yes;
        Ok(results)
    }

    /// Adds a node with one result.
    pub fn one(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> Result<ValueId, TypeError> {
        Ok(self.push(op, operands)?[0])
    }

    /// Adds a node with one result, whose operator reads the declared type.
    pub fn one_typed(
        &mut self,
        op: impl Into<Op>,
        operands: &[ValueId],
        ty: Type,
    ) -> Result<ValueId, TypeError> {
        Ok(self.push_typed(op, operands, &[ty])?[0])
    }

    /// Changes the sharding of a value. The verifier checks that its node can produce it.
    pub fn shard(&mut self, value: ValueId, sharding: Sharding) {
        if self.module.values[value].ty.sharding != sharding {
            self.module.values[value].ty.sharding = sharding;
            self.changed = Changed::Yes;
        }
    }

    /// Changes the size of a value along a dim. The verifier checks that its node can produce it.
    pub fn resize(&mut self, value: ValueId, dim: usize, size: Dim) {
        self.module.values[value].ty.dims[dim] = size;
        self.changed = Changed::Yes;
    }

    /// Moves a node to another stage.
    pub fn set_stage(&mut self, node: NodeId, stage: u32) {
        if self.module.nodes[node].stage != stage {
            self.module.nodes[node].stage = stage;
            self.changed = Changed::Yes;
        }
    }

    /// Changes the memory in which a node computes. The verifier checks that its operands lie there.
    pub fn set_place(&mut self, node: NodeId, place: Tier) {
        if self.module.nodes[node].place != place {
            self.module.nodes[node].place = place;
            self.changed = Changed::Yes;
        }
    }

    /// Changes the element type of a value. The caller makes sure that its node can produce that type.
    pub fn set_dtype(&mut self, value: ValueId, dtype: crate::DType) {
        self.module.values[value].ty.dtype = dtype;
        self.changed = Changed::Yes;
    }

    /// Replaces the name, type, initializer and view of a state. The verifier checks that the nodes that read the state accept the
    /// new type.
    pub fn renew_state(
        &mut self,
        id: crate::StateId,
        name: String,
        ty: Type,
        initializer: crate::Initializer,
        view: crate::View,
    ) {
        let state = &mut self.module.states[id];
        self.module.values[state.input].ty = ty.clone();
        (state.name, state.ty, state.initializer, state.view) = (name, ty, initializer, view);
        self.changed = Changed::Yes;
    }

    /// Replaces an operand of a node at once.
    pub fn set_operand(&mut self, node: NodeId, operand: usize, value: ValueId) {
        self.module.nodes[node].operands[operand] = value;
        self.changed = Changed::Yes;
    }

    /// Makes every reader of `old` (nodes, outputs, states' new values) read `new` once the edits are applied.
    pub fn replace(&mut self, old: ValueId, new: ValueId) {
        if old != new {
            self.replaced[old] = Some(new);
            self.changed = Changed::Yes;
        }
    }

    /// Removes a node once the edits are applied. By then its results must have no readers.
    pub fn remove(&mut self, node: NodeId) {
        self.removed.insert(node);
        self.changed = Changed::Yes;
    }

    /// Moves a node to `at`, within its phase. The place must lie after the nodes that define its operands and before its readers.
    pub fn move_to(&mut self, node: NodeId, at: At) {
        self.moved.insert(node);
        self.list(at).push(node);
        self.changed = Changed::Yes;
    }

    /// Moves a node to the end of a later phase.
    pub fn put_off(&mut self, node: NodeId, phase: Phase) {
        self.module.nodes[node].phase = phase;
        self.move_to(node, At::End(phase));
    }

    /// Moves a node to the start of a later phase, after nodes that were moved there before.
    pub fn move_to_start(&mut self, node: NodeId, phase: Phase) {
        self.module.nodes[node].phase = phase;
        self.move_to(node, At::Start(phase));
    }

    /// Returns the list of nodes that go to `at`, in order.
    fn list(&mut self, at: At) -> &mut Vec<NodeId> {
        match at {
            At::Before(anchor) => &mut self.before[anchor],
            At::After(anchor) => &mut self.after[anchor],
            At::Start(phase) => &mut self.start[phase as usize],
            At::End(phase) => &mut self.end[phase as usize],
        }
    }

    /// Returns the value that readers of `value` will read.
    pub fn resolve(&self, mut value: ValueId) -> ValueId {
        while let Some(new) = self.replaced[value] {
            value = new;
        }
        value
    }

    /// Applies the edits: the new order, the replacements, the removals.
    pub fn finish(self) -> Changed {
        if self.changed == Changed::No {
            return Changed::No;
        }
        let old = std::mem::take(&mut self.module.order);
        let mut order = Vec::with_capacity(self.module.nodes.len());
        let mut old = old.into_iter().peekable();
        for (phase, _) in Phase::ALL {
            self.start[phase as usize].iter().for_each(|&id| self.put(id, &mut order));
            let is_due = |&id: &NodeId| self.moved.contains(id) || self.module.nodes[id].phase <= phase;
            while let Some(id) = old.next_if(is_due) {
                if !self.moved.contains(id) {
                    self.put(id, &mut order);
                }
            }
            self.end[phase as usize].iter().for_each(|&id| self.put(id, &mut order));
        }
        for &id in &order {
            let mut operands = std::mem::take(&mut self.module.nodes[id].operands);
            for operand in &mut operands {
                let resolved = self.resolve(*operand);
                if resolved != *operand {
                    *operand = resolved;
                    self.module.nodes[id].by = self.by.clone();
                }
            }
            self.module.nodes[id].operands = operands;
        }
        let outputs: Vec<_> = self.module.outputs.iter().map(|output| self.resolve(output.value)).collect();
        for (output, value) in self.module.outputs.iter_mut().zip(outputs) {
            output.value = value;
        }
        for id in self.module.states.keys() {
            let output = self.module.states[id].output.map(|value| self.resolve(value));
            self.module.states[id].output = output;
        }
        self.module.order = order;
        self.changed
    }

    /// Appends a node to the order, with the nodes before and after it.
    fn put(&self, id: NodeId, order: &mut Vec<NodeId>) {
        for &inner in &self.before[id] {
            self.put(inner, order);
        }
        if !self.removed.contains(id) {
            order.push(id);
        }
        for &inner in &self.after[id] {
            self.put(inner, order);
        }
    }
}
