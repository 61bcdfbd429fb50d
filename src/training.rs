//! A run: the compiled programs on a device, fed with the user's data. `programs` lowers them, and `opening` opens the data.

mod opening;
mod programs;

pub use opening::{DataOfRun, open_data};
pub use programs::{Programs, RunJob, all_programs, constants, lower_step, numbered, peak, step};
pub(crate) use programs::{lower_evaluation, lower_step_on};

use crate::compilation::{Compilation, Source};
use crate::config::{InputBinding, ResumePlace, Settings};
use crate::failure::Failure;
use crate::log;
use crate::output::Folder;
use crate::processes::Processes;
use crate::state_dict::load_weights;
use anyhow::Context;
use bytes::Bytes;
use checkpoint::{
    Checkpoint, Checkpoints, DataFiles, EvalConditions, InitialValues, PendingFingerprint, StateBytes,
    check_weights, initial_states,
};
use data::{DataSource, Loader, Tokenizer};
use ir::Diagnostic;
use ir::interp::Missing;
use program::Target;
use program::device::TooLarge;
use program::device::{DeviceError, ProgramId};
use program::profile::Profiles;
use ranks::{Opening, Platform, Ranks};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use train::metrics::{MetricsError, MetricsWriter};
use train::progress::Progress;
use train::{
    EvalHistory, GivenStates, Lead, Outcome, Resumed, RunProgram, Schedule, Surroundings, TrainError,
    TrainingRun, resume,
};

/// Opens the ranks of a run on their devices, with the memory of the programs of all jobs, of which there is at least one. The memory is
/// asked for before anything large is made, since it may be refused. The programs are for the target of `backend`. Each rank is a thread
/// of this process, or one of the `processes`. `warn` is told of faults that do not end the run. `fits` is asked for flags with which the
/// programs would fit, if they do not.
pub fn ranks(
    backend: &dyn Platform,
    jobs: &[RunJob],
    settings: &Settings,
    processes: &Processes,
    profiles: Option<Profiles>,
    warn: &dyn Fn(Diagnostic),
    fits: &dyn Fn(&TooLarge) -> Vec<String>,
) -> Result<Ranks, Failure> {
    let folder = settings.compile.memory.folder();
    if let Some(folder) = folder.filter(|folder| files::scratch::is_on_network(folder)) {
        let warning = format!("--memory disk={} is on another machine", folder.display());
        warn(
            Diagnostic::new(warning)
                .note("states that rest there take as long as the network; a disk of this machine is faster"),
        );
    }
    let warn = |trouble: &str| warn(Diagnostic::new(trouble));
    let process = processes.rank();
    let threads = settings.device.threads.or_else(|| process.map(|_| processes.cores()));
    let opening = Opening { process, threads, profiles, folder, warn: Some(&warn) };
    backend.open(all_programs(jobs), opening).map_err(|error| match too_large(&error) {
        Some(large) => {
            let error = Diagnostic::new(large.to_string()).note(large.told());
            Failure::User(vec![fits(large).into_iter().fold(error, Diagnostic::note)])
        }
        None => failure(error.into()),
    })
}

/// The sizes in the error of a device, or of a rank, whose memory the programs do not fit into; `None` for other errors.
pub(crate) fn too_large(error: &DeviceError) -> Option<&TooLarge> {
    match error {
        DeviceError::TooLarge(large) => Some(large),
        DeviceError::Rank { source, .. } => too_large(source),
        _ => None,
    }
}

/// The beginning of a run.
pub struct Start<'m> {
    /// The steps that are done.
    pub step: u64,
    /// The value of every state after these steps, or the part of this process's rank.
    pub states: GivenStates<'m>,
    /// A text by which processes compare the source of the values.
    pub origin: String,
    /// A text by which processes compare the files of training and evaluation data.
    pub files: String,
    /// The fingerprint of the data.
    data: PendingFingerprint,
    /// The eval losses of these steps.
    history: EvalHistory,
    /// The folder of the run that is resumed, and its checkpoint.
    from: Option<(PathBuf, PathBuf)>,
}

impl Start<'_> {
    /// The checkpoint that the run resumes from.
    pub fn from_checkpoint(&self) -> Option<&Path> {
        self.from.as_ref().map(|(_, checkpoint)| checkpoint.as_path())
    }
}

