//! Activations on the host: each leaves the device after its last reader in forward, and comes back before its first reader in
//! backward.

use super::copy_to;
use ir::{
    At, Builder, Definition, EVERY_STAGE, Module, Movement, NodeId, Phase, Tier, Type, TypeError, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// The results of forward of at least so many bytes that backward reads, behind their views.
pub(super) fn choose(module: &Module, least: u64) -> Vec<ValueId> {
    let mut found = BTreeSet::new();
    for (_, node) in module.nodes().filter(|(_, node)| node.phase.is_gradient()) {
        found.extend(node.operands.iter().filter_map(|&operand| behind_views(module, operand)));
    }
    let bytes = |value: &ValueId| module.ty(*value).local_bytes(&module.mesh).unwrap_or(u64::MAX);
    // A value of every stage is computed on each of them, from constants.
    let leaves = |value: &ValueId| bytes(value) >= least && module.stage_of(*value) != EVERY_STAGE;
    found.into_iter().filter(leaves).collect()
}

/// The result of forward that a value is, or of which it is a view made in forward.
fn behind_views(module: &Module, value: ValueId) -> Option<ValueId> {
    if module.phase_of(value) != Phase::Forward {
        return None;
    }
    let source = module.viewed(value, Movement::is_layout);
    let is_forward = module.phase_of(source) == Phase::Forward;
    (is_forward && matches!(module.value(source).definition, Definition::Node(..))).then_some(source)
}

/// Adds the copies of these activations. Backward reads what came back, or the same views of it.
pub(super) fn offload(b: &mut Builder, activations: &[ValueId]) -> Result<(), TypeError> {
    let chosen: BTreeSet<ValueId> = activations.iter().copied().collect();
    let last = last_readers(b.module(), &chosen);
    let mut on_host = BTreeMap::new();
    for (&value, &reader) in &last {
        // The reader may be a transfer, which is of another stage.
        let stage = b.module().stage_of(value);
        b.at(At::After(reader)).copy(0).stage(stage);
        on_host.insert(value, copy_to(b, value, Tier::Host)?);
    }
    let mut fetched = Fetched { b, chosen: &chosen, on_host, back: BTreeMap::new() };
    let readers = fetched.b.module().nodes().filter(|(_, node)| node.phase.is_gradient());
    let readers: Vec<NodeId> = readers.map(|(id, _)| id).collect();
    for reader in readers {
        for (index, operand) in fetched.b.module().node(reader).operands.clone().into_iter().enumerate() {
            if let Some(back) = fetched.value(operand, reader)? {
                fetched.b.set_operand(reader, index, back);
            }
        }
    }
    Ok(())
}

/// For each activation the last node of forward that reads it or a view of it, or that makes it.
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

/// The activations that came back.
struct Fetched<'b, 'm> {
    b: &'b mut Builder<'m>,
    chosen: &'b BTreeSet<ValueId>,
    on_host: BTreeMap<ValueId, ValueId>,
    /// Each activation, and each view of one, as backward reads it.
    back: BTreeMap<ValueId, ValueId>,
}

impl Fetched<'_, '_> {
    /// The value that a node of backward reads in place of an operand: `None` if the operand stays.
    fn value(&mut self, operand: ValueId, reader: NodeId) -> Result<Option<ValueId>, TypeError> {
        let Some(source) = behind_views(self.b.module(), operand) else { return Ok(None) };
        if !self.chosen.contains(&source) {
            return Ok(None);
        }
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
                let back = copy_to(self.b, self.on_host[&source], Tier::Device)?;
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
    fn view(
        &mut self,
        op: ir::Op,
        of: ValueId,
        shown: ValueId,
        reader: NodeId,
    ) -> Result<ValueId, TypeError> {
        let ty: Type = self.b.ty(shown).clone();
        let stage = self.b.module().stage_of(shown);
        self.b.at(At::Before(reader)).copy(0).stage(stage);
        let view = self.b.one_typed(op, &[of], ty.clone())?;
        self.b.shard(view, ty.sharding);
        self.back.insert(shown, view);
        Ok(view)
    }
}
