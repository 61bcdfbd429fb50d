//! Adds copies of forward nodes to backward.

use super::Recompute;
use crate::pass::Transform;
use cranelift_entity::EntitySet;
use ir::analysis::live_nodes;
use ir::{At, Builder, Definition, Diagnostic, Module, NodeId, Type, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// Adds a copy of each repeated node before the first backward node that needs it, and makes backward nodes read the copies. Returns the
/// copy of each value.
pub(super) fn insert(
    module: &mut Module,
    repeated: &BTreeSet<NodeId>,
) -> Result<BTreeMap<ValueId, ValueId>, Diagnostic> {
    if repeated.is_empty() {
        return Ok(BTreeMap::new());
    }
    let live = live_nodes(module);
    let backward: Vec<NodeId> = module
        .nodes()
        .filter(|(id, node)| node.phase.is_gradient() && live.contains(*id))
        .map(|(id, _)| id)
        .collect();
    let mut position: BTreeMap<NodeId, usize> = BTreeMap::new();
    position.extend(
        module.order().iter().enumerate().filter(|(_, id)| repeated.contains(id)).map(|(at, &id)| (id, at)),
    );
    let mut copies =
        Copies { b: Builder::new(module, Recompute::NAME), repeated, position, made: BTreeMap::new() };
    for reader in backward {
        copies.before(reader)?;
    }
    copies.b.finish();
    Ok(copies.made)
}

struct Copies<'a> {
    b: Builder<'a>,
    repeated: &'a BTreeSet<NodeId>,
    /// The positions of repeated nodes in the program order.
    position: BTreeMap<NodeId, usize>,
    /// The copy of each value.
    made: BTreeMap<ValueId, ValueId>,
}

impl Copies<'_> {
    /// Returns the repeated node that computes a value, if there is one.
    fn producer(&self, value: ValueId) -> Option<NodeId> {
        match self.b.module().value(value).definition {
            Definition::Node(id, _) => self.repeated.contains(&id).then_some(id),
            Definition::Input(_) | Definition::State(_) => None,
        }
    }

    /// Adds the copies that a backward node needs and that are still missing, in the order of the original nodes.
    fn before(&mut self, reader: NodeId) -> Result<(), Diagnostic> {
        let operands = self.b.module().node(reader).operands.clone();
        let (mut missing, mut pending) = (BTreeSet::new(), operands.to_vec());
        let mut seen: EntitySet<NodeId> = EntitySet::new();
        while let Some(value) = pending.pop() {
            let Some(id) = self.producer(value).filter(|_| !self.made.contains_key(&value)) else { continue };
            if seen.insert(id) {
                missing.insert((self.position[&id], id));
                pending.extend(self.b.module().node(id).operands.iter().copied());
            }
        }
        for (_, id) in missing {
            self.copy(id, reader)?;
        }
        for (index, operand) in operands.into_iter().enumerate() {
            if let Some(&copy) = self.made.get(&operand) {
                self.b.set_operand(reader, index, copy);
            }
        }
        Ok(())
    }

    /// Adds a copy of a node before a backward node.
    fn copy(&mut self, id: NodeId, reader: NodeId) -> Result<(), Diagnostic> {
        let node = self.b.module().node(id).clone();
        let operands: Vec<ValueId> =
            node.operands.iter().map(|operand| *self.made.get(operand).unwrap_or(operand)).collect();
        let types: Vec<Type> = node.results.iter().map(|&result| self.b.ty(result).clone()).collect();
        self.b.at(At::Before(reader)).stage(node.stage).copy(node.copy + 1).origin(node.origin.clone());
        let results = self
            .b
            .push_typed(node.op, &operands, &types)
            .map_err(|error| Diagnostic::new(format!("recompute built an ill-typed node: {error}")))?;
        for ((&original, &copy), ty) in node.results.iter().zip(&results).zip(types) {
            self.b.shard(copy, ty.sharding);
            self.made.insert(original, copy);
        }
        Ok(())
    }
}
