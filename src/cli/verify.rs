//! `trainyard verify`: the transformed program against the untransformed graph, or against numbers from elsewhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use ir::{DType, Diagnostic, Module};
use runtime::checkpoint::{StateBytes, load_weights};

use super::report::{self, Failure, Outcome, Severity};
use crate::compilation::{self, Compilation, Source};
use crate::config::value::positive;
use crate::config::{Initial, Look, Loss, Optimizer, Parallel, Precision, PrecisionChoice, Seed, Shapes};
use crate::initialization;
use crate::pipeline::{Flags, Plan};
use crate::sizes;
use crate::verification::against::{self, file::Numbers};
use crate::verification::bisect::{Expected, Stage, bisect};
use crate::verification::report::Report;
use crate::verification::{Subject, Tested, inputs};

const EXAMPLES: &str = "\
Examples:
  Loss, gradients and updated state, all in f64:
    trainyard verify gpt2.onnx --microbatch 2 --global-batch 8

  The CPU backend, as it runs:
    trainyard verify gpt2.onnx --mode cpu

  The program for a GPU, on a machine without one:
    trainyard verify gpt2.onnx --mode cuda --bf16

  The program for a mesh of four devices, which are simulated:
    trainyard verify gpt2.onnx --mesh dp=2,tp=2 --zero 1

  Which pass broke it:
    trainyard verify gpt2.onnx --bisect

  Numbers that another framework computed:
    trainyard verify gpt2.onnx --against gpt2.npz --tolerance 1e-5

Exits with 3 when the largest error is above the tolerance.";

/// Arguments of `verify`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct Verify {
    /// The model: an ONNX file
    #[arg(value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// Read flags from a TOML file; the command line wins
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How the transformed program is run
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    /// Compare with the numbers in FILE: input.NAME, labels, output.NAME, param.NAME, grad.NAME
    #[arg(long, value_name = "FILE.npz")]
    pub against: Option<PathBuf>,
    /// Name the first pass whose result differs
    #[arg(long)]
    pub bisect: bool,
    /// The largest error that passes [default: 1e-9 in mode exact; else 1e-5, with fp16 5e-3, with bf16 5e-2]
    #[arg(long, value_name = "X", value_parser = positive)]
    pub tolerance: Option<f64>,
    /// Write the result as JSON
    #[arg(long)]
    pub json: bool,
    /// Shapes.
    #[command(flatten)]
    pub shapes: Shapes,
    /// The seed of the inputs.
    #[command(flatten)]
    pub seed: Seed,
    /// The weights.
    #[command(flatten)]
    pub initial: Initial,
    /// The optimizer whose step is compared.
    #[command(flatten)]
    pub optimizer: Optimizer,
    /// The loss that is compared.
    #[command(flatten)]
    pub loss: Loss,
    /// The element types.
    #[command(flatten)]
    pub precision: Precision,
    /// The mesh.
    #[command(flatten)]
    pub parallel: Parallel,
    /// Looking at the compilation.
    #[command(flatten)]
    pub look: Look,
}

/// How `verify` runs the transformed program.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The interpreter in f64
    #[default]
    Exact,
    /// The interpreter, rounded to each value's type
    Typed,
    /// The CPU backend
    Cpu,
    /// The program that a GPU runs, run on the processor: slow, and needs a C++ compiler (CXX, or c++)
    Cuda,
}

impl Verify {
    /// The largest error that passes.
    pub fn tolerance(&self) -> f64 {
        // Errors are relative to the largest number of a tensor; what rounds is the coarsest type of a step.
        let coarsest = match self.precision.choice() {
            _ if self.mode == Mode::Exact => return self.tolerance.unwrap_or(1e-9),
            PrecisionChoice::Bf16 => DType::BF16,
            _ if self.precision.grad_dtype == Some(DType::BF16) => DType::BF16,
            PrecisionChoice::Fp16 => DType::F16,
            PrecisionChoice::Fp32 => self.precision.grad_dtype.unwrap_or(DType::F32),
        };
        self.tolerance.unwrap_or(match coarsest {
            DType::BF16 => 5e-2,
            DType::F16 => 5e-3,
            _ => 1e-5,
        })
    }
}

impl Mode {
    /// The name of the flag's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Typed => "typed",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

impl Verify {
    /// Compiles the model, compares, and prints what was found. Errors: what is wrong with the model, the flags, the file
    /// of `--against`; weights that are not here.
    pub fn run(&self) -> Result<Outcome, Failure> {
        let found = self.report()?;
        match self.json {
            true => {
                let text = serde_json::to_string_pretty(&found).map_err(anyhow::Error::from)?;
                report::write_out(&format!("{text}\n"))
            }
            false => report::write_out(&found.to_string()),
        }?;
        Ok(if found.passed { Outcome::Done } else { Outcome::Difference })
    }

