//! The memories in which values lie. Invariants 23 and 24.

use super::Check;
use crate::{Node, NodeId, Op, Tier};

/// Checks invariants 23 and 24.
pub(super) fn check(c: &mut Check) {
    for (id, node) in c.nodes() {
        match &node.op {
            Op::Copy(_) => copy(c, id, node),
            _ => reads(c, id, node),
        }
    }
    states(c);
    outputs(c);
}

/// Checks that a copy moves a value to a neighbouring tier.
fn copy(c: &mut Check, id: NodeId, node: &Node) {
    let (from, to) = (c.module.tier_of(node.operands[0]), node.result_tier());
    let fault = match (from, to) {
        (from, to) if from == to => {
            format!("copies a value to the {}, where the value is already", to.name())
        }
        (Tier::Device, Tier::Disk) | (Tier::Disk, Tier::Device) => {
            format!("copies from the {} to the {} without the host between them", from.name(), to.name())
        }
        _ if node.place != Tier::Device => {
            format!("has the {} as its place, but copies have no place", node.place.name())
        }
        _ => return,
    };
    c.node_fault(id, fault);
}

/// Checks that a node reads values that lie in the memory of its place.
fn reads(c: &mut Check, id: NodeId, node: &Node) {
    match (node.place, &node.op) {
        (Tier::Device, _) => {}
        (Tier::Disk, _) => c.node_fault(id, "computes on the disk, where no node can run"),
        (Tier::Host, Op::Collective(collective)) if collective.communicates() => {
            c.node_fault(id, "is a collective on the host; collectives run on the device");
        }
        (Tier::Host, Op::Transfer(_)) => {
            c.node_fault(id, "is a transfer on the host; transfers run on the device")
        }
        (Tier::Host, _) => {}
    }
    for &operand in &node.operands {
        let tier = c.module.tier_of(operand);
        if tier != node.place {
            let (value, place) = (c.value(operand), node.place.name());
            c.node_fault(
                id,
                format!(
                    "computes on the {place} but reads {value} on the {}; a copy is missing",
                    tier.name()
                ),
            );
        }
    }
}

/// Checks that a state's new value lies where the state rests.
fn states(c: &mut Check) {
    for state in c.module.states.values() {
        let Some(output) = state.output else { continue };
        let tier = c.module.tier_of(output);
        if tier != state.tier {
            let (rests, lies) = (state.tier.name(), tier.name());
            c.fault(format!(
                "state `{}` rests on the {rests}, but its new value is on the {lies}; a copy is missing",
                state.name
            ));
        }
    }
}

/// Checks that no output lies on the disk, because the host reads outputs.
fn outputs(c: &mut Check) {
    for output in &c.module.outputs {
        if c.module.tier_of(output.value) == Tier::Disk {
            c.fault(format!(
                "output `{}` is on the disk; outputs must be on the device or the host",
                output.name
            ));
        }
    }
}