/// The weights of `--weights`. `report` is told of tensors that did not match. Errors: weights that are neither in the file of `--weights`
/// nor in the model's file.
pub fn weights(
    compilation: &Compilation,
    source: &Source,
    settings: &Settings,
    report: impl FnOnce(String),
) -> Result<StateBytes, Diagnostic> {
    let imported = &source.imported;
    let mut given = StateBytes::new();
    if let Some(path) = &settings.initial.weights {
        let weights = load_weights(path, &compilation.training, imported)?;
        report(weights.report.to_string());
        given = weights.values;
    }
    let checked = check_weights(&compilation.training, Missing::Refuse, &given);
    checked.map_err(|error| in_missing_files(error, &source.model))?;
    Ok(given)
}

/// The error of weights that are missing, with the files beside the model that should have them.
fn in_missing_files(error: Diagnostic, model: &onnx::Model) -> Diagnostic {
    let missing = model.missing_files();
    let files = missing.iter().map(|(file, tensors)| {
        let tensors = if *tensors == 1 { "a tensor" } else { &format!("{tensors} tensors") };
        format!("`{file}`, to which the model's file refers for {tensors}, is not beside it")
    });
    files.fold(error, Diagnostic::note)
}

/// The beginning of a new run. The values of all states are those of [`weights`], those of the model's file, or new ones. Errors: data that
/// cannot be read.
pub fn start<'m>(
    compilation: &'m Compilation,
    settings: &Settings,
    processes: &Processes,
    loader: &Loader,
    weights: StateBytes,
) -> Result<Start<'m>, Failure> {
    let (module, seed) = (&compilation.training, settings.compile.seed.seed);
    let (states, origin) = match processes.launched() {
        // Ranks that are threads share the values, which are made once.
        None => (initial_states(module, seed, Missing::Refuse, weights)?.into(), String::new()),
        Some(_) => {
            let values = InitialValues::new(module, seed, Missing::Refuse, weights)?;
            let origin = values.sampled_checksum();
            (GivenStates::Initial(values), origin)
        }
    };
    // Rank 0 alone writes the fingerprint, into checkpoints.
    let files = if processes.is_first() { data_files(settings) } else { DataFiles::default() };
    let data = PendingFingerprint::start(files);
    let history = EvalHistory::new(eval_conditions(settings, loader));
    Ok(Start { step: 0, states, origin, files: told_files(settings, processes)?, data, history, from: None })
}

/// The place at which a run resumes. `report` is told of newer checkpoints that are damaged. Errors: there is no checkpoint, or none of
/// this step; the checkpoint is of another model or of other data. Nothing is changed on disk.
pub fn go_on(
    compilation: &Compilation,
    settings: &Settings,
    processes: &Processes,
    loader: &Loader,
    place: &ResumePlace,
    report: impl FnMut(String),
) -> Result<Start<'static>, Failure> {
    let (data, evaluation) = (data_files(settings), eval_conditions(settings, loader));
    let checkpoints = checkpoints(&place.folder);
    let rank = processes.launched().map(|launched| launched.rank);
    let resumed = resume(&checkpoints, place.step, &compilation.training, loader, &data, &evaluation, rank);
    let Resumed { step, values: states, data, history, forgotten, damaged, path } =
        resumed.map_err(failure)?;
    let origin = format!("the checkpoint of {} steps", path.file_name().unwrap_or_default().display());
    let damaged = damaged.iter().map(|error| format!("note: a checkpoint is skipped: {error}"));
    let forgotten = forgotten.map(|other| {
        format!(
            "note: earlier eval losses do not count for the best checkpoint and --patience: they were \
             computed with {other}"
        )
    });
    damaged.chain(forgotten).for_each(report);
    let states = states.into();
    let files = told_files(settings, processes)?;
    Ok(Start { step, states, origin, files, data, history, from: Some((place.folder.clone(), path)) })
}

/// Makes the files of the run in `folder` match the step at which the run resumes: later metrics are cut off, and `rewinds` removes later
/// checkpoints. `report` is told of steps that were done and have no metrics. Errors: files that cannot be read or changed.
pub fn cut_back(
    folder: &Folder,
    start: &Start,
    rewinds: bool,
    report: impl FnOnce(String),
) -> Result<(), Failure> {
    let checkpoints = checkpoints(folder.path());
    let later = rewinds.then_some(&checkpoints);
    let metrics = folder.join(METRICS);
    let missing = train::cut_back(later, &metrics, start.step).map_err(failure)?;
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

/// The parts of a run other than the devices.
pub struct Setup<'a> {
    /// The jobs that are left of the run.
    pub jobs: &'a [RunJob],
    /// The data.
    pub loader: &'a Loader,
    /// The flags.
    pub settings: &'a Settings,
    /// The folder of the results.
    pub folder: &'a Folder,
    /// Steps in total.
    pub steps: u64,
    /// The files that the run reads, and the lock of its folder.
    pub surroundings: Surroundings,
    /// Whether checkpoints are written beside the steps.
    pub saves_beside: bool,
}

