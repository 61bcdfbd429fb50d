//! Resuming a run: the step at which it begins, the flags that differ from the run before, and whether any step is left.

use crate::compilation::Compilation;
use crate::config::{
    Data, Device, DeviceChoice, Loss, Optimizer, Precision, ResumePlace, RunFlags, Settings,
};
use crate::output::{EXPORTED, Folder};
use crate::training::{DataOfRun, METRICS, checkpoints};
use checkpoint::{Checkpoint, StateRow};
use clap::{Args, Command};
use ir::Diagnostic;
use std::fs;
use std::io;
use std::path::Path;
use toml::{Table, Value};
use train::metrics::read_metrics;

/// The place at which a run begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// At step 0.
    Anew,
    /// At step 0, in an output folder where the same command began and ended before its first checkpoint.
    Again,
    /// At a checkpoint.
    Checkpoint {
        /// The run, and perhaps the step.
        place: ResumePlace,
        /// Whether the run is the one in the output folder.
        in_place: bool,
    },
}

/// Returns the place at which the run in `folder` begins by its flags. Errors: flags that contradict each other or the folder.
/// No file is written.
pub(super) fn beginning(settings: &Settings, folder: &Folder) -> Result<Beginning, Diagnostic> {
    let Some(resume) = &settings.run.resume else { return Ok(Beginning::Anew) };
    let place = resume.place(folder.path());
    let in_place = folder.is(&place.folder);
    if in_place && settings.out.force && place.step.is_none() {
        return Err(Diagnostic::new("--resume continues the run that --force deletes")
            .note("give only one of these flags"));
    }
    let steps = steps(&place)?;
    if in_place && place.step.is_none() && steps.is_empty() {
        check_begun(folder, settings)?;
        return Ok(Beginning::Again);
    }
    let later: Vec<String> =
        steps.iter().filter(|&&step| place.step.is_some_and(|at| step > at)).map(u64::to_string).collect();
    if in_place && !later.is_empty() && !settings.out.force {
        let (checkpoints, steps) =
            if later.len() == 1 { ("a later checkpoint", "step") } else { ("later checkpoints", "steps") };
        let message = format!(
            "the run in {} has {checkpoints} than the one to resume from: {steps} {}",
            folder.path().display(),
            later.join(", ")
        );
        return Err(Diagnostic::new(message)
            .note("to delete the later checkpoints: --force")
            .note("to keep them: -o ANOTHER_DIR"));
    }
    Ok(Beginning::Checkpoint { place, in_place })
}

/// The facts of the checkpoint at which a run begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Continued {
    /// The number of steps that are done.
    pub(super) step: u64,
    /// Samples of a step. The run keeps it if the number of data ranks changes.
    pub(super) global_batch: Option<u64>,
    /// The convention of the labels, which the run keeps if the evaluation data change, and the number of samples.
    pub(super) data: Option<DataOfRun>,
}

impl Continued {
    /// The facts of a run that begins there with these settings.
    pub(super) fn of(beginning: &Beginning, settings: &Settings) -> Self {
        let position = checkpoint(beginning).map(|checkpoint| checkpoint.description.position);
        Self {
            step: position.map_or(0, |position| position.step),
            global_batch: settings
                .compile
                .shapes
                .global_batch
                .or(position.map(|position| position.global_batch)),
            data: position
                .map(|position| DataOfRun { labels_from: position.labels_from, samples: position.samples }),
        }
    }

    /// A new run with this global batch.
    pub(super) fn anew(global_batch: Option<u64>) -> Self {
        Self { step: 0, global_batch, data: None }
    }
}

/// The checkpoint at which a run begins. `None` if it cannot be read: a later step reports that.
fn checkpoint(beginning: &Beginning) -> Option<Checkpoint> {
    let Beginning::Checkpoint { place, .. } = beginning else { return None };
    let checkpoints = checkpoints(&place.folder);
    match place.step {
        Some(step) => checkpoints.at(step).ok(),
        None => checkpoints.latest().ok().and_then(|latest| latest.checkpoint),
    }
}

