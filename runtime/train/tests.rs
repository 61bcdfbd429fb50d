//! Runs of a bigram model on the CPU: the effects of a stop, a kill, another division into microbatches, and every fault.

mod against_interp;
mod best;
mod evaluation;
mod faults;
mod going_on;
mod in_file;
mod on_gpu;
mod on_ranks;
mod programs;
mod scaling;
mod short;

use super::{
    EvalHistory, Lead, Outcome, Resumed, RunProgram, Schedule, Session, Surroundings, TrainError,
    TrainingRun, cut_back, resume, train,
};
use crate::metrics::{MetricsWriter, StepMetrics, read_metrics};
use crate::progress::Progress;
use checkpoint::{Checkpoints, DataFiles, EvalConditions, PendingFingerprint, StateBytes, initial_states};
use comm::disturbed::Disturbed;
use cpu::ranks::{on_processor, with_communicators};
use data::{DataSource, InputSpec, LabelSpec, Loader, LoaderOptions, ModelSpec};
use ir::interp::Missing;
use ir::{DType, Diagnostic, Module, Tier};
use program::device::{Device, ProgramId};
use program::lower::{LowerOptions, lower};
use program::{Microbatches, Program, UpdateTime};
use ranks::Ranks;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const GLOBAL_BATCH: u64 = 4;
const SEQUENCE: u64 = 8;
const VOCABULARY: u64 = 256;

/// Returns the text of an error with its notes.
fn told(error: impl Into<Diagnostic>) -> String {
    error.into().to_string()
}

/// A folder with a corpus, and the settings of a run in it.
struct Setup {
    folder: tempfile::TempDir,
    /// The text of the training program.
    program: &'static str,
    microbatches: u64,
    schedule: Schedule,
    resume: bool,
    /// The step from which to resume, if not the last one that was saved.
    resume_at: Option<u64>,
    /// Checkpoints from which to resume, if not the run's own.
    resume_from: Option<Checkpoints>,
    /// Replacements in the training program's text.
    edits: Vec<(&'static str, &'static str)>,
    /// A program that follows: the step at which it begins, and the replacements in its text.
    then: Option<(u64, Vec<(&'static str, &'static str)>)>,
    /// Weights of a new run in place of the program's own.
    given: StateBytes,
    on_line: OnLine,
    /// The fault of rank 1, if there are ranks.
    fault: Option<Fault>,
    /// The stand-in of a GPU, if the run is on one.
    gpu: Option<on_gpu::Gpu>,
    /// The conditions of its evaluations, which checkpoints name.
    evaluation: EvalConditions,
    /// The time at which its updates run. Early updates need steps of one microbatch.
    update: UpdateTime,
}

/// The collective at which a rank panics or returns an error.
#[derive(Clone, Copy)]
struct Fault {
    at: usize,
    panics: bool,
}

