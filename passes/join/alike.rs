//! Joins equal operations on all slices of a tensor, and equal reductions of all parts of a concatenation.

use super::{Group, JoinFinder, Operand};
use ir::ops::elementwise::Binary;
use ir::{NodeId, Op, Sharding, ValueId};

impl JoinFinder<'_> {
    /// Finds equal operations on each of the slices that a value consists of.
    pub(super) fn slices(&self) -> Vec<Group> {
        let values = self.nodes().flat_map(|(_, node)| node.results.iter().copied());
        values
            .filter(|&value| self.readers.of[value].len() > 1)
            .filter_map(|value| self.on_slices(value))
            .collect()
    }

    fn on_slices(&self, whole: ValueId) -> Option<Group> {
        let (slices, dim) = self.slices_of(whole)?;
        let members =
            slices.iter().map(|&slice| self.readers.only(slice)).collect::<Option<Vec<NodeId>>>()?;
        let first = *members.first()?;
        if !members.iter().all(|&member| self.alike(first, member, dim)) {
            return None;
        }
        let side = self.node(first).operands.iter().position(|&operand| operand == slices[0])?;
        let mut operands = vec![Operand::Same(whole)];
        operands.extend(match &self.node(first).op {
            Op::Accumulate(_) => None,
            Op::Binary(Binary::Mul) => Some(self.factor(&members, &slices, side)?),
            Op::Binary(Binary::Add) if dim + 1 == self.module.ty(whole).ndim() => {
                Some(self.biases(&members, &slices, side)?)
            }
            _ => return None,
        });
        operands.rotate_left(side);
        self.group(members, operands, dim)
    }

    /// Returns the slices of a value along one dim, in order, if they cover the value and are its only readers.
    fn slices_of(&self, whole: ValueId) -> Option<(Vec<ValueId>, usize)> {
        let mut slices = Vec::new();
        for &reader in &self.readers.of[whole] {
            let Op::Slice(slice) = &self.node(reader).op else { return None };
            (slice.step == 1).then_some(())?;
            slices.push((slice.dim as usize, slice.start, self.result(reader)));
        }
        slices.sort_unstable();
        let dim = slices.first()?.0;
        let mut end = 0;
        for &(own, start, value) in &slices {
            (own == dim && start == end).then_some(())?;
            end += self.size(value, dim)? as i64;
        }
        let covered = Some(end as u64) == self.size(whole, dim) && !self.readers.held.contains(whole);
        covered.then(|| (slices.into_iter().map(|(_, _, value)| value).collect(), dim))
    }

    /// Returns the factor of all slices, if it is the same number without dims.
    fn factor(&self, members: &[NodeId], slices: &[ValueId], side: usize) -> Option<Operand> {
        let factor = self.node(members[0]).operands[1 - side];
        let reads = |(&member, &slice): (&NodeId, &ValueId)| {
            self.node(member).operands[side] == slice && self.node(member).operands[1 - side] == factor
        };
        let number = self.module.ty(factor).ndim() == 0;
        (number && members.iter().zip(slices).all(reads)).then_some(Operand::Same(factor))
    }

    /// Returns the biases that are added to the slices, if each is a vector of one number for each column.
    fn biases(&self, members: &[NodeId], slices: &[ValueId], side: usize) -> Option<Operand> {
        let mut parts = Vec::new();
        for (&member, &slice) in members.iter().zip(slices) {
            let node = self.node(member);
            let bias = node.operands[1 - side];
            let ty = self.module.ty(bias);
            let fits = node.operands[side] == slice && ty.ndim() == 1 && ty.sharding == Sharding::default();
            (fits && ty.dims.last() == self.module.ty(slice).dims.last()).then_some(())?;
            self.base(bias)?;
            parts.push(bias);
        }
        Some(Operand::Joined { parts, dim: 0 })
    }

    /// Finds equal reductions of each part of a concatenation.
    pub(super) fn reductions(&self) -> Vec<Group> {
        self.concats
            .iter()
            .filter_map(|((parts, dim), &(whole, _))| self.on_parts(parts, *dim, whole))
            .collect()
    }

    fn on_parts(&self, parts: &[ValueId], dim: usize, whole: ValueId) -> Option<Group> {
        let reduction = |&part: &ValueId| {
            let mut readers = self.readers.of[part].iter().copied();
            readers.find(|&reader| matches!(self.node(reader).op, Op::Reduce(_)))
        };
        let members = parts.iter().map(reduction).collect::<Option<Vec<NodeId>>>()?;
        let first = *members.first()?;
        let Op::Reduce(reduce) = &self.node(first).op else { return None };
        let before = reduce.dims.iter().filter(|&&gone| (gone as usize) < dim).count();
        let made_dim = if reduce.keep { dim } else { dim - before };
        let kept = !reduce.dims.contains(&(dim as u32));
        let alike = kept && members.iter().all(|&member| self.alike(first, member, made_dim));
        self.group(members, vec![Operand::Same(whole)], made_dim).filter(|_| alike)
    }
}
