//! The programs of a run: the step and the evaluations, lowered for a kind of device.

use crate::compilation::Compilation;
use crate::failure::Failure;
use crate::lowering::Lowering;
use crate::{manager, targets};
use ir::machine::Device;
use ir::{Module, Phase, Scalar, ScalarPart, StepOutput};
use passes::keep::Keep;
use passes::{Manager, Pipeline};
use program::device::ProgramId;
use program::lower::LowerOptions;
use program::{Microbatches, StagePrograms, UpdateTime};
use program::{Multiprocessors, Target};

/// The outputs that the loop reads.
const TRAINING_OUTPUTS: [StepOutput; 4] = [
    StepOutput::Loss,
    StepOutput::LearningRate,
    StepOutput::GradientNorm,
    StepOutput::Part { scalar: Scalar::Loss, class: 0, part: ScalarPart::Sum },
];
/// The outputs that the loop reads if the loss is scaled.
const SCALING_OUTPUTS: [StepOutput; 3] =
    [StepOutput::Skipped, StepOutput::LossScale, StepOutput::ScaleExhausted];

/// The environment variable that turns epilogues off if it is 0, to tell a wrong epilogue from a wrong kernel.
const EPILOGUES: &str = "TRAINYARD_EPILOGUES";

/// The programs of a run. They share their states.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The kind of device that they are for.
    pub target: Target,
    /// The step.
    pub training: StagePrograms,
    /// The evaluation.
    pub evaluation: StagePrograms,
    /// The evaluation of a last batch that is short, and for each class of its loss the factor by which its sums count.
    pub short_evaluation: Option<(StagePrograms, Vec<f64>)>,
}

impl Programs {
    /// Lowers a compilation for steps of so many microbatches, and for a kind of device.
    pub fn lower(compilation: &Compilation, microbatches: u64, target: Target) -> Result<Self, Failure> {
        let (manager, size) = (Manager::default(), Multiprocessors::default());
        Self::lower_by(&mut compilation.lowering(&manager), compilation, microbatches, target, size)
    }

    /// As [`Self::lower`], for a device with this description.
    pub fn lower_on(compilation: &Compilation, microbatches: u64, device: &Device) -> Result<Self, Failure> {
        let (manager, (target, size)) = (Manager::default(), of_device(device));
        Self::lower_by(&mut compilation.lowering(&manager), compilation, microbatches, target, size)
    }

    /// As [`Self::lower`], for a GPU of a size that is known, and by a manager that shows the passes.
    pub fn lower_by(
        lowering: &mut Lowering,
        compilation: &Compilation,
        microbatches: u64,
        target: Target,
        multiprocessors: Multiprocessors,
    ) -> Result<Self, Failure> {
        let (step, update) = (compilation.training.clone(), compilation.update);
        let training = lower_step(lowering, step, microbatches, update, target, multiprocessors)?;
        let evaluation = lower_evaluation(lowering, compilation.evaluation.clone(), target, &training)?;
        Ok(Self { target, training, evaluation, short_evaluation: None })
    }

    /// Adds the evaluation of a last batch that is short, with the factors by which the sums of its loss count.
    pub fn add(
        &mut self,
        lowering: &mut Lowering,
        evaluation: Module,
        shares: Vec<f64>,
    ) -> Result<(), Failure> {
        let program = lower_evaluation(lowering, evaluation, self.target, &self.training)?;
        self.short_evaluation = Some((program, shares));
        Ok(())
    }

    /// All programs, in the order in which a device numbers them.
    pub fn all(&self) -> Vec<StagePrograms> {
        let short = self.short_evaluation.iter().map(|(program, _)| program);
        [&self.training, &self.evaluation].into_iter().chain(short).cloned().collect()
    }

    /// Bytes that a device allocates for all programs.
    pub fn peak(&self) -> u64 {
        peak(&self.all())
    }
}

/// Bytes that a device allocates for programs: one arena, and the constants of each. In a pipeline, the bytes of the rank with the largest
/// step.
pub fn peak(programs: &[StagePrograms]) -> u64 {
    programs.iter().map(|program| program.largest().memory.arena).max().unwrap_or(0) + constants(programs)
}