/// Bytes of the copy of the states from which a rank writes a checkpoint beside the steps. `None` if the run saves only at its end.
pub fn copy_of_states(programs: &Programs, settings: &Settings) -> Option<u64> {
    let saves = settings.run.save_every.is_some() || settings.run.exports_best();
    let memory = programs.training.largest().memory;
    // A copy of states that rest in a file has no room in memory, or they would not rest there.
    (saves && memory.disk.states == 0).then_some(memory.states + memory.host.states)
}

/// Whether there is room for this copy beside the programs of `ranks` ranks on this machine, which take `on_device` bytes each: within
/// `--memory`, and in the free memory.
pub fn has_room_for_copy(target: Target, on_device: u64, settings: &Settings, copy: u64, ranks: u64) -> bool {
    let is_in_budget =
        settings.compile.memory.device_budget().is_none_or(|budget| on_device + copy <= budget);
    // The budget of a GPU limits the GPU's own memory, but the copy is in the memory of the host.
    let (in_memory, is_in_budget) = if target.is_host() { (on_device, is_in_budget) } else { (0, true) };
    let needed = (in_memory + copy).saturating_mul(ranks);
    is_in_budget && files::memory::available().is_none_or(|free| needed <= free)
}

/// The least time between two lines for steps in the log of a process.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// Trains until the last step, or until `stop` is set: every rank runs the loop on its part. The devices are released before this function
/// returns. The surroundings are those of rank 0; `None` on other processes.
pub fn train(
    setup: Setup,
    mut ranks: Ranks,
    start: Start,
    stop: &AtomicBool,
) -> Result<(Outcome, Option<Surroundings>), Failure> {
    let Setup { jobs, loader, settings, folder, steps, surroundings, saves_beside } = setup;
    let Start { step, states, data, history, from, .. } = start;
    let programs = run_programs(jobs, loader.eval_samples() > 0);
    let (first, next) = programs.split_first().context("a run has a job")?;
    let schedule = Schedule {
        start: step,
        steps,
        eval_every: settings.data.eval_every,
        save_every: settings.run.save_every,
        save_best: settings.run.exports_best(),
        saves_beside,
        keep: settings.run.keep,
        patience: settings.run.patience,
    };
    let lead = if ranks.leads() {
        let (metrics, history) = records(folder, history, from.map(|(run, _)| run))?;
        Some(Lead { data, metrics, progress: Progress::new(step, steps), history, surroundings })
    } else {
        None
    };
    let mut given: Vec<_> = (1..ranks.count()).map(|_| (states.clone(), None)).collect();
    given.insert(0, (states, lead));
    let unwritten = AtomicUsize::new(given.len());
    let ended = ranks.run(given, |rank, (states, lead)| {
        let mut session = first.session(rank)?;
        session.write_states(states)?;
        // The compilation has ended, and the model's file is not read again before the trained model is written.
        if unwritten.fetch_sub(1, Ordering::Relaxed) == 1 {
            files::memory::give_back();
        }
        let (module, checkpoints) = (first.module, checkpoints(folder.path()));
        let log = log::lines().map(|log| Progress::lines(log, steps, LOG_EVERY));
        let outcome = Outcome::default();
        let run = TrainingRun { module, session, loader, checkpoints, lead, log, schedule, outcome };
        train::train(run, next, stop)
    });
    let first = ended.map_err(failure)?.into_iter().next();
    let (outcome, lead) = first.context("a process has a rank")?;
    let surroundings = lead.map(|lead| {
        lead.progress.finish();
        lead.surroundings
    });
    Ok((outcome, surroundings))
}

/// The programs of a run as the training loop has them.
fn run_programs<'a>(jobs: &'a [RunJob], evaluates: bool) -> Vec<RunProgram<'a>> {
    let of_job = |(train, job): (ProgramId, &'a RunJob)| {
        let short = job.programs.short_evaluation.as_ref().filter(|_| evaluates);
        RunProgram {
            first_step: job.first_step,
            module: &job.compilation.training,
            train,
            eval: evaluates.then_some(ProgramId(train.0 + 1)),
            short_eval: short.map(|(_, shares)| (ProgramId(train.0 + 2), shares.clone())),
            begins: job.begins.clone(),
        }
    };
    numbered(jobs).map(of_job).collect()
}

