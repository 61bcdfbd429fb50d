//! A run: the compiled programs on a device, fed with the user's data.

use crate::compilation::{self, Compilation};
use crate::config::{DataSource, InputBinding, InputSource, LabelsFrom, ResumePlace, Settings, Tokenizer};
use crate::failure::Failure;
use crate::feed;
use crate::lowering::Lowering;
use crate::output::Folder;
use crate::short_evaluation::ShortEvaluation;
use crate::state_dict::load_weights;
use anyhow::Context;
use ir::interp::Missing;
use ir::{Diagnostic, Module, Phase, Scalar, ScalarPart, StepOutput};
use onnx::Imported;
use passes::keep::Keep;
use passes::{Manager, PassContext, Pipeline};
use runtime::checkpoint::{
    Checkpoint, Checkpoints, DataFiles, EvalConditions, PendingFingerprint, StateBytes, check_weights,
    initial_states,
};
use runtime::cuda::gpu::{Options, gpus, without_epilogues};
use runtime::data::{self, Loader, LoaderOptions, Source, Tokenization};
use runtime::device::{Device, DeviceError, ProgramId};
use runtime::lower::LowerOptions;
use runtime::metrics::{MetricsError, MetricsWriter};
use runtime::profile::Profile;
use runtime::program::{Microbatches, Program, UpdateTime};
use runtime::progress::Progress;
use runtime::ranks;
use runtime::room::TooLarge;
use runtime::target::{Multiprocessors, Target};
use runtime::train::{
    EvalHistory, Outcome, Resumed, Schedule, Session, Surroundings, TrainError, TrainingRun, resume,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The outputs that the loop reads.
const TRAINING_OUTPUTS: [StepOutput; 4] = [
    StepOutput::Loss,
    StepOutput::LearningRate,
    StepOutput::GradientNorm,
    StepOutput::Part { scalar: Scalar::Loss, class: 0, part: ScalarPart::Sum },
];
/// Those that it reads where the loss is scaled.
const SCALING_OUTPUTS: [StepOutput; 3] =
    [StepOutput::Skipped, StepOutput::LossScale, StepOutput::ScaleExhausted];

/// The programs of a run. They share their states.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The step.
    pub training: Arc<Program>,
    /// The evaluation.
    pub evaluation: Arc<Program>,
    /// The evaluation of a last batch that is short, and what the classes of its loss count.
    pub short_evaluation: Option<(Arc<Program>, Vec<f64>)>,
}

impl Programs {
    /// Lowers a compilation for steps of so many microbatches, and for a kind of device.
    pub fn lower(compilation: &Compilation, microbatches: u64, target: Target) -> Result<Self, Failure> {
        Self::lower_for(compilation, microbatches, target, Multiprocessors::default())
    }

    /// As [`Self::lower`], for a GPU of a size that is known.
    pub fn lower_for(
        compilation: &Compilation,
        microbatches: u64,
        target: Target,
        multiprocessors: Multiprocessors,
    ) -> Result<Self, Failure> {
        let manager = Manager::default();
        Self::lower_by(
            &mut compilation.lowering(&manager),
            compilation,
            microbatches,
            target,
            multiprocessors,
        )
    }

    /// As [`Self::lower_for`], by a manager that shows the passes.
    pub fn lower_by(
        lowering: &mut Lowering,
        compilation: &Compilation,
        microbatches: u64,
        target: Target,
        multiprocessors: Multiprocessors,
    ) -> Result<Self, Failure> {
        let step = compilation.training.clone();
        Self::lower_with(lowering, step, compilation, microbatches, target, multiprocessors)
    }

    /// As [`Self::lower_by`], with another step in place of the compilation's.
    pub fn lower_with(
        lowering: &mut Lowering,
        step: Module,
        compilation: &Compilation,
        microbatches: u64,
        target: Target,
        multiprocessors: Multiprocessors,
    ) -> Result<Self, Failure> {
        let update = compilation.update;
        let training = Arc::new(lower_step(lowering, step, microbatches, update, target, multiprocessors)?);
        let evaluation = lower_evaluation(lowering, compilation.evaluation.clone(), &training)?;
        Ok(Self { training, evaluation, short_evaluation: None })
    }

