//! `trainyard inspect`: the facts about a model or an output folder.

mod written;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use ir::machine::{Machine, Preset};
use ir::{Diagnostic, Module, graphviz};
use onnx::program::Header;
use onnx::proto::ModelProto;
use program::profile::MeasuredPipeline;
use serde::Serialize;

use super::report::{self, Outcome};
use crate::compilation::Source;
use crate::compiler::{self, Facts, Job, On};
use crate::config::shapes::positive_count;
use crate::config::{CompileFlags, Look, TargetDevice};
use crate::failure::Failure;
use crate::inspection::{FolderFacts, Inspection, PipelineFacts, PredictionFacts, Question, program_after};
use crate::output::Folder;
use crate::plan::MemoryPlan;

const EXAMPLES: &str = "\
Examples:
  List parameters with the reason for each, operators, FLOPs and memory:
    trainyard inspect gpt2.onnx

  Explain why a tensor is or is not a parameter:
    trainyard inspect gpt2.onnx --why transformer.wpe.weight

  Show the memory and the traffic of four devices, and explain the sharding of a tensor:
    trainyard inspect gpt2.onnx --mesh dp=2,tp=2 --zero 1
    trainyard inspect gpt2.onnx --mesh dp=2,tp=2 --why transformer.h.0.mlp.c_fc.weight

  Predict the time of a step on an H200, and compare a run with the prediction:
    trainyard inspect gpt2.onnx --microbatch 8 --bf16 --target h200
    trainyard inspect gpt2.trainyard --target h200:bandwidth=4.2,multiply=740

  Predict a step on the cluster that a file describes:
    trainyard inspect gpt2.onnx --mesh dp=4,tp=8 --cluster cluster.toml

  Print the program after one pass, with its dims bound:
    trainyard inspect gpt2.onnx --bind batch=8,seq=128 --after canonicalize

  Write JSON, or a graph for Graphviz:
    trainyard inspect gpt2.onnx --format json
    trainyard inspect mlp.onnx --format dot

  Write the program after one pass as an ONNX file, for Netron:
    trainyard inspect gpt2.onnx --mesh dp=2,tp=2 --after spmd --format onnx -o gpt2.spmd.onnx

  Show the stages of a pipeline and their timetable, and draw the timetable as a page:
    trainyard inspect gpt2.onnx --mesh pp=4 --schedule zb-v --global-batch 8 --microbatch 1
    trainyard inspect gpt2.onnx --mesh pp=4 --config trainyard.toml --format html > page.html";

/// Arguments of `inspect`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct Inspect {
    /// The model (an ONNX file), or a folder that `compile` wrote
    #[arg(value_name = "MODEL.onnx|DIR")]
    pub subject: PathBuf,
    /// Read flags from a TOML file, or from DeepSpeed's JSON (FILE.json); flags on the command line override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Predict the time of a step on this device, command by command, and its memory, energy and cost: h200, h100, a100, a100-40,
    /// v100, v100-16 or cpu, or the device that a file describes; KEY=X replaces an assumed rate by a measured one: bandwidth
    /// (TB/s read and written), multiply, convolve and attention (TFLOP/s in half precision), link (GB/s each way), launch (µs)
    #[arg(long, value_name = "NAME[:KEY=X,…]|FILE.toml")]
    pub target: Option<TargetDevice>,
    /// Write the memory plan for --target, or for the processor, to FILE as JSON: every instruction with the memories, the bytes and the
    /// values that it reads and writes, and the order of a GPU's commands
    #[arg(long, value_name = "FILE")]
    pub memory_plan: Option<PathBuf>,
    /// Explain the role and the sharding of the tensor NAME, why the pattern NAME was not found, or whether backward computes the
    /// results of the node NAME again; may be repeated
    #[arg(long, value_name = "NAME")]
    pub why: Vec<String>,
    /// Print the program after PASS
    #[arg(long, value_name = "PASS")]
    pub after: Option<String>,
    /// Steps of the run, over which a schedule of the learning rate without a length of its own runs [default: 1000 after a warm-up]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub steps: Option<u64>,
    /// The flags of the compilation.
    #[command(flatten)]
    pub compile: CompileFlags,
    /// Looking at the compilation.
    #[command(flatten)]
    pub look: Look,
}

/// The format of the output.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
    /// The program as a graph, for Graphviz
    Dot,
    /// The predicted step on --target or --cluster, or the timetable of a pipeline, as a timeline, for Perfetto; of the folder of a
    /// run with --profile, the measured timetable too
    Perfetto,
    /// The timetable of a pipeline as a page
    Html,
    /// The program as an ONNX file, for Netron
    Onnx,
}

/// The facts that can be drawn: a predicted step, a pipeline, and the tasks of a pipeline that a run has measured.
type Drawn<'a> = (Option<&'a PredictionFacts>, Option<&'a PipelineFacts>, Option<&'a MeasuredPipeline>);

