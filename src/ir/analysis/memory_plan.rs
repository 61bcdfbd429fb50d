//! The memory plan: where in one arena each buffer lies, so that buffers alive together never share a byte.
//!
//! Placing intervals of given sizes in the least space is dynamic storage allocation (NP-hard; Garey and Johnson,
//! problem SR2). The plan is the best of two greedy orders, largest first and longest first, each buffer in the
//! smallest gap that holds it; the sum of what is alive at the fullest position bounds every plan from below.

use super::{Lifetime, in_place, liveness};
use crate::{Diagnostic, Module, Op, ValueId};
use cranelift_entity::SecondaryMap;

/// Every offset is a multiple of this: a cache line, and the widest vector register.
pub const ALIGNMENT: u64 = 64;

/// Something to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its size.
    pub bytes: u64,
    /// When it holds something.
    pub lifetime: Lifetime,
}

/// Where the buffers lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The offset of each buffer, in bytes from the start of the arena.
    pub offsets: Vec<u64>,
    /// The arena's size: the end of the last buffer.
    pub peak: u64,
    /// The largest sum of bytes alive at one position: no plan of these lifetimes is smaller.
    pub lower_bound: u64,
}

/// Two buffers that are alive together and share bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "buffers {first} and {second} are both alive at position {position} and share bytes from offset {offset} of the arena"
)]
pub struct Overlap {
    /// One of them.
    pub first: usize,
    /// The other.
    pub second: usize,
    /// A position at which both are alive.
    pub position: u32,
    /// The first byte they share.
    pub offset: u64,
}

/// A size rounded up to the alignment.
pub fn aligned(bytes: u64) -> u64 {
    bytes.saturating_add(ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT
}

/// Places buffers in one arena. Deterministic.
pub fn place(buffers: &[Buffer]) -> Placement {
    let length = |b: &Buffer| b.lifetime.last - b.lifetime.first;
    let mut largest: Vec<usize> = (0..buffers.len()).collect();
    let mut longest = largest.clone();
    largest.sort_by_key(|&i| (std::cmp::Reverse((buffers[i].bytes, length(&buffers[i]))), i));
    longest.sort_by_key(|&i| (std::cmp::Reverse((length(&buffers[i]), buffers[i].bytes)), i));
    let plans = [largest, longest].map(|order| place_in_order(buffers, &order));
    let [first, second] = plans;
    let (peak, offsets) = if second.0 < first.0 { second } else { first };
    Placement { offsets, peak, lower_bound: lower_bound(buffers) }
}

/// Peak and offsets when each buffer takes, in this order, the smallest gap that holds it.
fn place_in_order(buffers: &[Buffer], order: &[usize]) -> (u64, Vec<u64>) {
    let mut offsets = vec![0u64; buffers.len()];
    let mut placed: Vec<usize> = Vec::new(); // by offset
    let mut peak = 0;
    for &index in order.iter().filter(|&&index| buffers[index].bytes > 0) {
        let bytes = aligned(buffers[index].bytes);
        let neighbours =
            placed.iter().filter(|&&other| buffers[other].lifetime.overlaps(&buffers[index].lifetime));
        let mut best: Option<(u64, u64)> = None; // (size of the gap, offset)
        let mut end = 0u64;
        for &other in neighbours {
            let gap = offsets[other].saturating_sub(end);
            if gap >= bytes && best.is_none_or(|(smallest, _)| gap < smallest) {
                best = Some((gap, end));
            }
            end = end.max(offsets[other].saturating_add(aligned(buffers[other].bytes)));
        }
        offsets[index] = best.map_or(end, |(_, offset)| offset);
        peak = peak.max(offsets[index].saturating_add(bytes));
        let at = placed.partition_point(|&other| offsets[other] <= offsets[index]);
        placed.insert(at, index);
    }
    (peak, offsets)
}

/// The largest sum of bytes, each buffer rounded up to the alignment, that is alive at one position.
pub fn lower_bound(buffers: &[Buffer]) -> u64 {
    let end = buffers.iter().map(|b| b.lifetime.last as usize + 2).max().unwrap_or(0);
    let mut change = vec![0i128; end];
    for buffer in buffers {
        change[buffer.lifetime.first as usize] += i128::from(aligned(buffer.bytes));
        change[buffer.lifetime.last as usize + 1] -= i128::from(aligned(buffer.bytes));
    }
    let mut alive = 0;
    change
        .into_iter()
        .map(|bytes| {
            alive += bytes;
            alive
        })
        .max()
        .unwrap_or(0) as u64
}

/// Proves that no two buffers that are alive together share a byte.
pub fn check(buffers: &[Buffer], offsets: &[u64]) -> Result<(), Overlap> {
    let mut by_offset: Vec<usize> = (0..buffers.len()).filter(|&i| buffers[i].bytes > 0).collect();
    by_offset.sort_by_key(|&i| (offsets[i], i));
    for (at, &first) in by_offset.iter().enumerate() {
        let end = offsets[first].saturating_add(buffers[first].bytes);
        for &second in by_offset[at + 1..].iter().take_while(|&&second| offsets[second] < end) {
            if buffers[first].lifetime.overlaps(&buffers[second].lifetime) {
                let position = buffers[first].lifetime.first.max(buffers[second].lifetime.first);
                return Err(Overlap { first, second, position, offset: offsets[second] });
            }
        }
    }
    Ok(())
}

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
                let alias = matches!(node.op, Op::Reshape(_));
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
            let through = if matches!(node.op, Op::Reshape(_)) { last[node.results[0]] } else { 0 };
            last[operand] = last[operand].max(through).max(position as u32);
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(bytes: u64, first: u32, last: u32) -> Buffer {
        Buffer { bytes, lifetime: Lifetime { first, last } }
    }

    #[test]
    fn buffers_that_never_meet_share_their_bytes() {
        let buffers = [buffer(100, 0, 1), buffer(100, 2, 3), buffer(100, 1, 2)];
        let placement = place(&buffers);
        check(&buffers, &placement.offsets).unwrap();
        assert_eq!((placement.peak, placement.lower_bound), (256, 256));
    }

    #[test]
    fn a_broken_slot_is_caught() {
        let buffers = [buffer(100, 0, 1), buffer(100, 1, 3), buffer(100, 2, 3)];
        let mut placement = place(&buffers);
        check(&buffers, &placement.offsets).unwrap();
        placement.offsets[1] = placement.offsets[0] + 64;
        let overlap = check(&buffers, &placement.offsets).unwrap_err();
        assert_eq!((overlap.first, overlap.second, overlap.position), (0, 1, 1));
    }

    #[test]
    fn empty_buffers_take_no_place() {
        let buffers = [buffer(0, 0, 9), buffer(64, 0, 9), buffer(0, 3, 4)];
        assert_eq!(place(&buffers).peak, 64);
    }
}
