//! Adds the casts: nodes that compute in half are made again in half, and every value is cast at most once.
//!
//! The cast of a parameter or a constant stands in `prepare`. A narrowing cast stands just after the node that makes its operand, so that
//! backward keeps the narrow value. A widening cast stands just before its first reader in each phase, since it is exact and cheaper to
//! repeat than to keep. A value that was widened is never narrowed again: its half value is still there.

use super::Precision;
use super::decide::{Decision, KeptType};
use crate::pass::Transform;
use crate::rewriting::dead::remove_dead;
use ir::ops::Reads;
use ir::ops::constant::Splat;
use ir::ops::elementwise::Cast;
use ir::ops::step::Accumulate;
use ir::{
    At, Builder, Changed, DType, Definition, Module, Node, NodeId, Op, Phase, Type, TypeError, ValueId,
};
use std::collections::BTreeMap;

/// Makes the program compute as decided, and accumulate gradients in the type `gradients`.
pub(super) fn apply(
    module: &mut Module,
    decision: &Decision,
    gradients: DType,
) -> Result<Changed, TypeError> {
    let order: Vec<NodeId> = module.order().to_vec();
    let b = Builder::new(module, Precision::NAME);
    let mut casts = Casts { b, decision, narrow: BTreeMap::new(), wide: BTreeMap::new() };
    for &id in &order {
        if casts.b.module().node(id).phase != Phase::Update {
            casts.node(id)?;
        }
    }
    for &id in &order {
        if matches!(casts.b.module().node(id).op, Op::Accumulate(_)) {
            casts.accumulate(id, gradients)?;
        }
    }
    casts.roots()?;
    let changed = casts.b.finish();
    Ok(changed.or(remove_dead(module, Precision::NAME)))
}

struct Casts<'a, 'm> {
    b: Builder<'m>,
    decision: &'a Decision,
    /// The half value of each value that has one.
    narrow: BTreeMap<ValueId, ValueId>,
    /// The f32 value, in a phase, of a value that is kept in half.
    wide: BTreeMap<(ValueId, Phase), ValueId>,
}

