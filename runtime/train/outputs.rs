//! The outputs of a training program that the loop reads.

use super::error::TrainError;
use ir::{ScalarPart, StepOutput, Tensor};
use program::{Program, Section};
use std::collections::BTreeMap;

/// The indices of the outputs that the loop reads.
#[derive(Clone)]
pub(super) struct Outputs {
    /// The loss of the update. Like the norm, it is `None` on a rank that does not know it: in an asynchronous pipeline, only the first
    /// rank gets the reports.
    pub(super) loss: Option<usize>,
    pub(super) lr: usize,
    pub(super) grad_norm: Option<usize>,
    /// `None` on a pipeline rank that does not compute it.
    pub(super) microbatch_loss: Option<usize>,
    pub(super) scaling: Option<ScalingOutputs>,
    /// The other scalars of the model: the outputs `metric.NAME` of the update, by name.
    pub(super) metrics: Vec<(String, usize)>,
    /// The loads of experts: the outputs `load.NAME` of the update, by the name of the router.
    pub(super) loads: Vec<(String, usize)>,
}

/// The outputs of a program with a scaled loss that report on a step.
#[derive(Clone, Copy)]
pub(super) struct ScalingOutputs {
    pub(super) skipped: usize,
    pub(super) scale: usize,
    pub(super) exhausted: usize,
}

impl Outputs {
    /// Finds the outputs of a training program.
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

    /// Returns the outputs that report an update, as far as the rank has them, in the order that [`Self::updated`] takes.
    pub(super) fn of_update(&self) -> Vec<usize> {
        let named = self.metrics.iter().chain(&self.loads).map(|(_, output)| *output);
        self.of_step()
            .into_iter()
            .chain(self.scaling.iter().flat_map(ScalingOutputs::all))
            .chain(named)
            .collect()
    }

    /// Returns the outputs of the step itself, the rate first.
    fn of_step(&self) -> Vec<usize> {
        [Some(self.lr), self.loss, self.grad_norm].into_iter().flatten().collect()
    }

    /// Returns the report of an update. `values` are the values of the outputs in [`Self::of_update`].
    pub(super) fn updated(&self, program: &Program, mut values: Vec<Tensor>) -> Result<Updated, TrainError> {
        let loads = values.split_off(values.len() - self.loads.len());
        let numbers = items(program, &self.of_update(), &values)?;
        let (step, rest) = numbers.split_at(self.of_step().len());
        let (scaling, metrics) = rest.split_at(self.scaling.map_or(0, |scaling| scaling.all().len()));
        let mut step = step.iter().copied();
        let lr = step.next().unwrap_or_default();
        let mut reported = |output: Option<usize>| output.and_then(|_| step.next());
        let (loss, grad_norm) = (reported(self.loss), reported(self.grad_norm));
        let (skipped, exhausted) = match scaling {
            &[skipped, scale, exhausted] => (skipped != 0.0, (exhausted != 0.0).then_some(scale)),
            _ => (false, None),
        };
        let metrics = self.metrics.iter().zip(metrics).map(|((name, _), number)| (name.clone(), *number));
        let loads = self.loads.iter().zip(&loads).map(|((name, _), load)| (name.clone(), load.numbers()));
        let (metrics, loads) = (metrics.collect(), loads.collect());
        Ok(Updated { loss, lr, grad_norm, skipped, exhausted, metrics, loads })
    }
}

/// The report of an update.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Updated {
    /// The loss. Like the norm, it is `None` on a rank that gets no reports.
    pub(super) loss: Option<f64>,
    pub(super) lr: f64,
    pub(super) grad_norm: Option<f64>,
    /// Whether the scaled gradients were not finite, so that no state changed but the scale.
    pub(super) skipped: bool,
    /// The loss scale, if the step was skipped although the scale is already the smallest allowed.
    pub(super) exhausted: Option<f64>,
    /// The other scalars of the model, by name.
    pub(super) metrics: BTreeMap<String, f64>,
    /// The number of choices of each expert, by the name of the router.
    pub(super) loads: BTreeMap<String, Vec<f64>>,
}

/// Returns the only element of each of these values, which are outputs of the program.
pub(super) fn items(program: &Program, outputs: &[usize], values: &[Tensor]) -> Result<Vec<f64>, TrainError> {
    let item = |(tensor, &output): (&Tensor, &usize)| match tensor.len() {
        1 => Ok(tensor.item()),
        _ => Err(lacks(program, "scalar", &program.outputs[output].name)),
    };
    values.iter().zip(outputs).map(item).collect()
}

impl ScalingOutputs {
    fn all(&self) -> [usize; 3] {
        [self.skipped, self.scale, self.exhausted]
    }
}

/// Returns the outputs of the update whose names contain another name, by that name.
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
