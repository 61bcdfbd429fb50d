//! A folder that `compile` wrote: its program, the progress of its run, its checkpoints and its results.

use super::measured::MeasuredText;
use super::prediction::filled;
use super::{PipelineFacts, PredictionFacts};
use crate::failure::Failure;
use crate::output::{EXPORTED, PROFILE};
use crate::training::METRICS;
use checkpoint::Checkpoint;
use ir::machine::{DeviceKind, Machine};
use ir::units::{bytes, count, grouped, milliseconds};
use ir::{Diagnostic, Level, Module, Role, visible};
use program::UpdateTime;
use program::profile::MeasuredPipeline;
use serde::Serialize;
use std::fmt;
use std::fs;
use std::path::Path;
use train::metrics::{StepMetrics, read_metrics};

/// The contents of the folder of a run. Files that are not there are left out.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FolderFacts {
    /// The folder.
    pub path: String,
    /// The program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<CompiledFacts>,
    /// The run, from its metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunFacts>,
    /// Checkpoints, oldest first.
    pub checkpoints: Vec<CheckpointFacts>,
    /// The contents of `plan.json`.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    pub plan: serde_json::Value,
    /// The settings that `--config config.toml` gives again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Files with the result, and their sizes.
    pub results: Vec<(String, u64)>,
    /// The prediction of a step on the machine of the question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction: Option<PredictionFacts>,
    /// The pipeline, if the program has stages and the question is about them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<PipelineFacts>,
    /// The tasks of the pipeline, if a run has measured them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredPipeline>,
    /// The files that cannot be read, each with the reason.
    pub problems: Vec<String>,
}