impl<'m> Casts<'_, 'm> {
    /// Rewrites a node of `prepare` or of a microbatch.
    fn node(&mut self, id: NodeId) -> Result<(), TypeError> {
        let node = self.b.module().node(id).clone();
        let mut operands = node.operands.clone();
        for (index, operand) in operands.iter_mut().enumerate() {
            *operand = self.operand(id, &node, index)?;
        }
        if self.decision.in_half(id) {
            return self.again(id, &node, &operands);
        }
        for (index, (&old, &new)) in node.operands.iter().zip(&operands).enumerate() {
            if old != new {
                self.b.set_operand(id, index, new);
            }
        }
        for &result in node.results.iter().filter(|&&value| self.decision.kept(value) == KeptType::Half) {
            let half = self.b.at(At::After(id)).cast(result, self.decision.half)?;
            self.narrow.insert(result, half);
        }
        Ok(())
    }

    /// Returns the value that a node must read in place of its operand.
    fn operand(&mut self, id: NodeId, node: &Node, index: usize) -> Result<ValueId, TypeError> {
        let value = node.operands[index];
        if self.b.ty(value).dtype != DType::F32 {
            return Ok(value);
        }
        match node.op.precision().reads(node.role(index)) {
            Reads::Own if self.decision.in_half(id) => self.half(value),
            Reads::Any if self.decision.kept(value) == KeptType::Half => self.half(value),
            Reads::Any => Ok(value),
            Reads::Own | Reads::Full => self.full(value, node.phase, At::Before(id)),
        }
    }

    /// Makes a node that computes in half again, in half.
    fn again(&mut self, id: NodeId, node: &Node, operands: &[ValueId]) -> Result<(), TypeError> {
        let declared: Vec<Type> = node.results.iter().map(|&value| self.lowered(value)).collect();
        let results = self.b.at(At::Before(id)).push_typed(node.op.clone(), operands, &declared)?;
        for (&old, new) in node.results.iter().zip(results) {
            match self.decision.kept(old) {
                KeptType::Half => drop(self.narrow.insert(old, new)),
                KeptType::Full | KeptType::Free => self.b.replace(old, new),
            }
        }
        self.b.remove(id);
        Ok(())
    }

    /// Returns the type of a value, with half in place of f32.
    fn lowered(&self, value: ValueId) -> Type {
        let ty = self.b.ty(value);
        if ty.dtype == DType::F32 { ty.with_dtype(self.decision.half) } else { ty.clone() }
    }

    /// Returns a value in f32, for readers of a phase. A missing cast is added at `at`.
    fn full(&mut self, value: ValueId, phase: Phase, at: At) -> Result<ValueId, TypeError> {
        if self.decision.kept(value) != KeptType::Half {
            return Ok(value);
        }
        if let Some(&wide) = self.wide.get(&(value, phase)) {
            return Ok(wide);
        }
        let half = self.half(value)?;
        let wide = self.b.at(at).cast(half, DType::F32)?;
        self.wide.insert((value, phase), wide);
        Ok(wide)
    }

    /// Returns a value in half.
    fn half(&mut self, value: ValueId) -> Result<ValueId, TypeError> {
        if let Some(&half) = self.narrow.get(&value) {
            return Ok(half);
        }
        let dtype = self.decision.half;
        let half = match self.b.module().value(value).definition {
            Definition::State(_) => self.apart(At::End(Phase::Prepare), value).cast(value, dtype),
            Definition::Input(_) => self.apart(At::Start(Phase::Forward), value).cast(value, dtype),
            Definition::Node(id, _) => self.half_of_node(id, value),
        }?;
        self.narrow.insert(value, half);
        Ok(half)
    }

    /// Returns the result of a node in half. It is computed in half if that loses nothing and needs no f32 value; else it is cast.
    fn half_of_node(&mut self, id: NodeId, value: ValueId) -> Result<ValueId, TypeError> {
        let (node, half) = (self.b.module().node(id).clone(), self.decision.half);
        let ty = self.lowered(value);
        match &node.op {
            Op::Splat(Splat { value }) => self.b.at(At::After(id)).splat(ty, value.get()),
            // The table itself is part of the program, so it is rounded once a step.
            Op::Constant(_) => {
                let full = self.b.ty(value).clone();
                self.apart(At::End(Phase::Prepare), value);
                let table = self.b.one_typed(node.op.clone(), &[], full)?;
                self.b.cast(table, half)
            }
            Op::Cast(_) if self.decision.kept(value) == KeptType::Free => {
                self.b.at(At::After(id)).one(Cast { to: half }, &node.operands)
            }
            // An operator that moves elements unchanged can move them in half.
            op if op.movement().is_unchanged() && self.decision.kept(value) == KeptType::Free => {
                let mut operands = node.operands.clone();
                for operand in &mut operands {
                    *operand = self.half(*operand)?;
                }
                self.b.at(At::After(id)).one_typed(op.clone(), &operands, ty)
            }
            _ => self.b.at(At::After(id)).cast(value, half),
        }
    }

    /// Makes the sum of a gradient over microbatches in the type `gradients`, and other sums in their old type.
    fn accumulate(&mut self, id: NodeId, gradients: DType) -> Result<(), TypeError> {
        let (value, sum) = (self.b.module().node(id).operands[0], self.b.module().node(id).results[0]);
        if self.b.ty(value).dtype != DType::F32 {
            return Ok(());
        }
        let phase = self.b.module().phase_of(value);
        if !phase.is_gradient() || gradients == DType::F32 {
            let at = self.behind(value);
            let addend = self.full(value, phase, at)?;
            if addend != value {
                self.b.set_operand(id, 0, addend);
            }
            return Ok(());
        }
        let kept_half = self.decision.kept(value) == KeptType::Half;
        let addend = if gradients == self.decision.half || kept_half { self.half(value)? } else { value };
        let at = self.behind(value);
        let addend = self.b.at(at).cast(addend, gradients)?;
        let total = self.b.at(At::Before(id)).one(Accumulate, &[addend])?;
        let total = self.b.cast(total, DType::F32)?;
        self.b.replace(sum, total);
        self.b.remove(id);
        Ok(())
    }

    /// Restores the element types of outputs and states.
    fn roots(&mut self) -> Result<(), TypeError> {
        let roots: Vec<ValueId> = self.b.module().roots().collect();
        for value in roots {
            let Definition::Node(id, _) = self.b.module().value(value).definition else { continue };
            if self.decision.in_half(id) && self.decision.kept(value) == KeptType::Half {
                let phase = self.b.module().phase_of(value);
                let wide = self.full(value, phase, At::After(id))?;
                self.b.replace(value, wide);
            }
        }
        Ok(())
    }

    /// Returns the first place where a value of a microbatch can be read.
    fn behind(&self, value: ValueId) -> At {
        match self.b.module().value(value).definition {
            Definition::Node(id, _) => At::After(id),
            Definition::Input(_) | Definition::State(_) => At::Start(Phase::Forward),
        }
    }

    /// Returns the builder for nodes that stand beside no other node. They take the stage of a value, and the origin of its node.
    fn apart(&mut self, at: At, like: ValueId) -> &mut Builder<'m> {
        let module = self.b.module();
        let origin = module.producer(like).map_or(Precision::NAME.into(), |node| node.origin.clone());
        let stage = if module.pipeline.is_some() { module.stage_of(like) } else { 0 };
        self.b.at(at).origin(origin).stage(stage).copy(0)
    }
}