/// The length of the run for which a schedule without a length of its own is shown. Nothing else depends on it.
const SHOWN_STEPS: u64 = 1000;

/// The output of `inspect`.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// The text for standard output.
    pub text: String,
    /// The program as a model, with --format onnx.
    pub model: Option<Box<ModelProto>>,
    /// The memory plan, with --memory-plan.
    pub memory_plan: Option<Box<MemoryPlan>>,
    /// All reasons why the model cannot be imported or trained.
    pub reasons: Vec<Diagnostic>,
}

impl Inspect {
    /// Runs `inspect`, and writes its output.
    ///
    /// # Errors
    /// As [`Inspect::output`]; the reasons why a model cannot be imported or trained.
    pub fn run(&self) -> Result<Outcome, Failure> {
        let output = self.output()?;
        self.write(&output)?;
        if let (Some(path), Some(plan)) = (&self.memory_plan, &output.memory_plan) {
            plan.write(path)?;
        }
        if output.reasons.is_empty() { Ok(Outcome::Done) } else { Err(output.reasons.into()) }
    }

    /// Refuses to write the output over an input: a model, whose files are in use, or a file of the folder in question.
    fn check_targets(&self) -> Result<(), Diagnostic> {
        let mut reads = vec![self.subject.clone()];
        if self.subject.is_dir() {
            reads.extend(Folder::new(&self.subject).files());
        }
        let targets = [("-o", &self.output), ("--memory-plan", &self.memory_plan)];
        let mut targets = targets.into_iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?)));
        targets.try_for_each(|(flag, path)| Folder::check_target(flag, path, &reads))
    }

    /// Returns the facts about the model or folder, in the format asked for.
    ///
    /// # Errors
    /// A file that cannot be loaded, flags that contradict each other, names that do not exist.
    pub fn output(&self) -> Result<Output, Failure> {
        if self.subject.is_dir() {
            self.check_targets()?;
            return self.folder();
        }
        let machine = self
            .machine(self.compile.parallel.ranks(), &self.compile.parallel.described().unwrap_or_default())?;
        let job = self.job(machine.as_ref());
        let model = compiler::open(&job)?;
        self.check_targets()?;
        let header = Header::of(&model);
        let question = Question {
            sizes: compiler::sizes_of(&job, &model)?,
            job: &job,
            machine: machine.as_ref(),
            manager: self.look.manager()?,
            lists_memory: self.memory_plan.is_some(),
        };
        if let Some(after) = &self.after {
            let source = Source::import(&self.subject, model, &question.sizes)?;
            let program = program_after(&source, &question, after)?;
            let text = match self.format {
                Format::Dot => graphviz(&program),
                Format::Perfetto => return Err(draws_steps_alone().into()),
                Format::Html => return Err(draws_timetables_alone().into()),
                Format::Onnx => return Output::of_program(&program, &header),
                Format::Text | Format::Json => ir::text::print(&program),
            };
            return Ok(Output::of_text(text));
        }
        let mut found = Inspection::of(model, &question)?;
        let memory_plan = found.memory_plan.take().map(Box::new);
        let output = if self.why.is_empty() {
            let drawn = (found.prediction.as_ref(), found.pipeline.as_ref(), None);
            self.formatted(&found, found.module(), &header, drawn)?
        } else {
            self.answers(&found)?
        };
        Ok(Output { reasons: found.reasons, memory_plan, ..output })
    }

    /// Writes facts in the format asked for. `program` is the program that the facts are about.
    fn formatted(
        &self,
        facts: &(impl Display + Serialize),
        program: Option<&Module>,
        header: &Header,
        (prediction, pipeline, measured): Drawn,
    ) -> Result<Output, Failure> {
        let text = match self.format {
            Format::Text => facts.to_string(),
            Format::Json => report::json(facts)?,
            Format::Dot => program.map(graphviz).unwrap_or_default(),
            Format::Perfetto => self.timeline(prediction, pipeline, measured)?,
            Format::Html => self.page(pipeline)?,
            Format::Onnx => {
                let output = program.map(|program| Output::of_program(program, header));
                return output.unwrap_or_else(|| Ok(Output::default()));
            }
        };
        Ok(Output::of_text(text))
    }

    /// Writes the answers to `--why`.
    fn answers(&self, found: &Inspection) -> Result<Output, Failure> {
        let answers = self.why.iter().map(|name| found.why(name)).collect::<Result<Vec<_>, _>>()?;
        let text = match self.format {
            Format::Text => answers.into_iter().map(|answer| answer.text).collect::<Vec<_>>().join("\n"),
            Format::Json => report::json(&answers)?,
            Format::Dot | Format::Onnx => return Err(draws_no_answers(self.format).into()),
            Format::Perfetto => return Err(draws_steps_alone().into()),
            Format::Html => return Err(draws_timetables_alone().into()),
        };
        Ok(Output::of_text(text))
    }

    /// The job of this command, on the machine of the question.
    fn job(&self, machine: Option<&Machine>) -> Job {
        let device = machine.map_or_else(|| Preset::Cpu.device(), |machine| machine.device().clone());
        let cluster = match machine {
            Some(Machine::Cluster(cluster)) => Some(cluster.clone()),
            Some(Machine::Node(_)) | None => None,
        };
        let facts = Facts { on: On::described(device), cluster, global_batch: None };
        let job = Job::resolve(self.subject.clone(), &self.compile, facts);
        let shown = SHOWN_STEPS + self.compile.optimizer.lr_schedule.least_steps();
        Job { steps: self.steps.unwrap_or(shown), ..job }
    }

    /// The machine of the question, for a mesh of `ranks` ranks.
    ///
    /// # Errors
    /// A faulty description; a mesh that is larger than the cluster.
    fn machine(&self, ranks: u64, mesh: &str) -> Result<Option<Machine>, Failure> {
        let device = self.target.as_ref().map(TargetDevice::device).transpose()?;
        let cluster = self.compile.parallel.cluster_for(ranks, mesh)?;
        Ok(cluster.map(Machine::Cluster).or(device.map(Machine::Node)))
    }

    /// The predicted step or the pipeline as a timeline, with the measured tasks of a run. Empty for a model that cannot be trained, since the
    /// reasons are told.
    fn timeline(
        &self,
        prediction: Option<&PredictionFacts>,
        pipeline: Option<&PipelineFacts>,
        measured: Option<&MeasuredPipeline>,
    ) -> Result<String, Failure> {
        let timeline = pipeline
            .map(|pipeline| pipeline.timeline(measured))
            .or_else(|| prediction.map(PredictionFacts::timeline));
        match timeline {
            Some(timeline) => report::json(&timeline),
            None if self.compile.parallel.stage().is_some() || self.names_machine() => Ok(String::new()),
            None => Err(draws_steps_alone().into()),
        }
    }

    /// The timetable as a page. Empty for a model that cannot be trained, since the reasons are told.
    fn page(&self, pipeline: Option<&PipelineFacts>) -> Result<String, Failure> {
        let name = self.subject.file_name().unwrap_or(self.subject.as_os_str()).to_string_lossy();
        match pipeline {
            Some(pipeline) => Ok(pipeline.html(&name)),
            None if self.compile.parallel.stage().is_some() => Ok(String::new()),
            None => Err(draws_timetables_alone().into()),
        }
    }

    fn folder(&self) -> Result<Output, Failure> {
        let given = [
            ("--after", self.after.is_some()),
            ("--why", !self.why.is_empty()),
            ("--memory-plan", self.memory_plan.is_some()),
        ];
        let flag = given.into_iter().find_map(|(flag, is_given)| is_given.then_some(flag));
        if let Some(flag) = flag {
            let error =
                Diagnostic::new(format!("{flag} needs a model, and {} is a folder", self.subject.display()));
            return Err(error.note("give the model that was compiled into this folder").into());
        }
        let mut found = FolderFacts::of(&self.subject)?;
        let is_drawn = matches!(self.format, Format::Perfetto | Format::Html);
        let is_predicted = self.names_machine() || is_drawn;
        let is_read = is_predicted || matches!(self.format, Format::Dot | Format::Onnx);
        let program = is_read.then(|| written_program(&self.subject)).transpose()?;
        if let Some(program) = program.as_ref().filter(|_| is_predicted) {
            let machine = self.machine(program.ranks(), &program.mesh.to_string())?;
            found.predict(program, machine.as_ref())?;
        }
        let drawn = (found.prediction.as_ref(), found.pipeline.as_ref(), found.measured.as_ref());
        self.formatted(&found, program.as_ref(), &Header::default(), drawn)
    }

    /// Whether a flag names the machine on which a step is predicted.
    fn names_machine(&self) -> bool {
        self.target.is_some() || self.compile.parallel.cluster.is_some()
    }
}

fn draws_steps_alone() -> Diagnostic {
    Diagnostic::new("--format perfetto draws the predicted step")
        .note("remove --after and --why, and give the device: --target h200; or the stages of a pipeline: --mesh pp=2")
}

fn draws_timetables_alone() -> Diagnostic {
    Diagnostic::new("--format html draws the timetable of a pipeline")
        .note("give a model with the stages: --mesh pp=2; or the folder of a run that has stages; and remove --after and --why")
}

fn draws_no_answers(format: Format) -> Diagnostic {
    let name = if format == Format::Onnx { "onnx writes" } else { "dot draws" };
    Diagnostic::new(format!("--why answers in words, and --format {name} a program"))
        .note("remove one of these flags")
}

/// The program in a folder that `compile` wrote.
fn written_program(folder: &Path) -> Result<Module, Diagnostic> {
    let path = folder.join("program.ir");
    let unread = |error: std::io::Error| Diagnostic::new(format!("cannot read the program: {error}"));
    let text = std::fs::read_to_string(&path).map_err(|error| unread(error).in_file(&path))?;
    ir::text::parse(&text).map_err(|error| error.in_file(&path))
}