    /// Adds the evaluation of a last batch that is short.
    pub fn add(&mut self, lowering: &mut Lowering, short: ShortEvaluation) -> Result<(), Failure> {
        let ShortEvaluation { module, shares } = short;
        self.short_evaluation = Some((lower_evaluation(lowering, module, &self.training)?, shares));
        Ok(())
    }

    /// All of them, in the order in which a device numbers them.
    pub fn all(&self) -> Vec<Arc<Program>> {
        let short = self.short_evaluation.iter().map(|(program, _)| program);
        [&self.training, &self.evaluation].into_iter().chain(short).cloned().collect()
    }

    /// Bytes that a device allocates for all of them: one arena, and the constants of each.
    pub fn peak(&self) -> u64 {
        self.all().iter().map(|program| program.memory.arena).max().unwrap_or(0) + self.constants()
    }

    /// Bytes of the constants of all of them.
    pub fn constants(&self) -> u64 {
        self.all().iter().map(|program| program.memory.constants).sum()
    }
}

/// How a run's programs are lowered for a kind of device.
fn lower_options(target: Target, multiprocessors: Multiprocessors) -> LowerOptions<'static> {
    let without_epilogues = without_epilogues();
    LowerOptions { target, multiprocessors, without_epilogues, ..LowerOptions::default() }
}

/// Lowers an evaluation that shares the states of a step.
fn lower_evaluation(
    lowering: &mut Lowering,
    module: Module,
    training: &Program,
) -> Result<Arc<Program>, Failure> {
    let options = lower_options(training.target, training.multiprocessors);
    let shared = LowerOptions { states_of: Some(training), ..options };
    Ok(Arc::new(lowering.lower(module, Pipeline::default(), &shared)?))
}

/// Lowers a step of so many microbatches, for a kind of device; for a GPU by its size.
///
/// # Errors
/// Early updates with several microbatches; as of [`Lowering::lower`].
pub fn lower_step(
    lowering: &mut Lowering,
    module: Module,
    microbatches: u64,
    update: UpdateTime,
    target: Target,
    multiprocessors: Multiprocessors,
) -> Result<Program, Failure> {
    if update == UpdateTime::Early && microbatches > 1 {
        let message = format!("--update early cannot be used with {microbatches} microbatches in a step");
        let error = Diagnostic::new(message).note(
            "a gradient is complete only in the last microbatch, which has no program of its own; make the whole global batch \
             one microbatch",
        );
        return Err(error.into());
    }
    let microbatches = if microbatches == 1 { Microbatches::One } else { Microbatches::Many };
    let keep = Keep { outputs: outputs(&module) };
    let options = LowerOptions { microbatches, update, ..lower_options(target, multiprocessors) };
    lowering.lower(module, keep.into(), &options)
}

/// The outputs of a step that the loop reads.
fn outputs(module: &Module) -> Vec<String> {
    let scaling = SCALING_OUTPUTS.into_iter().filter(|output| module.step_output(*output).is_some());
    let is_metric = |output: &&ir::Output| {
        StepOutput::metric_of(&output.name).is_some() && module.phase_of(output.value) == Phase::Update
    };
    let metrics = module.outputs.iter().filter(is_metric).map(|output| output.name.clone());
    TRAINING_OUTPUTS.into_iter().chain(scaling).map(String::from).chain(metrics).collect()
}

/// The part of a program that runs when it is trained: the outputs of the model beside its loss are left out.
pub fn step(module: &Module) -> Result<Module, Failure> {
    let mut outputs = outputs(module);
    outputs.retain(|name| module.output(name).is_some());
    let (keep, mut step) = (Keep { outputs }, module.clone());
    let (manager, mut cx) = (Manager::default(), PassContext::default());
    compilation::run(&manager, &keep.into(), &mut step, &mut cx, |_, _, _| {})?;
    Ok(step)
}

