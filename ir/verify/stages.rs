//! Checks of programs with a table of stages. Invariants 20 to 22.

use super::Check;
use crate::timetable;
use crate::{Definition, EVERY_STAGE, NodeId, Phase, Role, StageTable, ValueId};
use std::collections::BTreeSet;

/// Checks invariants 20 to 22.
pub(super) fn check(c: &mut Check) {
    let Some(pipeline) = &c.module.pipeline else { return };
    stages(c, pipeline);
    if c.faults.is_empty() {
        c.nodes().for_each(|(id, _)| reads(c, id));
        states(c);
    }
    phases(c, pipeline);
    if pipeline.is_asynchronous() {
        asynchronous(c, pipeline);
    }
    if !c.faults.is_empty() {
        return;
    }
    let (dependencies, microbatches) = (c.module.dependencies(), pipeline.microbatches);
    let StageTable { timetable, placement, delays, .. } = pipeline;
    let verdict = if pipeline.is_asynchronous() {
        timetable::check_stream(timetable, placement, microbatches, delays, &dependencies)
    } else {
        timetable::check(timetable, placement, microbatches, &dependencies)
    };
    if let Err(error) = verdict {
        c.fault(format!("the timetable is broken: {error}"));
    }
}

/// Checks an asynchronous schedule: an update waits for no update of an earlier stage. Once states have versions, the microbatch
/// phases of a stage with a delay read no state that updates change, since its forward runs ahead of updates.
fn asynchronous(c: &mut Check, pipeline: &StageTable) {
    let (stages, delays) = (pipeline.stages(), pipeline.delays.len());
    if delays != stages as usize {
        c.fault(format!("the table of stages has {delays} delays, and there are {stages} stages"));
    }
    let states = || c.module.states.values();
    let has_versions = states().any(|state| state.role == Role::Version);
    let is_of_update = |value| c.module.phase_of(value) == Phase::Update;
    let updated: BTreeSet<ValueId> = states()
        .filter(|state| state.role != Role::Version && state.output.is_some_and(is_of_update))
        .map(|state| state.input)
        .collect();
    let mut faults = vec![];
    for (id, node) in c.nodes() {
        if let Some((from, to)) = c.module.transfers(id)
            && node.phase == Phase::Update
            && from < to
        {
            faults.push((id, format!("sends a value of the update from stage {from} to stage {to}, which is ahead of it in time")));
        }
        let stage = c.module.transfers(id).map_or(node.stage, |(from, _)| from);
        let delay = if stage == EVERY_STAGE { 1 } else { pipeline.delay_of(stage) };
        let runs_ahead = has_versions && node.phase != Phase::Update && delay > 0;
        if let Some(&operand) = node.operands.iter().find(|operand| runs_ahead && updated.contains(operand)) {
            let value = c.value(operand);
            faults.push((
                id,
                format!("reads {value}, the newest value of a state, where an earlier version is due"),
            ));
        }
    }
    faults.into_iter().for_each(|(id, fault)| c.node_fault(id, fault));
}

/// Checks that nodes and states name existing stages.
fn stages(c: &mut Check, pipeline: &StageTable) {
    let is_there = |stage| stage < pipeline.stages() || stage == EVERY_STAGE;
    let count = pipeline.stages();
    for (id, node) in c.nodes().filter(|(_, node)| !is_there(node.stage)) {
        c.node_fault(id, format!("stands on stage {}, and there are {count} stages", node.stage));
    }
    for state in c.module.states.values().filter(|state| !is_there(state.stage)) {
        c.fault(format!("state `{}` is on stage {}, and there are {count} stages", state.name, state.stage));
    }
}

/// Checks that a node reads values of its own stage and of every stage, and that a transfer reads a value of another stage.
fn reads(c: &mut Check, id: NodeId) {
    let node = c.module.node(id);
    if let Some((from, to)) = c.module.transfers(id) {
        // The update of an asynchronous schedule passes each version of a state on to the next version.
        let is_version = node.phase == Phase::Update
            && c.module
                .states
                .values()
                .any(|state| state.role == Role::Version && state.output == Some(node.results[0]));
        if from == to
            && is_version
            && matches!(c.module.value(node.operands[0]).definition, Definition::State(_))
        {
            return;
        }
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

/// Checks that the timetable has tasks for every microbatch phase of the program.
fn phases(c: &mut Check, pipeline: &StageTable) {
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

/// Checks that the new value of a state is computed on the stage of the state.
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
