//! Level training: the invariants of a whole step. Invariants 10 to 14.

use super::Check;
use crate::ops::Op;
use crate::{Node, Phase};
use crate::{NodeId, Role, StepOutput, ValueId};
use std::collections::BTreeMap;

/// Checks invariants 10 to 14.
pub(super) fn check(c: &mut Check) {
    for (id, ty) in c.values().filter(|(_, ty)| ty.bytes().is_none()) {
        let unbound = ty.dims.iter().any(|dim| dim.size().is_none());
        let why = if unbound { "its dims must be bound" } else { "its size does not fit in 64 bits" };
        c.fault(format!("{}: {why}", c.value(id)));
    }
    c.nodes().for_each(|(id, node)| reads(c, id, node));
    copies(c);
    state_outputs(c);
    loss(c);
}

/// Checks that a node reads only values of phases that its phase may read.
fn reads(c: &mut Check, id: NodeId, node: &Node) {
    let accumulates = matches!(node.op, Op::Accumulate(_));
    if accumulates && node.phase != Phase::Update {
        return c.node_fault(id, "`accumulate` must be in the update phase");
    }
    for &operand in &node.operands {
        let from = c.module.phase_of(operand);
        let wrong = match node.phase {
            Phase::Prepare if from.is_microbatch() => {
                "the prepare phase must not read a value of a microbatch"
            }
            Phase::Forward if from == Phase::Backward => "the fwd phase must not read a value of bwd",
            Phase::Forward | Phase::Backward if from == Phase::Weight => {
                "the phases fwd and bwd must not read a value of weight"
            }
            Phase::Update if accumulates && !from.is_microbatch() => {
                "`accumulate` must read a value of a microbatch"
            }
            Phase::Update if !accumulates && from.is_microbatch() => {
                "a value of a microbatch may enter the update phase only through `accumulate`"
            }
            _ => continue,
        };
        let operand = describe(c, operand);
        c.node_fault(id, format!("{wrong}, and {operand}"));
    }
}

/// Checks that a copy of a node only computes a value again.
fn copies(c: &mut Check) {
    let states = c.module.states.values();
    let written: BTreeMap<ValueId, &str> =
        states.filter_map(|state| Some((state.output?, state.name.as_str()))).collect();
    for (id, node) in c.nodes().filter(|(_, node)| node.copy > 0) {
        if !node.phase.is_gradient() {
            c.node_fault(id, "a copy must be in bwd or weight");
        }
        if matches!(node.op, Op::Collective(collective) if collective.reduces()) {
            c.node_fault(id, "a reduction over devices must not be repeated");
        }
        if let Some(state) = node.results.iter().find_map(|result| written.get(result)) {
            c.node_fault(
                id,
                format!("a copy must not write a state, and its result is the new value of `{state}`"),
            );
        }
    }
}

/// Returns the phase of a value as text, such as `%3: f32[2] is of bwd`.
fn describe(c: &Check, value: ValueId) -> String {
    let phase = Phase::ALL[c.module.phase_of(value) as usize].1;
    let input = c.module.inputs.iter().find(|input| input.value == value);
    let what = match input {
        Some(input) => format!("input `{}`", input.name),
        None => format!("of {phase}"),
    };
    format!("{} is {what}", c.value(value))
}

/// Checks that new values of states are computed in `update`.
fn state_outputs(c: &mut Check) {
    for state in c.module.states.values() {
        let Some(output) = state.output else { continue };
        let phase = c.module.producer(output).map(|node| node.phase);
        let forward = phase == Some(Phase::Forward) && matches!(state.role, Role::Buffer | Role::Counter);
        if phase != Some(Phase::Update) && !forward {
            let from = match phase {
                Some(phase) => format!("a node of {}", Phase::ALL[phase as usize].1),
                None => "no node".into(),
            };
            let value = c.value(output);
            c.fault(format!(
                "the new value of state `{}`, {value}, is computed in {from} and must be computed in update",
                state.name
            ));
        }
    }
}

fn loss(c: &mut Check) {
    match c.module.step_output(StepOutput::Loss) {
        None if c.nodes().any(|(_, node)| node.phase > Phase::Forward) => {
            c.fault("a training program must have an output `loss`");
        }
        None => {}
        Some(loss) => {
            let ty = c.module.ty(loss.value);
            if ty.ndim() != 0 || !ty.dtype.is_float() {
                c.fault(format!("the output `loss` must be a float scalar, not {}", c.value(loss.value)));
            }
        }
    }
}