/// Opens the data of a run. Errors: everything about it that would make a step fail.
pub fn open_data(module: &Module, settings: &Settings, microbatches: u64) -> Result<Loader, Failure> {
    let train = settings.data.train.as_ref().map(source).context("the data is opened only to train")?;
    let options = LoaderOptions {
        seed: settings.seed.seed,
        microbatches,
        eval: settings.data.eval.as_ref().map(source),
        tokenizer: match &settings.data.tokenizer {
            None => Tokenization::Auto,
            Some(Tokenizer::Bytes) => Tokenization::Bytes,
            Some(Tokenizer::File(path)) => Tokenization::File(path.clone()),
        },
        labels_from: settings.data.labels_from.map(|from| match from {
            LabelsFrom::Shift => data::LabelsFrom::Shift,
            LabelsFrom::Given => data::LabelsFrom::Given,
        }),
        inputs: inputs(settings),
        ..LoaderOptions::default()
    };
    let mut spec = feed::model_spec(module)?;
    if let Some(label) = &spec.label {
        spec.unfillable = feed::unfillable(module, &label.name)?;
    }
    Loader::new(&spec, &train, &options).map_err(|error| Diagnostic::new(data::one_line(&error)).into())
}

fn source(source: &DataSource) -> data::DataSource {
    match source {
        DataSource::Synthetic => data::DataSource::Synthetic,
        DataSource::File(path) => data::DataSource::Path(path.clone()),
    }
}

fn inputs(settings: &Settings) -> BTreeMap<String, Source> {
    let source = |source: &InputSource| match source {
        InputSource::Positions => Source::Positions,
        InputSource::Ones => Source::Ones,
        InputSource::Zeros => Source::Zeros,
        InputSource::Key(key) => Source::Key(key.clone()),
        InputSource::File(path) => Source::File(path.clone()),
    };
    settings.data.input.iter().map(|input| (input.name.clone(), source(&input.source))).collect()
}

/// The device of a run, with its memory: it is asked for before anything large is made, since it may be refused. It is of
/// the kind that the programs are for; several devices are ranks, each a thread of this process. `warn` is told what is not
/// as it should be, and `fits` is asked what would fit where the programs do not.
pub fn device(
    programs: &Programs,
    settings: &Settings,
    profile: Option<Profile>,
    warn: &dyn Fn(Diagnostic),
    fits: &dyn Fn(&TooLarge) -> Option<String>,
) -> Result<Box<dyn Device + Send>, Failure> {
    let target = programs.training.target;
    let programs = programs.all();
    let device = match target {
        Target::Cpu => ranks::device(programs, settings.device.threads, profile),
        Target::Cuda => {
            gpus(programs, Options::of_process(), profile, &|trouble| warn(Diagnostic::new(trouble)))
        }
    };
    device.map_err(|error| match too_large(&error) {
        Some(large) => Failure::User(vec![diagnosed(large, target, fits(large))]),
        None => failure(error.into()),
    })
}

/// What a device, or a rank, says of programs that do not fit.
pub(crate) fn too_large(error: &DeviceError) -> Option<&TooLarge> {
    match error {
        DeviceError::TooLarge(large) => Some(large),
        DeviceError::Rank { source, .. } => too_large(source),
        _ => None,
    }
}

fn diagnosed(large: &TooLarge, target: Target, fitting: Option<String>) -> Diagnostic {
    let other = match target {
        Target::Cpu => "the step does not fit with any halved microbatch either; --bf16 needs less memory",
        Target::Cuda => {
            "the step does not fit with any halved microbatch either; --bf16, or a mesh of several GPUs, \
             needs less memory per GPU"
        }
    };
    Diagnostic::new(large.to_string()).note(large.told()).note(fitting.unwrap_or_else(|| other.into()))
}

/// Where a run begins.
pub struct Start {
    /// Steps done before.
    pub step: u64,
    /// The value of every state after them.
    pub states: StateBytes,
    /// The fingerprint of the data.
    data: PendingFingerprint,
    /// The eval losses before.
    history: EvalHistory,
    /// The run that it goes on with.
    from: Option<PathBuf>,
}