/// The event that happens when the line of a step is shown.
#[derive(Clone)]
enum OnLine {
    Nothing,
    Do(&'static str, Arc<dyn Fn() + Send + Sync>),
    Stop(&'static str),
    Kill(&'static str),
}

fn setup() -> Setup {
    let folder = tempfile::tempdir().unwrap();
    let words = ["in", "the", "beginning", "god", "created", "heaven", "and", "earth"];
    let text: Vec<&str> = (0..600usize).map(|i| words[i * i % 7 + i % 2]).collect();
    std::fs::write(folder.path().join("corpus.txt"), text.join(" ")).unwrap();
    let schedule = Schedule {
        start: 0,
        steps: 20,
        eval_every: Some(5),
        save_every: Some(5),
        saves_beside: true,
        ..Schedule::default()
    };
    let program = include_str!("tests/bigram.ir");
    Setup {
        folder,
        program,
        microbatches: 1,
        schedule,
        resume: false,
        resume_at: None,
        resume_from: None,
        edits: Vec::new(),
        then: None,
        given: StateBytes::new(),
        on_line: OnLine::Nothing,
        fault: None,
        gpu: None,
        evaluation: EvalConditions::default(),
        update: UpdateTime::Late,
    }
}

impl Setup {
    fn corpus(&self) -> PathBuf {
        self.folder.path().join("corpus.txt")
    }

    fn data_files(&self) -> DataFiles {
        DataFiles { train: Some(self.corpus()), ..DataFiles::default() }
    }

    fn metrics_file(&self) -> PathBuf {
        self.folder.path().join("metrics.jsonl")
    }

    fn checkpoints(&self) -> Checkpoints {
        Checkpoints::new(&self.folder.path().join("checkpoints"))
    }

    fn metrics(&self) -> Vec<StepMetrics> {
        read_metrics(&self.metrics_file()).unwrap()
    }

    /// Returns the files of a checkpoint, without the paths of the data, which differ between two tests' folders.
    fn checkpoint(&self, step: u64) -> [Vec<u8>; 2] {
        let path = self.checkpoints().path(step);
        let read = |name: &str| std::fs::read(path.join(name)).unwrap();
        let mut description: serde_json::Value = serde_json::from_slice(&read("checkpoint.json")).unwrap();
        for file in description["data"]["files"].as_array_mut().unwrap() {
            file.as_object_mut().unwrap().remove("place");
        }
        let description_fields = description.as_object_mut().unwrap();
        // The checksum covers the paths too.
        description_fields.remove("checksum");
        // The evaluations are compared through the metrics of a run instead.
        description_fields.remove("evaluations");
        let files = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
        let mut files: Vec<String> = files.map(|name| name.to_str().unwrap().to_owned()).collect();
        files.retain(|name| name.starts_with("state"));
        files.sort();
        let states = files.iter().flat_map(|name| read(name)).collect();
        [states, description.to_string().into_bytes()]
    }

    /// Parses the program in the text, for this number of microbatches.
    fn module(&self, text: &str, edits: &[(&str, &str)]) -> Module {
        let rows = GLOBAL_BATCH / self.microbatches;
        let labels = rows * SEQUENCE;
        let mut text = text
            .replace("[2, 8", &format!("[{rows}, 8"))
            .replace("value = 0.0625", &format!("value = {:?}", 1.0 / labels as f64))
            .replace("value = 16.0", &format!("value = {:?}", labels as f64));
        for (from, to) in edits {
            assert!(text.contains(from), "nothing to edit: {from}");
            text = text.replace(from, to);
        }
        ir::text::parse(&text).unwrap()
    }

    fn train_module(&self) -> Module {
        self.module(self.program, &self.edits)
    }

    fn loader(&self) -> Loader {
        self.loader_of(self.microbatches)
    }

    /// Returns the description of the program's inputs and labels.
    fn spec(&self) -> ModelSpec {
        let dims = vec![GLOBAL_BATCH / self.microbatches, SEQUENCE];
        let (tokens, labels) = ("tokens".to_owned(), "labels".to_owned());
        let (dtype, batched) = (DType::I64, true);
        let input =
            InputSpec { name: tokens, dtype, dims: dims.clone(), batched, vocabulary: Some(VOCABULARY) };
        let (classes, ignore_index) = (Some(VOCABULARY), Some(-100));
        let label = LabelSpec { name: labels, dtype, dims, classes, ignore_index };
        ModelSpec { inputs: vec![input], label: Some(label), ..ModelSpec::default() }
    }

    /// Returns a loader with another number of the same microbatches.
    fn loader_of(&self, microbatches: u64) -> Loader {
        let options = LoaderOptions { seed: 3, microbatches, ..LoaderOptions::default() };
        Loader::new(&self.spec(), &DataSource::Path(self.corpus()), &options).unwrap()
    }

    /// Runs as the driver does, from the start or from the newest checkpoint.
    fn go(&self) -> Result<Outcome, TrainError> {
        self.go_on_device(|device, _| device)
    }

    /// Does the same as [`Self::go`] with another device in place of each rank's own, which may stop the run.
    fn go_on_device(
        &self,
        exchange: impl Fn(Box<dyn Device + Send>, Arc<AtomicBool>) -> Box<dyn Device + Send>,
    ) -> Result<Outcome, TrainError> {
        let module = self.train_module();
        let loader = self.loader();
        let (start, values, data, mut history) = self.start(&module, &loader)?;
        let stop = Arc::new(AtomicBool::new(false));
        let next = self.then.as_ref().map(|(_, edits)| self.module(self.program, edits));
        let programs = |(index, (first_step, module))| RunProgram {
            first_step,
            module,
            train: ProgramId(2 * index),
            eval: Some(ProgramId(2 * index + 1)),
            short_eval: None,
            begins: "the next program begins".to_owned(),
        };
        let modules = [(0, &module)].into_iter().chain(self.then.iter().map(|(step, _)| *step).zip(&next));
        let programs: Vec<RunProgram> = modules.enumerate().map(programs).collect();
        let mut ranks = self.ranks(&programs).exchange(|_, device| exchange(device, stop.clone()));
        let screen = Screen { on_line: self.on_line.clone(), stop: stop.clone(), seen: String::new() };
        let lead = Lead {
            surroundings: Surroundings::new(vec![self.corpus()], Vec::new(), None),
            data,
            metrics: MetricsWriter::append(&self.metrics_file())?,
            progress: Progress::lines(Box::new(screen), self.schedule.steps, Duration::ZERO),
            history: {
                history.complete(&self.metrics_file())?;
                history
            },
        };
        let mut given: Vec<_> = (1..ranks.count()).map(|_| (values.clone(), None)).collect();
        given.insert(0, (values, Some(lead)));
        let outcomes = ranks.run(given, |rank, (values, lead)| {
            let mut session = programs[0].session(rank)?;
            session.write_states(values)?;
            let (module, loader, checkpoints) = (&module, &loader, self.checkpoints());
            let (schedule, outcome) = (Schedule { start, ..self.schedule }, Outcome::default());
            let run =
                TrainingRun { module, session, loader, checkpoints, lead, log: None, schedule, outcome };
            train(run, &programs[1..], &stop)
        });
        Ok(outcomes?.remove(0).0)
    }

    /// Returns the training program and the evaluation program. With several devices, and with states outside of the device's memory, the
    /// evaluation program is the training program without its updates.
    fn programs(&self, module: &Module) -> Vec<Arc<Program>> {
        let mut forward = self.module(include_str!("tests/bigram.forward.ir"), &[]);
        let is_beside = module.states.values().any(|state| state.tier != Tier::Device);
        if module.mesh.devices() > 1 || is_beside {
            forward = module.clone();
            forward.states.values_mut().for_each(|state| state.output = None);
        }
        forward.outputs.retain(|output| ["loss.sum", "loss.weight"].contains(&output.name.as_str()));
        let target = if self.gpu.is_some() { cuda::TARGET } else { cpu::TARGET };
        let (update, microbatches) = match self.update {
            UpdateTime::Late => (UpdateTime::Late, Microbatches::Many),
            UpdateTime::Early => (UpdateTime::Early, Microbatches::One),
        };
        let options = LowerOptions { update, microbatches, ..LowerOptions::of(target) };
        let program = Arc::new(lower(module, &options).unwrap());
        let options = LowerOptions { states_of: Some(&program), ..LowerOptions::of(target) };
        let eval = Arc::new(lower(&forward, &options).unwrap());
        vec![program, eval]
    }

    /// Returns the programs on the devices of their mesh.
    fn ranks(&self, run: &[RunProgram]) -> Ranks {
        let programs: Vec<Arc<Program>> =
            run.iter().flat_map(|program| self.programs(program.module)).collect();
        if let Some(gpu) = &self.gpu {
            return gpu.ranks(programs);
        }
        let Some(Fault { at, panics }) = self.fault else {
            return on_processor(programs, Some(2), None, Some(self.folder.path())).unwrap();
        };
        let all = vec![programs.clone(); programs[0].mesh.devices() as usize];
        let faulty = move |inner: Arc<dyn comm::Communicator>| match inner.rank() {
            1 => Disturbed::within(inner, at, panics),
            _ => inner,
        };
        with_communicators(all, Some(2), None, None, faulty).unwrap()
    }

    fn start(
        &self,
        module: &Module,
        loader: &Loader,
    ) -> Result<(u64, StateBytes, PendingFingerprint, EvalHistory), TrainError> {
        if !self.resume {
            let states = initial_states(module, 3, Missing::Refuse, self.given.clone()).unwrap();
            let history = EvalHistory::new(self.evaluation.clone());
            return Ok((0, states, PendingFingerprint::start(self.data_files()), history));
        }
        let checkpoints = self.resume_from.clone().unwrap_or(self.checkpoints());
        let resumed =
            resume(&checkpoints, self.resume_at, module, loader, &self.data_files(), &self.evaluation, None)?;
        let Resumed { step, values, data, mut history, .. } = resumed;
        if self.resume_from.is_some() {
            history.forget();
        }
        cut_back(self.resume_at.and(Some(&checkpoints)), &self.metrics_file(), step)?;
        Ok((step, values, data, history))
    }
}

/// Receives every line that the user sees.
struct Screen {
    on_line: OnLine,
    stop: Arc<AtomicBool>,
    seen: String,
}

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Lines arrive in pieces.
        self.seen.push_str(&String::from_utf8_lossy(bytes));
        match &self.on_line {
            OnLine::Stop(line) if self.seen.contains(line) => self.stop.store(true, Ordering::Relaxed),
            OnLine::Do(line, act) if self.seen.contains(line) => act(),
            OnLine::Kill(line) if self.seen.contains(line) => panic!("killed, as the test asks for"),
            _ => {}
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the numbers of a run that do not depend on the clock, as bits.
fn numbers(metrics: &[StepMetrics]) -> Vec<(u64, [u64; 3], Option<u64>)> {
    let bits = |step: &StepMetrics| {
        let numbers = [step.loss, step.lr, step.grad_norm].map(f64::to_bits);
        (step.step, numbers, step.eval_loss.map(f64::to_bits))
    };
    metrics.iter().map(bits).collect()
}
