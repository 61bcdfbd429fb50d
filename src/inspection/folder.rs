//! What a folder holds that `compile` wrote: how far its run came, and what can be taken from it.

use super::measured::MeasuredPipeline;
use super::prediction::{filled, milliseconds};
use super::units::{bytes, count, grouped};
use super::{PipelineFacts, PredictionFacts};
use crate::export;
use crate::failure::Failure;
use crate::output::PROFILE;
use checkpoint::Checkpoint;
use ir::machine::{DeviceKind, Machine};
use ir::{Diagnostic, Level, Module, Role, visible};
use program::UpdateTime;
use serde::Serialize;
use std::fmt;
use std::fs;
use std::path::Path;
use train::metrics::{StepMetrics, read_metrics};

/// A folder of a run. What is not there is left out.
#[derive(Clone, Debug, Serialize)]
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
    /// What `plan.json` says.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    pub plan: serde_json::Value,
    /// The settings that `--config config.toml` gives again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Files with the result, and their sizes.
    pub results: Vec<(String, u64)>,
    /// What a step takes on the device that was asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction: Option<PredictionFacts>,
    /// The pipeline, if the program has stages and they were asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<PipelineFacts>,
    /// The tasks of the pipeline, if a run has measured them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredPipeline>,
    /// Files that are there and cannot be read, and why.
    pub problems: Vec<String>,
}

/// The compiled program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CompiledFacts {
    /// The module's name.
    pub name: String,
    /// How many states are parameters.
    pub parameters: usize,
    /// Their elements.
    pub elements: u64,
    /// Bytes of all states: what a checkpoint holds.
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
    /// Milliseconds of a step: half of all take longer.
    pub median_step_ms: f64,
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckpointFacts {
    /// Steps done.
    pub step: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// What is wrong with it, if it is not whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
}