/// The steps of the checkpoints in the folder of a place. Refuses a place whose checkpoint is missing.
fn steps(place: &ResumePlace) -> Result<Vec<u64>, Diagnostic> {
    if !place.folder.is_dir() {
        return Ok(vec![]);
    }
    let checkpoints = checkpoints(&place.folder);
    let checked = place.step.map_or(Ok(()), |step| checkpoints.check_step(step));
    checked.and_then(|()| checkpoints.steps()).map_err(|error| Diagnostic::new(error.to_string()))
}

/// Refuses a folder without a checkpoint unless the same command began in it. The length of the run and the device may
/// differ.
fn check_begun(folder: &Folder, settings: &Settings) -> Result<(), Diagnostic> {
    let path = folder.path().display();
    let refused =
        |why: String| Diagnostic::new(format!("{path} has no checkpoint to resume from, and {why}"));
    let anew = "to start from step 0: --force instead of --resume, or another folder with -o ANOTHER_DIR";
    if let Some(name) = EXPORTED.iter().find(|name| folder.join(name).exists()) {
        return Err(refused(format!("it holds a trained model, {name}")).note(anew));
    }
    let config = folder.join("config.toml");
    let then = match fs::read_to_string(&config) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !folder.join(METRICS).exists() => {
            return Ok(());
        }
        Err(error) => return Err(refused(format!("{} cannot be read: {error}", config.display())).note(anew)),
        Ok(text) => text.parse::<Table>(),
    };
    let mut then = then.map_err(|error| {
        refused(format!("{} is not TOML: {}", config.display(), error.message())).note(anew)
    })?;
    let free = keys(&[RunFlags::augment_args, Device::augment_args]);
    let now = table(settings);
    if settings.data.labels_from.is_none() {
        // The run chose the convention itself, and will choose it again.
        then.remove(LABELS_FROM);
    }
    let known = keys(&[Settings::augment_args]);
    let compared: Vec<String> = known.into_iter().filter(|key| !free.contains(key)).collect();
    let notes: Vec<String> = differences(&compared, &then, &now)
        .map(|[then, now]| format!("the earlier run had {then}, and this command has {now}"))
        .collect();
    if notes.is_empty() {
        return Ok(());
    }
    let error = refused("its run was started with other flags".into());
    Err(notes
        .into_iter()
        .fold(error, Diagnostic::note)
        .note(format!("give the flags of the earlier run; {anew}")))
}

/// Refuses a folder in which a run of another model began. Otherwise returns a note on the steps that are done again.
pub(super) fn check_model(folder: &Folder, compilation: &Compilation) -> Result<Option<String>, Diagnostic> {
    let path = folder.path().display();
    let written = fs::read_to_string(folder.join("program.ir")).ok();
    let then = written.and_then(|text| ir::text::parse(&text).ok());
    let parameters = StateRow::parameters;
    if then.is_some_and(|then| parameters(&then) != parameters(&compilation.training)) {
        return Err(Diagnostic::new(format!(
            "{path} has no checkpoint to resume from, and its run was started with another model"
        ))
        .note("to start from step 0: --force instead of --resume, or another folder with -o ANOTHER_DIR"));
    }
    let done = read_metrics(&folder.join(METRICS)).map_or(0, |metrics| metrics.len());
    let again = match done {
        0 => String::new(),
        1 => ", and repeats its first step".to_owned(),
        steps => format!(", and repeats {steps} steps"),
    };
    let is_begun = folder.join("program.ir").exists();
    Ok(is_begun.then(|| format!("the run in {path} has no checkpoint yet: it starts at step 0{again}")))
}

/// Returns a note for each flag of the optimizer, the loss, the precision, the data and the device whose value differs from that in the
/// `config.toml` of a run's folder; none if that file cannot be read.
pub(super) fn changed_flags(from: &Path, settings: &Settings) -> Vec<String> {
    let written = fs::read_to_string(Folder::new(from).join("config.toml"));
    let Some(then) = written.ok().and_then(|text| text.parse::<Table>().ok()) else { return vec![] };
    let [then, now] = [then, table(settings)].map(with_target);
    let mut keys =
        keys(&[Optimizer::augment_args, Loss::augment_args, Precision::augment_args, Data::augment_args]);
    keys.extend(["seq", DEVICE].map(String::from));
    // The training data are compared by their fingerprint. The evaluations of a run change no step.
    keys.retain(|key| !["train", "eval-every"].contains(&key.as_str()));
    let notes = differences(&keys, &then, &now)
        .map(|[then, now]| format!("the run in {} had {then}, and it continues with {now}", from.display()));
    notes.chain(changed_end(from, &then, &now)).collect()
}

