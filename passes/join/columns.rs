//! Joins contractions of one tensor with several others into one contraction with their concatenation.

use super::{Group, JoinFinder, Operand};
use cranelift_entity::EntitySet;
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Binary, Unary};
use ir::{Node, NodeId, Op, ValueId};
use std::collections::BTreeMap;

/// The most nodes between two contractions that are joined. Contractions far apart would keep their operands for long.
const NEAR: u32 = 48;

/// The nodes and values that are in groups already.
#[derive(Default)]
struct Joined {
    nodes: EntitySet<NodeId>,
    /// The results of kernels that have become parts of a concatenation.
    bases: EntitySet<ValueId>,
    /// The group of each part, and its index there.
    place: BTreeMap<ValueId, (usize, usize)>,
    groups: usize,
}

impl Joined {
    fn add(&mut self, search: &JoinFinder<'_>, group: &Group) {
        self.nodes.extend(group.members.iter().copied());
        for operand in &group.operands {
            let Operand::Joined { parts, .. } = operand else { continue };
            self.bases.extend(parts.iter().filter_map(|&part| search.base(part)));
            let places = parts.iter().enumerate().map(|(index, &part)| (part, (self.groups, index)));
            self.place.extend(places);
        }
        self.groups += 1;
    }
}

impl JoinFinder<'_> {
    /// Finds contractions that share one operand.
    pub(super) fn contractions(&self) -> Vec<Group> {
        let mut groups = vec![];
        let mut joined = Joined::default();
        for (id, _) in self.nodes() {
            if let Some(group) = (0..2).find_map(|side| self.reading_one(id, side, &joined)) {
                joined.add(self, &group);
                groups.push(group);
            }
        }
        groups
    }

    /// Returns the group of a contraction and those that come soon after it and share its operand on this side.
    fn reading_one(&self, first: NodeId, side: usize, joined: &Joined) -> Option<Group> {
        let Op::Contract(contract) = &self.node(first).op else { return None };
        let shared = self.node(first).operands[side];
        let other = |id: NodeId| self.node(id).operands[1 - side];
        let [dim, part_dim] = free_dims(contract, side)?;
        let mut bases: Vec<ValueId> = Vec::new();
        let mut members: Vec<NodeId> = Vec::new();
        for &id in &self.readers.of[shared] {
            let near = members
                .last()
                .is_none_or(|last| self.readers.position[id] - self.readers.position[*last] <= NEAR);
            let later =
                self.readers.position[id] >= self.readers.position[first] && !joined.nodes.contains(id);
            if !near || !later || !self.alike(first, id, dim) || self.node(id).operands[side] != shared {
                continue;
            }
            let Some(base) = self.base(other(id)) else { continue };
            let phase = |value: ValueId| self.module.producer(value).map(|node| node.phase);
            let sharding = |id: NodeId| &self.module.ty(other(id)).sharding;
            let fits = self.is_whole(other(id), part_dim)
                && sharding(id) == sharding(first)
                && !bases.contains(&base)
                && !joined.bases.contains(base)
                && bases.first().is_none_or(|first| phase(*first) == phase(base))
                && !self.feeds_gelu(self.result(id));
            if fits {
                bases.push(base);
                members.push(id);
            }
        }
        if members.first() != Some(&first) {
            return None;
        }
        // The parts stand in the order of the parts that they are multiplied with, so that `sums` can join those products.
        members.sort_by_key(|&id| self.partner(other(id), joined));
        let parts = members.iter().map(|&id| other(id)).collect();
        let mut operands = vec![Operand::Same(shared), Operand::Joined { parts, dim: part_dim }];
        operands.rotate_left(side);
        self.group(members, operands, dim)
    }

    /// Returns the group and the index of the part that a value is multiplied with, if that is a part already.
    fn partner(&self, value: ValueId, joined: &Joined) -> Option<(usize, usize)> {
        let contractions = self.readers.of[value].iter().map(|&reader| self.node(reader));
        let contractions = contractions.filter(|node| matches!(node.op, Op::Contract(_)));
        contractions.flat_map(|node| &node.operands).find_map(|operand| joined.place.get(operand).copied())
    }

    /// Whether GELU is applied to a value, perhaps after a bias. A multiplication can compute GELU itself if it has no other result.
    fn feeds_gelu(&self, value: ValueId) -> bool {
        let readers = |value: ValueId| self.readers.of[value].iter().map(|&reader| self.node(reader));
        let is_gelu = |node: &Node| matches!(node.op, Op::Unary(Unary::GeluTanh));
        readers(value).any(|node| {
            is_gelu(node)
                || matches!(node.op, Op::Binary(Binary::Add)) && readers(node.results[0]).any(is_gelu)
        })
    }
}

/// Returns the result's only dim that belongs to the other operand, and its index there. `None` if there are several.
fn free_dims(contract: &Contract, side: usize) -> Option<[usize; 2]> {
    let roles = contract.roles();
    let (free, labels) = if side == 0 { (roles.columns, &contract.rhs) } else { (roles.rows, &contract.lhs) };
    let [free] = free[..] else { return None };
    let at = |labels: &ir::ops::Labels| labels.0.iter().position(|label| *label == free);
    Some([at(&contract.out)?, at(labels)?])
}