/// The weights of `--weights`. `report` is told what of them did not match. Errors: weights that are neither there nor in
/// the model's file.
pub fn weights(
    compilation: &Compilation,
    imported: &Imported,
    settings: &Settings,
    report: impl FnOnce(String),
) -> Result<StateBytes, Diagnostic> {
    let mut given = StateBytes::new();
    if let Some(path) = &settings.initial.weights {
        let weights = load_weights(path, &compilation.training, imported)?;
        report(weights.report.to_string());
        given = weights.values;
    }
    check_weights(&compilation.training, Missing::Refuse, &given)?;
    Ok(given)
}

/// The beginning of a new run: the values of all states are those of [`weights`], the file's, or new ones. Errors: data
/// that cannot be read.
pub fn start(
    compilation: &Compilation,
    settings: &Settings,
    loader: &Loader,
    weights: StateBytes,
) -> Result<Start, Failure> {
    let states = initial_states(&compilation.training, settings.seed.seed, Missing::Refuse, weights)?;
    let data = PendingFingerprint::start(data_files(settings));
    let history = EvalHistory::new(eval_conditions(settings, loader));
    Ok(Start { step: 0, states, data, history, from: None })
}

/// The place where a run goes on. `report` is told of newer checkpoints that are damaged. Errors: no checkpoint, or none of
/// that step; one of another model or of other data. Nothing is changed on disk.
pub fn go_on(
    compilation: &Compilation,
    settings: &Settings,
    loader: &Loader,
    place: &ResumePlace,
    report: impl FnMut(String),
) -> Result<Start, Failure> {
    let (data, evaluation) = (data_files(settings), eval_conditions(settings, loader));
    let checkpoints = checkpoints(&place.folder);
    let resumed = resume(&checkpoints, place.step, &compilation.training, loader, &data, &evaluation);
    let Resumed { step, values: states, data, history, forgotten, damaged, .. } = resumed.map_err(failure)?;
    let damaged = damaged.iter().map(|error| format!("note: a checkpoint is skipped: {error}"));
    let forgotten = forgotten.map(|other| {
        format!(
            "note: earlier eval losses do not count for the best checkpoint and --patience: they were \
             computed with {other}"
        )
    });
    damaged.chain(forgotten).for_each(report);
    Ok(Start { step, states, data, history, from: Some(place.folder.clone()) })
}

/// Makes the files of the run in `folder` those of the run where it goes on: metrics that come after are cut off, and
/// `rewinds` removes later checkpoints. `report` is told of steps that were done and have no metrics. Errors: files that
/// cannot be read or changed.
pub fn cut_back(
    folder: &Folder,
    start: &Start,
    rewinds: bool,
    report: impl FnOnce(String),
) -> Result<(), Failure> {
    let checkpoints = checkpoints(folder.path());
    let later = rewinds.then_some(&checkpoints);
    let metrics = folder.join(METRICS);
    let missing = runtime::train::cut_back(later, &metrics, start.step).map_err(failure)?;
    if missing > 0 {
        let path = metrics.display();
        report(format!(
            "note: {path} lacks {missing} of the {} completed steps: the file was damaged or changed",
            start.step
        ));
    }
    Ok(())
}

/// The checkpoints of the run in a folder.
pub fn checkpoints(folder: &Path) -> Checkpoints {
    Checkpoints::new(&folder.join(CHECKPOINTS))
}

const CHECKPOINTS: &str = "checkpoints";
/// The name of the file of metrics.
pub const METRICS: &str = "metrics.jsonl";

/// What a run needs beside its programs.
pub struct Setup<'a> {
    /// The compiled model.
    pub compilation: &'a Compilation,
    /// The programs on the device.
    pub programs: &'a Programs,
    /// The data.
    pub loader: &'a Loader,
    /// The flags.
    pub settings: &'a Settings,
    /// Where results go.
    pub folder: &'a Folder,
    /// Steps in total.
    pub steps: u64,
    /// The files that the run reads, and its folder.
    pub surroundings: Surroundings,
}