/// The compiled program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CompiledFacts {
    /// The module's name.
    pub name: String,
    /// The number of states that are parameters.
    pub parameters: usize,
    /// The number of elements of these states.
    pub elements: u64,
    /// The bytes of all states, which a checkpoint holds.
    pub state_bytes: u64,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunFacts {
    /// Steps done.
    pub steps: u64,
    /// The loss of the first step.
    pub first_loss: f64,
    /// The loss of the last step.
    pub last_loss: f64,
    /// The last evaluation: after which step, and its loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_eval: Option<(u64, f64)>,
    /// The best evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_eval: Option<(u64, f64)>,
    /// Steps whose update was left out.
    pub skipped: usize,
    /// The median of the milliseconds of a step.
    pub median_step_ms: f64,
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckpointFacts {
    /// Steps done.
    pub step: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// The fault of a checkpoint that is damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
}

impl FolderFacts {
    /// Gathers the facts about a folder.
    ///
    /// # Errors
    /// The folder was not written by `compile`.
    pub fn of(path: &Path) -> Result<Self, Diagnostic> {
        let mut facts = Self { path: path.display().to_string(), ..Self::default() };
        let program = facts.read(path, "program.ir", ir::text::parse);
        facts.program = program.map(|module| CompiledFacts::of(&module));
        facts.plan = facts.read(path, "plan.json", |text| serde_json::from_str(text)).unwrap_or_default();
        facts.config = facts.read(path, "config.toml", |text| Ok::<_, Diagnostic>(text.to_owned()));
        facts.measured = facts.read(path, PROFILE, |text| serde_json::from_str(text));
        let metrics = path.join(METRICS);
        if metrics.exists() {
            match read_metrics(&metrics) {
                Ok(steps) => facts.run = RunFacts::of(&steps),
                Err(error) => facts.problems.push(error.to_string()),
            }
        }
        facts.checkpoints = checkpoints(&path.join("checkpoints"));
        for name in EXPORTED {
            if let Ok(found) = fs::metadata(path.join(name)) {
                facts.results.push((name.to_string(), found.len()));
            }
        }
        let empty = facts.program.is_none() && facts.run.is_none() && facts.config.is_none();
        if empty && facts.checkpoints.is_empty() && facts.results.is_empty() && facts.problems.is_empty() {
            let error = Diagnostic::new(format!("{} was not written by `compile`", path.display()));
            return Err(error.note("the folder has no program.ir, config.toml, metrics.jsonl or checkpoints"));
        }
        Ok(facts)
    }

    /// Predicts a step of the folder's program on a machine. If the program has stages, its pipeline is predicted, and without a machine the
    /// prediction is for the device that passes assume.
    ///
    /// # Errors
    /// A program that is not valid, because the folder's file was changed; an operator without a kernel for the device.
    pub fn predict(&mut self, program: &Module, machine: Option<&Machine>) -> Result<(), Failure> {
        ir::verify::verify(program)?;
        if program.level == Level::Lowered {
            return Err(
                Diagnostic::new("program.ir is a lowered program, which `compile` does not write").into()
            );
        }
        self.pipeline = PipelineFacts::of_step(&filled(program), machine)?;
        let Some(machine) = machine.filter(|_| self.pipeline.is_none()) else { return Ok(()) };
        let planned = self.plan.get("microbatches").and_then(serde_json::Value::as_u64);
        let is_early = self.plan.get("update").is_some_and(|update| update == "early");
        let update = if is_early { UpdateTime::Early } else { UpdateTime::Late };
        self.prediction = Some(PredictionFacts::of(&filled(program), planned.unwrap_or(1), update, machine)?);
        Ok(())
    }

    /// The kind of the device that the run was on.
    fn device_kind(&self) -> DeviceKind {
        let settings = self.config.as_deref().and_then(|config| config.parse::<toml::Table>().ok());
        let device = settings.as_ref().and_then(|settings| settings.get("device")?.as_str());
        if device == Some("cuda") { DeviceKind::Gpu } else { DeviceKind::Cpu }
    }

    /// Compares the time of the run with its prediction.
    fn compare(&self, f: &mut fmt::Formatter<'_>, prediction: &PredictionFacts) -> fmt::Result {
        let Some(run) = &self.run else {
            return writeln!(f, "  no step was run, so there is no time to compare the prediction with");
        };
        let measured = milliseconds(run.median_step_ms);
        if prediction.kind != self.device_kind() {
            let was = if self.device_kind() == DeviceKind::Gpu { "was" } else { "was not" };
            return writeln!(
                f,
                "  the run {was} on a GPU (--device cuda): its {measured} per step cannot be compared with the prediction"
            );
        }
        let times = run.median_step_ms / prediction.step_ms;
        let mfu = 100.0 * prediction.throughput.mfu / times;
        writeln!(f, "  the run took {measured} per step, {times:.2} times the predicted time: MFU {mfu:.1} %")
    }

    /// Reads a file of the folder, if it is there. A file that cannot be read is a problem.
    fn read<T, E: fmt::Display>(
        &mut self,
        path: &Path,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let read = match fs::read_to_string(path.join(name)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => Err(error.to_string()),
            Ok(text) => parse(&text).map_err(|error| error.to_string()),
        };
        self.problems.extend(read.as_ref().err().map(|error| format!("{name}: {error}")));
        read.ok()
    }
}

impl CompiledFacts {
    fn of(module: &Module) -> Self {
        let parameters = || module.states.values().filter(|state| state.role == Role::Parameter);
        let sum = |sizes: &mut dyn Iterator<Item = u64>| sizes.fold(0, u64::saturating_add);
        Self {
            name: module.name.clone(),
            parameters: parameters().count(),
            elements: sum(&mut parameters().filter_map(|state| state.ty.numel())),
            state_bytes: sum(&mut module.states.values().filter_map(|state| state.ty.bytes())),
        }
    }
}

impl RunFacts {
    fn of(steps: &[StepMetrics]) -> Option<Self> {
        let (first, last) = (steps.first()?, steps.last()?);
        let mut times: Vec<f64> = steps.iter().map(|step| step.step_ms).collect();
        times.sort_by(f64::total_cmp);
        let evals = || steps.iter().filter_map(|step| Some((step.step, step.eval_loss?)));
        Some(Self {
            steps: last.step,
            first_loss: first.loss,
            last_loss: last.loss,
            last_eval: evals().next_back(),
            best_eval: evals().filter(|(_, loss)| loss.is_finite()).min_by(|a, b| a.1.total_cmp(&b.1)),
            skipped: steps.iter().filter(|step| step.skipped).count(),
            median_step_ms: times[times.len() / 2],
        })
    }
}

/// The folders `step-N`, by N.
fn checkpoints(folder: &Path) -> Vec<CheckpointFacts> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<CheckpointFacts> = entries
        .filter_map(|entry| {
            let step = entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok()?;
            let files = fs::read_dir(entry.path()).into_iter().flatten().flatten();
            let bytes = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
            let damaged = Checkpoint::open(&entry.path()).err().map(|error| error.to_string());
            Some(CheckpointFacts { step, bytes, damaged })
        })
        .collect();
    found.sort_by_key(|checkpoint| checkpoint.step);
    found
}

