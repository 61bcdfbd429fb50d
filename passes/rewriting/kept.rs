//! Keeps activations in another form while they wait for backward. Each changes its form after its last reader in forward, and changes
//! back before its first reader in backward.

use ir::{
    At, Builder, Definition, EVERY_STAGE, Module, Movement, NodeId, Op, Phase, Type, TypeError, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// The form of an activation between forward and backward.
pub(crate) trait Form {
    /// Adds nodes that change the form of an activation, at the builder's place.
    fn put(&self, b: &mut Builder, value: ValueId) -> Result<ValueId, TypeError>;

    /// Adds nodes that change the form back. The result has the type of the activation.
    fn take(&self, b: &mut Builder, kept: ValueId, value: ValueId) -> Result<ValueId, TypeError>;
}

/// Returns the results of forward that backward reads, behind their views, in the order of their ids. Values of every stage are left out:
/// each stage computes them from constants.
pub(crate) fn activations(module: &Module) -> Vec<ValueId> {
    let mut found = BTreeSet::new();
    for (_, node) in module.nodes().filter(|(_, node)| node.phase.is_gradient()) {
        found.extend(node.operands.iter().filter_map(|&operand| behind_views(module, operand)));
    }
    found.into_iter().filter(|&value| module.stage_of(value) != EVERY_STAGE).collect()
}

/// Returns the bytes of a device's part of a value; `u64::MAX` if they are not known.
pub(crate) fn local_bytes(module: &Module, value: ValueId) -> u64 {
    module.ty(value).local_bytes(&module.mesh).unwrap_or(u64::MAX)
}

/// Returns the result of forward behind a value of forward: the value itself, or the value that it is a view of.
pub(crate) fn behind_views(module: &Module, value: ValueId) -> Option<ValueId> {
    if module.phase_of(value) != Phase::Forward {
        return None;
    }
    let source = module.viewed(value, Movement::is_layout);
    let is_forward = module.phase_of(source) == Phase::Forward;
    (is_forward && matches!(module.value(source).definition, Definition::Node(..))).then_some(source)
}

/// Changes the form of these activations. Backward reads the activations that changed back, or the same views of them. Returns the
/// kept form of each.
pub(crate) fn keep(
    b: &mut Builder,
    activations: &[ValueId],
    form: &impl Form,
) -> Result<BTreeMap<ValueId, ValueId>, TypeError> {
    let chosen: BTreeSet<ValueId> = activations.iter().copied().collect();
    let mut kept = BTreeMap::new();
    for (&value, &reader) in &last_readers(b.module(), &chosen) {
        // The reader may be a transfer, which belongs to another stage.
        let stage = b.module().stage_of(value);
        b.at(At::After(reader)).copy(0).stage(stage);
        kept.insert(value, form.put(b, value)?);
    }
    let mut taken = Taken { b, form, kept: &kept, back: BTreeMap::new() };
    let readers = taken.b.module().nodes().filter(|(_, node)| node.phase.is_gradient());
    let readers: Vec<NodeId> = readers.map(|(id, _)| id).collect();
    for reader in readers {
        for (index, operand) in taken.b.module().node(reader).operands.clone().into_iter().enumerate() {
            if let Some(back) = taken.value(operand, reader)? {
                taken.b.set_operand(reader, index, back);
            }
        }
    }
    Ok(kept)
}

/// Returns for each activation the last node of forward that reads it or a view of it, or its own node if there is none.
fn last_readers(module: &Module, chosen: &BTreeSet<ValueId>) -> BTreeMap<ValueId, NodeId> {
    let mut last = BTreeMap::new();
    for (id, node) in module.nodes().filter(|(_, node)| node.phase == Phase::Forward) {
        let read = node.operands.iter().map(|&operand| module.viewed(operand, Movement::is_layout));
        for value in read.chain(node.results.iter().copied()).filter(|value| chosen.contains(value)) {
            last.insert(value, id);
        }
    }
    last
}

/// The activations in their original form, for backward.
struct Taken<'b, 'm, F> {
    b: &'b mut Builder<'m>,
    form: &'b F,
    kept: &'b BTreeMap<ValueId, ValueId>,
    /// Each activation, and each view of one, in the form that backward reads.
    back: BTreeMap<ValueId, ValueId>,
}

impl<F: Form> Taken<'_, '_, F> {
    /// Returns the value that a node of backward reads in place of an operand; `None` if the operand stays.
    fn value(&mut self, operand: ValueId, reader: NodeId) -> Result<Option<ValueId>, TypeError> {
        let Some(source) = behind_views(self.b.module(), operand) else { return Ok(None) };
        let Some(&kept) = self.kept.get(&source) else { return Ok(None) };
        if let Some(&known) = self.back.get(&operand) {
            return Ok(Some(known));
        }
        let views: Vec<_> =
            self.b.module().views(operand, Movement::is_layout).map(|(view, _)| view).collect();
        let stage = self.b.module().stage_of(source);
        let mut value = match self.back.get(&source) {
            Some(&known) => known,
            None => {
                self.b.at(At::Before(reader)).copy(0).stage(stage);
                let back = self.form.take(self.b, kept, source)?;
                self.back.insert(source, back);
                back
            }
        };
        for view in views.into_iter().rev() {
            let (op, shown) = (self.b.module().node(view).op.clone(), self.b.module().node(view).results[0]);
            value = match self.back.get(&shown) {
                Some(&known) => known,
                None => self.view(op, value, shown, reader)?,
            };
        }
        Ok(Some(value))
    }

    /// Repeats a view of forward in backward.
    fn view(&mut self, op: Op, of: ValueId, shown: ValueId, reader: NodeId) -> Result<ValueId, TypeError> {
        let ty: Type = self.b.ty(shown).clone();
        let stage = self.b.module().stage_of(shown);
        self.b.at(At::Before(reader)).copy(0).stage(stage);
        let view = self.b.one_typed(op, &[of], ty.clone())?;
        self.b.shard(view, ty.sharding);
        self.back.insert(shown, view);
        Ok(view)
    }
}