/// Opens the file of metrics of a run, and returns the history of its evaluations. If the run was resumed from another folder than
/// `folder`, earlier evaluations do not count.
fn records(
    folder: &Folder,
    mut history: EvalHistory,
    from: Option<PathBuf>,
) -> Result<(MetricsWriter, EvalHistory), Failure> {
    let metrics = folder.join(METRICS);
    let unwritten = |error: MetricsError| failure(error.into());
    if from.is_some_and(|from| !folder.is(&from)) {
        history.forget();
    }
    let writer = MetricsWriter::append(&metrics).map_err(unwritten)?;
    history.complete(&metrics).map_err(unwritten)?;
    Ok((writer, history))
}

/// The values of the states in a checkpoint of the run.
pub fn states_of<'m>(
    compilation: &'m Compilation,
    path: &Path,
) -> Result<impl Fn(&str) -> Result<Option<Bytes>, Diagnostic> + use<'m>, Failure> {
    let module = &compilation.training;
    let opened = Checkpoint::open(path).and_then(|checkpoint| {
        checkpoint.check_table(module)?;
        Ok(checkpoint)
    });
    let checkpoint =
        opened.with_context(|| format!("the checkpoint {} cannot be read back", path.display()))?;
    Ok(move |state: &str| Ok(checkpoint.value(module, state)?))
}

/// The files of the training samples.
pub(crate) fn data_files(settings: &Settings) -> DataFiles {
    let train = settings.data.train.as_ref().and_then(DataSource::path).cloned();
    let tokenizer = settings.data.tokenizer.as_ref().and_then(Tokenizer::path).cloned();
    let file = |input: &InputBinding| match &input.source {
        data::Source::File(path) => Some((input.name.clone(), path.clone())),
        _ => None,
    };
    DataFiles { train, tokenizer, inputs: settings.data.input.iter().filter_map(file).collect() }
}

/// The data files of a process among several, as a text by which processes compare them.
fn told_files(settings: &Settings, processes: &Processes) -> Result<String, Failure> {
    if processes.launched().is_none() {
        return Ok(String::new());
    }
    let eval = settings.data.eval.as_ref().and_then(DataSource::path).cloned();
    let files = [data_files(settings), DataFiles { train: eval, ..DataFiles::default() }];
    let sampled = files.map(|files| files.sampled().map(|sampled| sampled.to_string()));
    let [train, eval] = sampled.map(|told| told.map_err(|error| failure(error.into())));
    Ok(format!("{}, and for evaluation {}", train?, eval?))
}

/// The conditions under which eval losses of the run can be compared. Labels are never smoothed in an evaluation. Held-out and synthetic
/// data are identified by their number of samples, since the training data and the seed stay the same.
fn eval_conditions(settings: &Settings, loader: &Loader) -> EvalConditions {
    let train = settings.data.eval.as_ref().and_then(DataSource::path).cloned();
    let source = match &settings.data.eval {
        None => "held out",
        Some(DataSource::Synthetic) => "synthetic",
        Some(DataSource::Path(_)) => "given",
    };
    let ignored = settings.compile.loss.ignore_index.map_or("default".to_owned(), |index| index.to_string());
    let measure = format!(
        "--loss {}, ignored label {ignored}, {source} data of {} samples",
        settings.compile.loss.loss,
        loader.eval_samples()
    );
    EvalConditions { files: DataFiles { train, ..DataFiles::default() }, measure }
}

/// Whether an error is about the file of values on the disk.
fn is_of_disk(error: &DeviceError) -> bool {
    match error {
        DeviceError::NoFile { .. } | DeviceError::Disk(_) => true,
        DeviceError::Rank { source, .. } => is_of_disk(source),
        _ => false,
    }
}

/// Turns an error of the loop into a failure. A user can correct data, disks and diverging losses. A program that does not fit the loop is
/// a fault of the compiler.
pub(crate) fn failure(error: TrainError) -> Failure {
    match error {
        TrainError::Lacks { .. } | TrainError::Unfed { .. } => Failure::Fault(error.into()),
        TrainError::Device(ref device) if matches!(**device, DeviceError::Memory { .. }) => {
            let note =
                "a smaller --microbatch needs less memory; --global-batch keeps the step's batch the same";
            Failure::User(vec![Diagnostic::from(error).note(note)])
        }
        TrainError::Device(ref device) if is_of_disk(device) => {
            let note = "--memory disk=DIR names a folder of this machine with enough room; the last checkpoint is as it was";
            Failure::User(vec![Diagnostic::from(error).note(note)])
        }
        TrainError::Device(_) => Failure::Fault(error.into()),
        error => Failure::User(vec![error.into()]),
    }
}