/// Trains until the last step, or until `stop` is set. The device is given back before this returns: what comes after
/// takes its states from the checkpoint, and no more memory than the run did.
pub fn train(
    setup: Setup,
    mut device: Box<dyn Device + Send>,
    start: Start,
    stop: &AtomicBool,
) -> Result<(Outcome, Surroundings), Failure> {
    let Setup { compilation, programs, loader, settings, folder, steps, surroundings } = setup;
    let evaluates = loader.eval_samples() > 0;
    let mut session =
        Session::new(&mut *device, ProgramId(0), evaluates.then_some(ProgramId(1))).map_err(failure)?;
    if let Some((_, shares)) = programs.short_evaluation.as_ref().filter(|_| evaluates) {
        session.evaluate_short(ProgramId(2), shares.clone()).map_err(failure)?;
    }
    session.write_states(start.states).map_err(failure)?;
    let metrics = folder.join(METRICS);
    let unwritten = |error: MetricsError| failure(error.into());
    let mut history = start.history;
    if start.from.is_some_and(|from| !folder.is(&from)) {
        history.forget();
    }
    let metrics_writer = MetricsWriter::append(&metrics).map_err(unwritten)?;
    history.complete(&metrics).map_err(unwritten)?;
    let mut run = TrainingRun {
        module: &compilation.training,
        session,
        loader,
        data: start.data,
        checkpoints: checkpoints(folder.path()),
        metrics: metrics_writer,
        progress: Progress::new(start.step, steps),
        history,
        surroundings,
    };
    let schedule = Schedule {
        start: start.step,
        steps,
        eval_every: settings.data.eval_every,
        save_every: settings.run.save_every,
        save_best: settings.run.exports_best(),
        keep: settings.run.keep,
        patience: settings.run.patience,
    };
    let outcome = runtime::train::train(&mut run, &schedule, stop).map_err(failure)?;
    run.progress.finish();
    Ok((outcome, run.surroundings))
}

/// The values of all states in a checkpoint of the run.
pub fn states_of(compilation: &Compilation, checkpoint: &Path) -> Result<StateBytes, Failure> {
    let states = Checkpoint::open(checkpoint).and_then(|checkpoint| checkpoint.load(&compilation.training));
    Ok(states.with_context(|| format!("the checkpoint {} cannot be read back", checkpoint.display()))?)
}

/// The files that the training samples are made from.
pub(crate) fn data_files(settings: &Settings) -> DataFiles {
    let train = settings.data.train.as_ref().and_then(DataSource::file).cloned();
    let tokenizer = match &settings.data.tokenizer {
        Some(Tokenizer::File(path)) => Some(path.clone()),
        _ => None,
    };
    let file = |input: &InputBinding| match &input.source {
        InputSource::File(path) => Some((input.name.clone(), path.clone())),
        _ => None,
    };
    DataFiles { train, tokenizer, inputs: settings.data.input.iter().filter_map(file).collect() }
}

/// The conditions under which eval losses of the run compare. Labels are never smoothed in an evaluation. Held-out
/// and synthetic data are identified by their number of samples, since the training data and the seed stay the same.
fn eval_conditions(settings: &Settings, loader: &Loader) -> EvalConditions {
    let train = settings.data.eval.as_ref().and_then(DataSource::file).cloned();
    let source = match &settings.data.eval {
        None => "held out",
        Some(DataSource::Synthetic) => "synthetic",
        Some(DataSource::File(_)) => "given",
    };
    let ignored = settings.loss.ignore_index.map_or("default".to_owned(), |index| index.to_string());
    let measure = format!(
        "--loss {}, ignored label {ignored}, {source} data of {} samples",
        settings.loss.loss,
        loader.eval_samples()
    );
    EvalConditions { files: DataFiles { train, ..DataFiles::default() }, measure }
}

/// A user can mend data, disks and diverging losses; a program that does not fit the loop is a fault.
pub(crate) fn failure(error: TrainError) -> Failure {
    match error {
        TrainError::Lacks { .. } | TrainError::Unfed { .. } => Failure::Fault(error.into()),
        TrainError::Device(ref device) if matches!(**device, DeviceError::Memory { .. }) => {
            let note =
                "a smaller --microbatch needs less memory; --global-batch keeps the step's batch the same";
            Failure::User(vec![Diagnostic::from(error).note(note)])
        }
        TrainError::Device(_) => Failure::Fault(error.into()),
        error => Failure::User(vec![error.into()]),
    }
}