impl FolderFacts {
    /// Looks at a folder. Errors: one that `compile` did not write.
    pub fn of(path: &Path) -> Result<Self, Diagnostic> {
        let mut facts = Self {
            path: path.display().to_string(),
            program: None,
            run: None,
            checkpoints: vec![],
            plan: serde_json::Value::Null,
            config: None,
            results: vec![],
            prediction: None,
            pipeline: None,
            measured: None,
            problems: vec![],
        };
        let program = facts.read(path, "program.ir").map(|text| ir::text::parse(&text));
        let plan = facts.read(path, "plan.json").map(|text| serde_json::from_str(&text));
        facts.config = facts.read(path, "config.toml");
        match program.transpose() {
            Ok(program) => facts.program = program.map(|module| CompiledFacts::of(&module)),
            Err(error) => facts.problems.push(format!("program.ir: {error}")),
        }
        match plan.transpose() {
            Ok(plan) => facts.plan = plan.unwrap_or_default(),
            Err(error) => facts.problems.push(format!("plan.json: {error}")),
        }
        match MeasuredPipeline::in_folder(path) {
            Ok(measured) => facts.measured = measured,
            Err(error) => facts.problems.push(format!("{PROFILE}: {error}")),
        }
        let metrics = path.join("metrics.jsonl");
        if metrics.exists() {
            match read_metrics(&metrics) {
                Ok(steps) => facts.run = RunFacts::of(&steps),
                Err(error) => facts.problems.push(error.to_string()),
            }
        }
        facts.checkpoints = checkpoints(&path.join("checkpoints"));
        for name in export::FILES {
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

    /// Predicts a step of the folder's program on a machine. Of a program with stages, its pipeline: without a machine by the times of the
    /// device that passes assume.
    ///
    /// # Errors
    /// A program that is not valid: the folder's file was changed. An operator for which the device has no kernel.
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

    /// The run beside its prediction.
    fn compare(&self, f: &mut fmt::Formatter<'_>, prediction: &PredictionFacts) -> fmt::Result {
        let Some(run) = &self.run else {
            return writeln!(f, "  no step was run, so there is no time to compare the prediction with");
        };
        let measured = milliseconds(run.median_step_ms);
        if prediction.kind != self.device_kind() {
            let was = match self.device_kind() {
                DeviceKind::Cpu => "was not on a GPU (--device cuda)",
                DeviceKind::Gpu => "was on a GPU (--device cuda)",
            };
            return writeln!(
                f,
                "  the run {was}: its {measured} per step cannot be compared with the prediction"
            );
        }
        let times = run.median_step_ms / prediction.step_ms;
        let mfu = 100.0 * prediction.mfu / times;
        writeln!(f, "  the run took {measured} per step, {times:.2} times the predicted time: MFU {mfu:.1} %")
    }

    fn read(&mut self, path: &Path, name: &str) -> Option<String> {
        match fs::read_to_string(path.join(name)) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                self.problems.push(format!("{name}: {error}"));
                None
            }
        }
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
        let evals = || steps.iter().filter_map(|step| Some((step.step, step.eval_loss?)));
        Some(Self {
            steps: last.step,
            first_loss: first.loss,
            last_loss: last.loss,
            last_eval: evals().next_back(),
            best_eval: evals().filter(|(_, loss)| loss.is_finite()).min_by(|a, b| a.1.total_cmp(&b.1)),
            skipped: steps.iter().filter(|step| step.skipped).count(),
            median_step_ms: median(steps.iter().map(|step| step.step_ms).collect()),
        })
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
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
        if let Some(program) = &self.program {
            let (states, elements) = (count(program.parameters, "parameter"), grouped(program.elements));
            let size = bytes(program.state_bytes);
            writeln!(
                f,
                "  program      {}: {states}, {elements} elements, {size} of state",
                visible(&program.name)
            )?;
        }
        let planned = |path: &str| self.plan.pointer(path).and_then(serde_json::Value::as_u64);
        if let (Some(batch), Some(microbatches)) = (planned("/microbatch"), planned("/microbatches")) {
            writeln!(f, "  step         {microbatches} x {}", count(batch as usize, "sample"))?;
        }
        if let Some(peak) = planned("/memory/peak") {
            writeln!(f, "  memory       {} planned", bytes(peak))?;
        }
        if let Some(pipeline) = self.plan.get("pipeline").and_then(serde_json::Value::as_str) {
            writeln!(f, "  passes       {}", visible(pipeline))?;
        }
        if let Some(run) = &self.run {
            let skipped = if run.skipped > 0 { format!(", {} skipped", run.skipped) } else { String::new() };
            let (first, last) = (run.first_loss, run.last_loss);
            let steps = count(run.steps as usize, "step");
            writeln!(
                f,
                "  run          {steps}{skipped}; loss {first:.4} at the first step, {last:.4} at the last"
            )?;
        }
        if let Some(((at, last), (best_at, best))) =
            self.run.as_ref().and_then(|run| run.last_eval.zip(run.best_eval))
        {
            writeln!(f, "  evaluation   {last:.4} after step {at}; best {best:.4} after step {best_at}")?;
        }
        for checkpoint in &self.checkpoints {
            let damaged = checkpoint.damaged.as_ref().map(|why| format!(", damaged: {}", visible(why)));
            let size = bytes(checkpoint.bytes);
            writeln!(
                f,
                "  checkpoint   after {}: {size}{}",
                count(checkpoint.step as usize, "step"),
                damaged.unwrap_or_default()
            )?;
        }
        for (name, size) in &self.results {
            writeln!(f, "  result       {name}: {}", bytes(*size))?;
        }
        self.problems.iter().try_for_each(|problem| writeln!(f, "  cannot read  {}", visible(problem)))?;
        if let Some(prediction) = &self.prediction {
            write!(f, "{prediction}")?;
            self.compare(f, prediction)?;
        }
        if let Some(pipeline) = &self.pipeline {
            write!(f, "{pipeline}")?;
        }
        if let Some(measured) = &self.measured {
            write!(f, "\n{measured}")?;
        }
        if let Some(config) = &self.config {
            writeln!(f, "\nsettings (config.toml)")?;
            config.lines().try_for_each(|line| writeln!(f, "  {}", visible(line)))?;
        }
        Ok(())
    }
}