    /// What [`Self::run`] prints.
    pub fn report(&self) -> Result<Report, Failure> {
        if self.bisect && self.against.is_some() {
            return Err(Diagnostic::new(
                "--bisect compares with the untransformed graph, --against with a file",
            )
            .note("give one of the two")
            .into());
        }
        let model = compilation::open(&self.model)?;
        let bindings = sizes::bindings(&model, &self.shapes, None, self.parallel.data_ranks())?;
        sizes::require_bound(&model, &bindings, false)
            .map_err(|error| error.at(self.model.display().to_string()))?;
        let source = Source::import(&self.model, model, &bindings)?;
        let plan = self.plan(sizes::left_to_passes(&source.model, bindings));
        let mut stages = Vec::new();
        let mut compilation =
            Subject::compile(&source, plan.clone(), &self.look.manager()?, |_, pass, module| {
                if self.bisect {
                    stages.push(Stage { pass: pass.to_owned(), module: module.clone() });
                }
            })?;
        if let Some(rule) = self.initial.init {
            initialization::initialize(&mut compilation, rule);
        }
        report::print(Severity::Warning, &compilation.warnings);
        let given = self.weights(&source, &compilation)?;
        let subject = Subject::new(plan, compilation, self.seed.seed, given)?;
        match &self.against {
            Some(path) => self.against_file(&subject, path),
            None => self.against_reference(&source, &subject, &stages),
        }
    }

    fn against_reference(
        &self,
        source: &Source,
        subject: &Subject,
        stages: &[Stage],
    ) -> Result<Report, Failure> {
        let module = &subject.compilation.training;
        let count = self.microbatches(module)?;
        let microbatches = inputs::draw(&subject.compilation.forward, self.seed.seed, count)?;
        let reference = subject.reference(source)?;
        let expected = subject.run_reference(&reference, &microbatches)?;
        let culprit = || {
            let expected =
                Expected { reference: &reference, execution: &expected, microbatches: &microbatches };
            bisect(subject, stages, self.mode, self.tolerance(), expected)
        };
        let tested = match subject.run(Tested { module, cut: true }, self.mode, &microbatches) {
            // A program that cannot be run is found as one that computes something else: the failure names the pass.
            Err(failure) if self.bisect => return Err(culprit().err().unwrap_or(failure)),
            tested => tested?,
        };
        let mut report = self.empty_report(subject, "the untransformed graph".into());
        report.differences = subject.compare(&tested, true, self.mode, (&reference, &expected))?;
        (report.microbatches, report.loss) = (microbatches.len(), tested.loss());
        report.passed = report.failed() == 0;
        if self.bisect && !report.passed {
            report.culprit = culprit()?;
        }
        Ok(report)
    }

    fn against_file(&self, subject: &Subject, path: &Path) -> Result<Report, Failure> {
        let module = &subject.compilation.forward;
        let numbers = Numbers::read(path, module, against::label_name(module)?.as_deref())?;
        let outcome = against::run(subject, &numbers, self.mode)?;
        let wanted = self.shapes.global_batch.map(|_| self.microbatches(module)).transpose()?;
        if let Some(wanted) = wanted.filter(|&wanted| wanted != outcome.microbatches as u64) {
            let message = format!(
                "--global-batch asks for {wanted} microbatches, the inputs of {} are {}",
                path.display(),
                outcome.microbatches
            );
            return Err(Diagnostic::new(message).note("leave --global-batch away").into());
        }
        let mut report = self.empty_report(subject, path.display().to_string());
        report.microbatches = outcome.microbatches;
        report.loss = outcome.execution.loss().filter(|_| numbers.labels);
        report.differences = outcome.differences;
        report.matched = outcome.matched;
        report.unmatched_there = outcome.unmatched_there;
        report.unmatched_here = outcome.unmatched_here;
        report.passed = report.failed() == 0;
        Ok(report)
    }

    fn empty_report(&self, subject: &Subject, against: String) -> Report {
        Report {
            model: self.model.display().to_string(),
            against,
            mode: self.mode.name(),
            mesh: self.parallel.described(),
            parameters: subject.layout.tensors.len(),
            microbatches: 1,
            loss: None,
            tolerance: self.tolerance(),
            passed: false,
            differences: Vec::new(),
            culprit: None,
            matched: Vec::new(),
            unmatched_there: Vec::new(),
            unmatched_here: Vec::new(),
        }
    }

    fn plan(&self, bindings: BTreeMap<String, u64>) -> Plan {
        let flags = Flags {
            optimizer: &self.optimizer,
            loss: &self.loss,
            precision: &self.precision,
            parallel: &self.parallel,
            seed: self.seed.seed,
        };
        // A schedule without a length of its own ends with the run, which is one step here; it must outlast its warm-up.
        Plan::new(bindings, flags, self.optimizer.lr_schedule.least_steps())
    }

    fn microbatches(&self, module: &Module) -> Result<u64, Diagnostic> {
        sizes::microbatches(module, self.shapes.global_batch, self.parallel.data_ranks())
    }

    /// The values that `--weights` gives, with a note of what it does not.
    fn weights(&self, source: &Source, compilation: &Compilation) -> Result<StateBytes, Failure> {
        let Some(path) = &self.initial.weights else { return Ok(StateBytes::new()) };
        let weights = load_weights(path, &compilation.training, &source.imported.aliases)?;
        eprintln!("{}", weights.report);
        Ok(weights.values)
    }
}
