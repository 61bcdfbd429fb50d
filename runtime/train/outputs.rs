//! The outputs of a training program that the loop reads.

use super::error::TrainError;
use crate::program::{Program, Section};
use ir::{ScalarPart, StepOutput};

/// Where the numbers are that the loop reads: indices of outputs.
#[derive(Clone)]
pub(super) struct Outputs {
    /// `None`, as of the norm, of a rank that does not know it: in an asynchronous pipeline reports travel to the first rank alone.
    pub(super) loss: Option<usize>,
    pub(super) lr: usize,
    pub(super) grad_norm: Option<usize>,
    /// `None` of a pipeline rank that does not compute it.
    pub(super) microbatch_loss: Option<usize>,
    pub(super) scaling: Option<ScalingOutputs>,
    /// The other scalars of the model: the outputs `metric.NAME` of the update, by name.
    pub(super) metrics: Vec<(String, usize)>,
    /// The loads of experts: the outputs `load.NAME` of the update, by the name of the router.
    pub(super) loads: Vec<(String, usize)>,
}

/// Where a program with a scaled loss says what became of a step.
#[derive(Clone, Copy)]
pub(super) struct ScalingOutputs {
    pub(super) skipped: usize,
    pub(super) scale: usize,
    pub(super) exhausted: usize,
}

impl Outputs {
    /// Those of a training program.
    pub(super) fn of(program: &Program) -> Result<Self, TrainError> {
        let loss = output(program, StepOutput::loss(0, ScalarPart::Sum), Section::Microbatch);
        let microbatch_loss = match program.pipeline {
            None => Some(loss?),
            Some(_) => loss.ok(),
        };
        let reported = |name| {
            let found = output(program, name, Section::Update);
            match &program.pipeline {
                Some(pipeline) if pipeline.is_asynchronous && pipeline.rank > 0 => Ok(found.ok()),
                _ => found.map(Some),
            }
        };
        Ok(Self {
            loss: reported(StepOutput::Loss)?,
            lr: output(program, StepOutput::LearningRate, Section::Update)?,
            grad_norm: reported(StepOutput::GradientNorm)?,
            microbatch_loss,
            scaling: scaling_outputs(program)?,
            metrics: named(program, StepOutput::metric_of),
            loads: named(program, StepOutput::load_of),
        })
    }

    /// What every program reports of an update, as far as the rank knows it: the rate first.
    pub(super) fn of_update(&self) -> Vec<usize> {
        [Some(self.lr), self.loss, self.grad_norm].into_iter().flatten().collect()
    }
}

impl ScalingOutputs {
    pub(super) fn all(&self) -> [usize; 3] {
        [self.skipped, self.scale, self.exhausted]
    }
}

/// The outputs of the update whose names have a name in them.
fn named<'p>(program: &'p Program, of: impl Fn(&'p str) -> Option<&'p str>) -> Vec<(String, usize)> {
    let outputs = program.outputs.iter().enumerate().filter(|(_, output)| output.section == Section::Update);
    outputs.filter_map(|(index, output)| Some((of(&output.name)?.to_owned(), index))).collect()
}

fn scaling_outputs(program: &Program) -> Result<Option<ScalingOutputs>, TrainError> {
    if program.output(&StepOutput::Skipped.to_string()).is_none() {
        return Ok(None);
    }
    let [skipped, scale, exhausted] =
        [StepOutput::Skipped, StepOutput::LossScale, StepOutput::ScaleExhausted]
            .map(|name| output(program, name, Section::Update));
    Ok(Some(ScalingOutputs { skipped: skipped?, scale: scale?, exhausted: exhausted? }))
}

pub(super) fn output(program: &Program, output: StepOutput, section: Section) -> Result<usize, TrainError> {
    let name = output.to_string();
    let found = program.output(&name).filter(|&index| program.outputs[index].section == section);
    found.ok_or_else(|| lacks(program, "output", &name))
}

pub(super) fn lacks(program: &Program, what: &'static str, name: &str) -> TrainError {
    TrainError::Lacks { program: program.name.clone(), what, name: name.to_owned() }
}