/// Returns the flags with the device that `--device auto` chose.
fn with_target(mut flags: Table) -> Table {
    if let Some(device) = flags.get_mut(DEVICE).filter(|device| device.as_str() == Some("auto")) {
        *device = DeviceChoice::Auto.target().name().into();
    }
    flags
}

/// Returns a note if the same schedule ends at another step, because the run has another length.
fn changed_end(from: &Path, then: &Table, now: &Table) -> Option<String> {
    let schedule = |table: &Table| Some(table.get("lr-schedule")?.as_str()?.to_owned());
    let length = |table: &Table| match (table.get("steps"), table.get("epochs")) {
        (None, None) => "one epoch".to_owned(),
        (Some(steps), _) => format!("--steps {steps}"),
        (None, Some(epochs)) => format!("--epochs {epochs}"),
    };
    let ends = schedule(now).filter(|now| !now.starts_with("constant") && !now.contains("steps="))?;
    if schedule(then)? != ends || length(then) == length(now) {
        return None;
    }
    Some(format!(
        "the learning-rate schedule of the run in {} ended with {}, and it ends with {} now, so its learning \
         rates differ; steps=N in --lr-schedule fixes the schedule's length",
        from.display(),
        length(then),
        length(now)
    ))
}

/// The flag of the device.
const DEVICE: &str = "device";
/// The flag of the convention of labels.
const LABELS_FROM: &str = "labels-from";

/// The settings as a config file has them.
fn table(settings: &Settings) -> Table {
    settings.to_toml().ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The keys of groups of flags.
fn keys(groups: &[fn(Command) -> Command]) -> Vec<String> {
    let flags = groups.iter().fold(Command::new("flags"), |command, augment| augment(command));
    flags.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned).collect()
}

/// The flags that differ between an earlier command and this one, as both give them.
fn differences(keys: &[String], then: &Table, now: &Table) -> impl Iterator<Item = [String; 2]> {
    let differ = keys.iter().filter(move |key| then.get(*key) != now.get(*key));
    differ.map(move |key| [then, now].map(|table| shown(key, table.get(key))))
}

/// A flag as it is given on a command line.
fn shown(key: &str, value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Boolean(false)) => format!("no --{key}"),
        Some(Value::Boolean(true)) => format!("--{key}"),
        Some(Value::String(text)) => format!("--{key} {text}"),
        Some(Value::Array(items)) => {
            let items: Vec<String> = items.iter().map(|item| shown(key, Some(item))).collect();
            items.join(" ")
        }
        Some(value) => format!("--{key} {value}"),
    }
}

/// Refuses a length below the steps that the run in a folder has done. Returns a note if the run has done exactly this length.
pub(super) fn check_length(
    from: &Path,
    done: u64,
    steps: u64,
    settings: &Settings,
) -> Result<Option<String>, Diagnostic> {
    let from = from.display();
    let asked = match (settings.run.steps, settings.run.epochs) {
        (Some(steps), _) => format!("--steps {steps}"),
        (None, Some(epochs)) => format!("--epochs {epochs} (step {steps})"),
        (None, None) => format!("one epoch (step {steps})"),
    };
    if done > steps {
        let error = Diagnostic::new(format!("the run in {from} is at step {done}, which is after {asked}"));
        return Err(error
            .note(format!(
                "steps are counted from step 0: for {steps} more steps, give --steps {}",
                done + steps
            ))
            .note("to start from step 0, give another folder: -o ANOTHER_DIR"));
    }
    let reached = done == steps && steps > 0;
    Ok(reached
        .then(|| format!("the run in {from} is at step {done}, and {asked} ends there: no step is left")))
}