/// Bytes of the constants of programs.
pub fn constants(programs: &[StagePrograms]) -> u64 {
    programs.iter().map(|program| program.largest().memory.constants).sum()
}

/// A compiled job of a run. The programs of all jobs share the device.
#[derive(Clone, Debug)]
pub struct RunJob {
    /// The number of steps completed before it begins.
    pub first_step: u64,
    /// The message to the user when it begins after another job.
    pub begins: String,
    /// The compiled model.
    pub compilation: Compilation,
    /// Its programs.
    pub programs: Programs,
}

/// The programs of the jobs of a run, in the order in which a device numbers them.
pub fn all_programs(jobs: &[RunJob]) -> Vec<StagePrograms> {
    jobs.iter().flat_map(|job| job.programs.all()).collect()
}

/// The jobs of a run, each with the number of its training program. The numbers of its evaluations follow.
pub fn numbered(jobs: &[RunJob]) -> impl Iterator<Item = (ProgramId, &RunJob)> {
    jobs.iter().scan(0, |next, job| {
        let own = ProgramId(*next);
        *next += job.programs.all().len();
        Some((own, job))
    })
}

/// The options for the lowering of a run's programs for a kind of device.
fn lower_options(target: Target, multiprocessors: Multiprocessors) -> LowerOptions<'static> {
    let without_epilogues = std::env::var_os(EPILOGUES).is_some_and(|value| value == "0");
    LowerOptions { multiprocessors, without_epilogues, ..LowerOptions::of(target) }
}

/// Lowers an evaluation that shares the states of a step.
pub(crate) fn lower_evaluation(
    lowering: &mut Lowering,
    module: Module,
    target: Target,
    training: &StagePrograms,
) -> Result<StagePrograms, Failure> {
    let options = lower_options(target, training.first().multiprocessors);
    lowering.lower(module, Pipeline::default(), &options, Some(training))
}

/// Lowers a step of `microbatches` microbatches for a kind of device, and for the size of a GPU.
///
/// # Errors
/// As of [`Lowering::lower`].
pub fn lower_step(
    lowering: &mut Lowering,
    module: Module,
    microbatches: u64,
    update: UpdateTime,
    target: Target,
    multiprocessors: Multiprocessors,
) -> Result<StagePrograms, Failure> {
    let microbatches = if microbatches == 1 { Microbatches::One } else { Microbatches::Many };
    let keep = Keep { outputs: outputs(&module) };
    let options = LowerOptions { microbatches, update, ..lower_options(target, multiprocessors) };
    lowering.lower(module, keep.into(), &options, None)
}

/// As [`lower_step`], for the device of this description. Returns the target too.
pub(crate) fn lower_step_on(
    module: Module,
    microbatches: u64,
    update: UpdateTime,
    device: &Device,
) -> Result<(StagePrograms, Target), Failure> {
    let (manager, (target, size)) = (Manager::default(), of_device(device));
    let lowering = &mut Lowering::new(&manager, 0);
    Ok((lower_step(lowering, module, microbatches, update, target, size)?, target))
}

/// The target of a device, and the size of a GPU.
fn of_device(device: &Device) -> (Target, Multiprocessors) {
    (targets::of(device.kind), Multiprocessors(device.multiprocessors))
}

/// The outputs of a step that the loop reads.
fn outputs(module: &Module) -> Vec<String> {
    let scaling = SCALING_OUTPUTS.into_iter().filter(|output| module.step_output(*output).is_some());
    let is_metric = |output: &&ir::Output| {
        let name = &output.name;
        let is_reported = StepOutput::metric_of(name).is_some() || StepOutput::load_of(name).is_some();
        is_reported && module.phase_of(output.value) == Phase::Update
    };
    let metrics = module.outputs.iter().filter(is_metric).map(|output| output.name.clone());
    TRAINING_OUTPUTS.into_iter().chain(scaling).map(String::from).chain(metrics).collect()
}

/// The part of a program that runs when it is trained, without the model's outputs other than the loss.
pub fn step(module: &Module) -> Result<Module, Failure> {
    let mut outputs = outputs(module);
    outputs.retain(|name| module.output(name).is_some());
    manager::rewritten(module.clone(), Keep { outputs })
}
