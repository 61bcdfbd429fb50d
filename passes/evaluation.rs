//! Evaluation: keeps only the sums and weights of the loss, which an evaluation reads.
//!
//! Invariants: no state changes, the newest weights are read, nothing is drawn at random, no label is smoothed, and batch norms use
//! their running statistics.

use crate::dropout;
use crate::pass::{PassContext, Transform};
use crate::rewriting::dead::remove_dead;
use crate::rewriting::settle::remove_idle_transfers;
use ir::{
    Builder, Changed, Diagnostic, Initializer, Module, NodeId, Op, OperandRole, Phase, Role, ScalarPart,
    State, StepOutput, ValueId,
};
use std::collections::BTreeSet;

/// The pass; it has no options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evaluation;

impl Transform for Evaluation {
    const NAME: &'static str = "evaluation";
    const NEEDED: bool = true;

    /// Errors: the program has no loss.
    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<Changed, Diagnostic> {
        let outputs = outputs(module);
        if outputs.is_empty() {
            return Err(Diagnostic::new("there is no output `loss.sum` to evaluate").note("run `loss` first"));
        }
        if let Some(unsmoothed) = module.step_output(StepOutput::UnsmoothedSum).map(|output| output.value) {
            let name = StepOutput::loss(0, ScalarPart::Sum).to_string();
            let sum = module.outputs.iter_mut().filter(|output| output.name == name);
            sum.for_each(|output| output.value = unsmoothed);
        }
        module.outputs.retain(|output| outputs.contains(&output.name));
        module.states.values_mut().for_each(|state| state.output = None);
        if let Some(pipeline) = &mut module.pipeline {
            // Each batch passes the stages by itself. A rank begins the next batch when it has passed one on.
            pipeline.microbatches = 1;
            pipeline.delays.clear();
            for tasks in &mut pipeline.timetable.ranks {
                let mut seen = BTreeSet::new();
                tasks.retain(|task| task.part.phase == Phase::Forward && seen.insert(task.part));
                tasks.iter_mut().for_each(|task| task.microbatch = 0);
            }
        }
        read_newest(module);
        dropout::remove(module)?;
        use_running_statistics(module);
        // A transfer may now carry an input, in place of a dropout of it, or a running statistic.
        remove_idle_transfers(module, Self::NAME);
        remove_dead(module, Self::NAME);
        Ok(Changed::Yes)
    }
}

/// Returns the outputs that an evaluation reads: those of the classes of the loss.
pub fn outputs(module: &Module) -> Vec<String> {
    let parts = |class| ScalarPart::ALL.into_iter().map(move |part| StepOutput::loss(class, part));
    let is_there = |output: &StepOutput| module.step_output(*output).is_some();
    let classes = (0..).take_while(|&class| is_there(&StepOutput::loss(class, ScalarPart::Sum)));
    classes.flat_map(parts).filter(is_there).map(String::from).collect()
}

/// Makes readers of an earlier version of a state read the state.
fn read_newest(module: &mut Module) {
    let versions = module.states.values().filter(|state| state.role == Role::Version);
    let newest = |state: &State| match state.initializer {
        Initializer::CopyOf(id) => Some((state.input, module.states[id].input)),
        _ => None,
    };
    let pairs: Vec<(ValueId, ValueId)> = versions.filter_map(newest).collect();
    let mut b = Builder::new(module, Evaluation::NAME);
    pairs.into_iter().for_each(|(version, newest)| b.replace(version, newest));
    b.finish();
}

/// Replaces a batch norm's batch statistics by its running statistics.
fn use_running_statistics(module: &mut Module) {
    let found: Vec<NodeId> =
        module.nodes().filter(|(_, node)| matches!(node.op, Op::InTraining(_))).map(|(id, _)| id).collect();
    let mut b = Builder::new(module, Evaluation::NAME);
    for id in found {
        let (running, result) = (b.module().node(id)[OperandRole::State], b.module().node(id).results[0]);
        b.replace(result, running);
        b.remove(id);
    }
    b.finish();
}