impl fmt::Display for FolderFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", visible(&self.path))?;
        let planned = |path: &str| self.plan.pointer(path).and_then(serde_json::Value::as_u64);
        let passes = self.plan.get("pipeline").and_then(serde_json::Value::as_str);
        let evaluations = self.run.as_ref().and_then(|run| run.last_eval.zip(run.best_eval));
        let mut rows: Vec<(&str, String)> = vec![];
        rows.extend(self.program.as_ref().map(|program| {
            let CompiledFacts { name, parameters, elements, state_bytes } = program;
            let (states, elements, size) =
                (count(*parameters, "parameter"), grouped(*elements), bytes(*state_bytes));
            ("program", format!("{name}: {states}, {elements} elements, {size} of state"))
        }));
        rows.extend(planned("/microbatch").zip(planned("/microbatches")).map(|(batch, microbatches)| {
            ("step", format!("{microbatches} x {}", count(batch as usize, "sample")))
        }));
        rows.extend(planned("/memory/peak").map(|peak| ("memory", format!("{} planned", bytes(peak)))));
        rows.extend(passes.map(|passes| ("passes", passes.to_owned())));
        rows.extend(self.run.as_ref().map(|run| {
            let RunFacts { first_loss, last_loss, skipped, .. } = run;
            let skipped = if *skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
            let steps = count(run.steps as usize, "step");
            let losses = format!("loss {first_loss:.4} at the first step, {last_loss:.4} at the last");
            ("run", format!("{steps}{skipped}; {losses}"))
        }));
        rows.extend(evaluations.map(|((at, last), (best_at, best))| {
            ("evaluation", format!("{last:.4} after step {at}; best {best:.4} after step {best_at}"))
        }));
        rows.extend(self.checkpoints.iter().map(|CheckpointFacts { step, bytes: size, damaged }| {
            let damaged = damaged.as_ref().map(|why| format!(", damaged: {why}")).unwrap_or_default();
            ("checkpoint", format!("after {}: {}{damaged}", count(*step as usize, "step"), bytes(*size)))
        }));
        rows.extend(self.results.iter().map(|(name, size)| ("result", format!("{name}: {}", bytes(*size)))));
        rows.extend(self.problems.iter().map(|problem| ("cannot read", problem.clone())));
        rows.iter().try_for_each(|(label, text)| writeln!(f, "  {label:13}{}", visible(text)))?;
        if let Some(prediction) = &self.prediction {
            write!(f, "{prediction}")?;
            self.compare(f, prediction)?;
        }
        let pipeline = self.pipeline.as_ref().map(ToString::to_string);
        let measured = self.measured.as_ref().map(|measured| format!("\n{}", MeasuredText(measured)));
        let config = self.config.as_ref().map(|config| {
            let lines = config.lines().map(|line| format!("  {}\n", visible(line)));
            format!("\nsettings (config.toml)\n{}", lines.collect::<String>())
        });
        [pipeline, measured, config].into_iter().flatten().try_for_each(|section| f.write_str(&section))
    }
}
