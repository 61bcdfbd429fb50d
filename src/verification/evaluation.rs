//! The evaluation programs of a job, against the evaluation of the untransformed graph.
//!
//! A run with `--eval` has a program for whole batches, and one for a last batch that is short. Both report the loss as sums and weights,
//! one pair for each class. The reference is the untransformed step that the pass `evaluation` has cut down to its loss. Both sides read
//! the weights before step 0.

use super::compare::{Difference, FLOOR, Kind};
use super::execute::{Execution, Tensors};
use super::rounding::{RoundedTo, Rounding};
use super::{Mode, Subject, Tested};
use crate::compilation::Source;
use crate::failure::Failure;
use crate::manager;
use crate::pipeline::CompilationPlan;
use ir::interp::StepOutputs;
use ir::relative_error::relative_error;
use ir::{DType, Diagnostic, Module, Node, NodeId, Tensor};
use passes::evaluation::Evaluation;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// The loss that an evaluation of one batch must have.
#[derive(Debug)]
pub struct Expected<'a> {
    subject: &'a Subject,
    batch: &'a [Tensors],
    outputs: StepOutputs,
    rounding: Option<Rounding<'a>>,
    tolerance: f64,
}

impl<'a> Expected<'a> {
    /// Evaluates one batch by the untransformed graph of a model, which is compiled by `plan`. `step` is the graph's step, and `execution` is
    /// a step whose first microbatch is the batch. Without `to`, rounding explains no error above the tolerance.
    ///
    /// # Errors
    /// A graph that cannot be run.
    pub fn new(
        subject: &'a Subject,
        (source, plan): (&'a Source, &'a CompilationPlan),
        (step, execution): (&Module, Option<&Execution>),
        batch: &'a [Tensors],
        tolerance: f64,
        to: Option<RoundedTo>,
    ) -> Result<Self, Failure> {
        let reference = of(step.clone())?;
        let outputs = match execution.filter(|_| is_part_of(&reference, step)) {
            Some(execution) => first_of(execution, &reference),
            None => subject.run_reference(&reference, batch)?.outputs,
        };
        let rounding = to.map(|to| Rounding::of_evaluation((source, plan), subject, batch, to));
        Ok(Self { subject, batch, outputs, rounding, tolerance })
    }

    /// Runs an evaluation program and compares its loss.
    ///
    /// # Errors
    /// A program that cannot be run.
    pub fn compare(&mut self, tested: Tested, mode: Mode) -> Result<Vec<Difference>, Failure> {
        let execution = self.subject.run(tested, mode, self.batch);
        let execution = execution.map_err(|failure| failure.note("this program is an evaluation"))?;
        let mut differences = compare(&execution.outputs, &self.outputs);
        if let Some(rounding) = &mut self.rounding {
            rounding.explain(&mut differences, self.tolerance, |difference| difference.name.clone())?;
        }
        Ok(differences)
    }
}

/// The result of the comparison of one evaluation program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evaluated {
    /// The samples of its batch.
    pub samples: u64,
    /// The outputs that differ.
    pub differs_in: Vec<String>,
    /// The reason why a run leaves such a batch out of the evaluation, because it has no program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

impl Evaluated {
    /// A batch that has no program, for this reason.
    pub fn left_out(samples: u64, reason: &Diagnostic) -> Self {
        Self { samples, differs_in: vec![], left_out: Some(reason.message.clone()) }
    }
}

impl fmt::Display for Evaluated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { samples, differs_in, left_out } = self;
        let of = if *samples == 1 { "sample" } else { "samples" };
        match left_out {
            Some(reason) => write!(f, "{samples} {of} left out: {reason}"),
            None if differs_in.is_empty() => write!(f, "{samples} {of} equal"),
            None => write!(f, "{samples} {of} differ in {}", differs_in.join(", ")),
        }
    }
}

/// Returns the evaluation of a step.
///
/// # Errors
/// A step without a loss.
pub fn of(module: Module) -> Result<Module, Failure> {
    manager::rewritten(module, Evaluation)
}

/// Returns whether an evaluation computes its outputs as the step does.
fn is_part_of(evaluation: &Module, step: &Module) -> bool {
    let nodes: BTreeMap<NodeId, &Node> = step.nodes().collect();
    let is_same = |(id, node): (NodeId, &Node)| nodes.get(&id) == Some(&node);
    evaluation.nodes().all(is_same) && evaluation.outputs.iter().all(|output| step.outputs.contains(output))
}

/// The outputs of an evaluation as a step computed them of its first microbatch.
fn first_of(execution: &Execution, evaluation: &Module) -> StepOutputs {
    let first = |output: &ir::Output| {
        Some((
            output.name.clone(),
            execution.outputs.get(&output.name)?.first().cloned().into_iter().collect(),
        ))
    };
    evaluation.outputs.iter().filter_map(first).collect()
}

/// Compares the loss of one batch: each of its parts, or the whole loss if the two programs take it apart in different ways.
pub(super) fn compare(tested: &StepOutputs, expected: &StepOutputs) -> Vec<Difference> {
    let off = |ours: Option<&Tensor>, theirs: &Tensor| {
        ours.map_or(f64::INFINITY, |ours| relative_error(ours, theirs, FLOOR))
    };
    if tested.keys().eq(expected.keys()) {
        let parts = expected.iter().filter_map(|(name, values)| Some((name, values.first()?)));
        let difference = |(name, theirs): (&String, &Tensor)| {
            let ours = tested.get(name).and_then(|values| values.first());
            Difference::new(Kind::Evaluation, name, off(ours, theirs))
        };
        return parts.map(difference).collect();
    }
    let [ours, theirs] = [tested, expected].map(loss);
    vec![Difference::new(Kind::Evaluation, "loss", off(Some(&ours), &theirs))]
}

/// The loss of a batch as a run reports it; NaN if no sample counts.
fn loss(outputs: &StepOutputs) -> Tensor {
    let numbers = outputs.iter().filter_map(|(name, values)| Some((name.as_str(), values.first()?.item())));
    Tensor::splat(DType::F64, vec![], train::loss_of_batch(numbers).unwrap_or(f64::NAN))
}
