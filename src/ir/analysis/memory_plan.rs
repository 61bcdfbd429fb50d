//! The memory plan: where in one arena each buffer lies, so that buffers alive together never share a byte.
//!
//! Placing intervals of given sizes in the least space is dynamic storage allocation (NP-hard; Garey and Johnson,
//! problem SR2). `search` looks for an order in which best fit does well, `placement` bounds every plan from below by
//! the sum of what is alive at the fullest position, and proves that nothing overlaps.

mod placement;
mod search;
mod sweep;

pub use placement::{ALIGNMENT, Buffer, Overlap, Placement, aligned, check, lower_bound, place};

use super::{Lifetime, in_place, liveness};
use crate::{Diagnostic, Module, Movement, ValueId};
use cranelift_entity::SecondaryMap;

/// The memory of a module: which values share a buffer, and where each buffer lies.
///
/// This is the plan of the program as it stands, node by node; lowering fuses nodes and so needs less.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    /// The buffers. States come first, in their order.
    pub buffers: Vec<Buffer>,
    /// The buffer of each value that has one.
    pub buffer_of: SecondaryMap<ValueId, Option<u32>>,
    /// Where they lie.
    pub placement: Placement,
}

impl MemoryPlan {
    /// Plans a module. Errors: a value with unbound dims.
    pub fn of(module: &Module) -> Result<Self, Diagnostic> {
        let mut plan =
            Self { buffers: vec![], buffer_of: SecondaryMap::new(), placement: Placement::default() };
        let lifetimes = liveness::values(module);
        let last_read = last_reads(module);
        for state in module.states.values() {
            plan.own(module, state.input, &lifetimes)?;
        }
        for input in &module.inputs {
            plan.own(module, input.value, &lifetimes)?;
        }
        for (position, (_, node)) in module.nodes().enumerate() {
            let mut taken = vec![false; node.operands.len()];
            for (index, &result) in node.results.iter().enumerate() {
                let alias = node.op.movement() == Movement::Reshaped;
                let candidates = in_place::candidates(&node.op).iter().filter(|(_, r)| *r == index);
                let shared = candidates.filter(|(operand, _)| !taken[*operand]).find(|(operand, _)| {
                    let operand = node.operands[*operand];
                    let fits = module.ty(operand).bytes() == module.ty(result).bytes();
                    let updates =
                        is_update_of(module, operand, result) && last_read[operand] <= position as u32;
                    alias || fits && (updates || plan.dies_at(operand, position as u32))
                });
                match shared {
                    Some(&(operand, _)) => {
                        taken[operand] = true;
                        plan.share(node.operands[operand], result, &lifetimes);
                    }
                    None => plan.own(module, result, &lifetimes)?,
                }
            }
        }
        plan.placement = place(&plan.buffers);
        Ok(plan)
    }

    fn own(
        &mut self,
        module: &Module,
        value: ValueId,
        lifetimes: &SecondaryMap<ValueId, Option<Lifetime>>,
    ) -> Result<(), Diagnostic> {
        let ty = module.ty(value);
        let unbound = || Diagnostic::new(format!("{value} has unbound dims: {ty}"));
        let (bytes, Some(lifetime)) = (ty.bytes().ok_or_else(unbound)?, lifetimes[value]) else {
            return Ok(());
        };
        self.buffer_of[value] = Some(self.buffers.len() as u32);
        self.buffers.push(Buffer { bytes, lifetime });
        Ok(())
    }

    fn share(&mut self, with: ValueId, value: ValueId, lifetimes: &SecondaryMap<ValueId, Option<Lifetime>>) {
        let Some(buffer) = self.buffer_of[with] else { return };
        self.buffer_of[value] = Some(buffer);
        let own = &mut self.buffers[buffer as usize].lifetime;
        *own = lifetimes[value].map_or(*own, |lifetime| own.union(&lifetime));
    }

    fn dies_at(&self, value: ValueId, position: u32) -> bool {
        self.buffer_of[value].is_some_and(|buffer| self.buffers[buffer as usize].lifetime.last == position)
    }
}

/// Whether `new` is the new value of the state whose old value is `old`.
fn is_update_of(module: &Module, old: ValueId, new: ValueId) -> bool {
    module.states.values().any(|state| state.input == old && state.output == Some(new))
}

/// For each value the last position at which it is read, itself or through a reshape. Outputs are read at the end.
fn last_reads(module: &Module) -> SecondaryMap<ValueId, u32> {
    let mut last: SecondaryMap<ValueId, u32> = SecondaryMap::new();
    module.roots().for_each(|root| last[root] = u32::MAX);
    for (position, (_, node)) in module.nodes().enumerate().collect::<Vec<_>>().into_iter().rev() {
        for &operand in &node.operands {
            let is_alias = node.op.movement() == Movement::Reshaped;
            let through = if is_alias { last[node.results[0]] } else { 0 };
            last[operand] = last[operand].max(through).max(position as u32);
        }
    }
    last
}
