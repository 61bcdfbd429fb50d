//! Programs with a table of stages. Invariants 20 to 22.

use super::Check;
use crate::timetable;
use crate::{EVERY_STAGE, NodeId, Phase, Pipeline};

/// Invariants 20 to 22.
pub(super) fn check(c: &mut Check) {
    let Some(pipeline) = &c.module.pipeline else { return };
    stages(c, pipeline);
    if c.faults.is_empty() {
        c.nodes().for_each(|(id, _)| reads(c, id));
        states(c);
    }
    phases(c, pipeline);
    if c.faults.is_empty()
        && let Err(error) = timetable::check(
            &pipeline.timetable,
            &pipeline.placement,
            pipeline.microbatches,
            &c.module.dependencies(),
        )
    {
        c.fault(format!("the timetable is broken: {error}"));
    }
}

/// Nodes and states name stages that are there.
fn stages(c: &mut Check, pipeline: &Pipeline) {
    let is_there = |stage| stage < pipeline.stages() || stage == EVERY_STAGE;
    let count = pipeline.stages();
    for (id, node) in c.nodes().filter(|(_, node)| !is_there(node.stage)) {
        c.node_fault(id, format!("stands on stage {}, and there are {count} stages", node.stage));
    }
    for state in c.module.states.values().filter(|state| !is_there(state.stage)) {
        c.fault(format!("state `{}` is on stage {}, and there are {count} stages", state.name, state.stage));
    }
}

/// A node reads values of its own stage, and of every stage. A transfer reads a value of another stage.
fn reads(c: &mut Check, id: NodeId) {
    let node = c.module.node(id);
    if let Some((from, to)) = c.module.transfers(id) {
        if from == to || from == EVERY_STAGE || to == EVERY_STAGE {
            c.node_fault(id, "a transfer must read a value of one stage on another stage");
        }
        return;
    }
    for &operand in &node.operands {
        let from = c.module.stage_of(operand);
        if from != EVERY_STAGE && from != node.stage {
            let (value, at) = (c.value(operand), place(node.stage));
            c.node_fault(id, format!("reads {value} of stage {from} on {at} without a transfer"));
        }
    }
}

/// The timetable has tasks for the phases of a microbatch.
fn phases(c: &mut Check, pipeline: &Pipeline) {
    let phases = pipeline.timetable.phases();
    for (phase, name) in Phase::ALL.into_iter().filter(|(phase, _)| phase.is_microbatch()) {
        if !phases.contains(&phase) && c.nodes().any(|(_, node)| node.phase == phase) {
            c.fault(format!("the timetable has no tasks of {name}, and the program has nodes of it"));
        }
    }
}

fn place(stage: u32) -> String {
    if stage == EVERY_STAGE { "every stage".to_owned() } else { format!("stage {stage}") }
}

/// The stage of a state makes its new value.
fn states(c: &mut Check) {
    for state in c.module.states.values() {
        let Some(output) = state.output else { continue };
        let from = c.module.stage_of(output);
        if from != state.stage && from != EVERY_STAGE {
            let (value, at) = (c.value(output), place(state.stage));
            c.fault(format!("state `{}` is on {at}, and its new value {value} on stage {from}", state.name));
        }
    }
}
