//! The memories of a program: the memory in which each buffer lies, and the plan of the memories beside the device.

use super::draft::{BufferKind, Drafts, Located};
use super::place::root;
use crate::{Kernel, Memory, TierMemory};
use files::scratch::PAGE;
use ir::analysis::memory_plan;
use ir::{Diagnostic, Tier};

/// The largest number of bytes of a plan: more than any machine has, and so small that sums of a few fit a u64.
const MOST: u64 = 1 << 60;

/// Returns the memory of each buffer: that of its state, or that in which its instruction leaves results.
pub(super) fn of_buffers(drafts: &Drafts, scratch: &[Option<Located>]) -> Vec<Tier> {
    let Drafts { module, buffers, instructions, .. } = drafts;
    let mut tiers = vec![Tier::Device; buffers.len()];
    // The first buffers are those of states, in their order.
    tiers.iter_mut().zip(module.states.values()).for_each(|(tier, state)| *tier = state.tier);
    for (draft, scratch) in instructions.iter().zip(scratch) {
        let tier = match &draft.kernel {
            // Copies that lowering adds change layouts, and stay in the operand's memory.
            Kernel::Copy => tiers[root(buffers, draft.operands[0].buffer)],
            _ => module.node(draft.node).result_tier(),
        };
        for located in draft.results.iter().chain(scratch) {
            let buffer = root(buffers, located.buffer);
            if buffers[buffer].kind == BufferKind::Result {
                tiers[buffer] = tier;
            }
        }
    }
    tiers
}

/// Plans buffers behind states of this number of bytes.
pub(super) fn plan(
    buffers: &[memory_plan::Buffer],
    states: u64,
) -> Result<memory_plan::Placement, Diagnostic> {
    let placement = memory_plan::place(buffers);
    if states.saturating_add(placement.peak) > MOST {
        let message = format!("the program needs more than {MOST} bytes; its states alone need {states}");
        return Err(Diagnostic::new(message).note("check the sizes of the dims"));
    }
    memory_plan::check(buffers, &placement.offsets).map_err(|overlap| {
        Diagnostic::new(format!("the memory plan is broken: {overlap}")).note("this is a bug")
    })?;
    Ok(placement)
}

/// Returns the alignment of addresses in a memory.
pub(super) fn unit(tier: Tier) -> u64 {
    if tier == Tier::Disk { PAGE } else { memory_plan::ALIGNMENT }
}

impl TierMemory {
    /// Plans buffers behind the states. Returns their addresses.
    pub(super) fn plan(&mut self, buffers: &[memory_plan::Buffer]) -> Result<Vec<u64>, Diagnostic> {
        let placement = plan(buffers, self.states)?;
        self.total = self.states + placement.peak;
        self.lower_bound = self.states + placement.lower_bound;
        Ok(placement.offsets.into_iter().map(|offset| self.states + offset).collect())
    }
}

impl Memory {
    /// Returns the memory of the host or of the disk.
    pub(super) fn beside(&mut self, tier: Tier) -> &mut TierMemory {
        if tier == Tier::Disk { &mut self.disk } else { &mut self.host }
    }
}
