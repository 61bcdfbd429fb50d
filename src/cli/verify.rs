//! `trainyard verify`: the transformed program against the untransformed graph, or against numbers from elsewhere.

use std::path::{Path, PathBuf};

use checkpoint::StateBytes;
use clap::Args;
use ir::machine::Preset;
use ir::{DType, Diagnostic, Module};
use passes::Manager;

use super::report::{self, Outcome};
use crate::compilation::{Compilation, Source};
use crate::compiler::{self, Facts, Forward, Job, On, ShortEvaluation, Step};
use crate::config::shapes::positive_count;
use crate::config::value::positive;
use crate::config::{CompileFlags, Initial, Look, TargetDevice};
use crate::diagnostics::Severity;
use crate::failure::Failure;
use crate::feed;
use crate::hardware;
use crate::sizes;
use crate::state_dict::load_weights;
use crate::verification::against::{self, file::Numbers};
use crate::verification::bisect::{Expected, Stage, bisect};
use crate::verification::compare::{Difference, Kind};
use crate::verification::evaluation::{self, Evaluated};
use crate::verification::execute::Execution;
use crate::verification::report::Report;
use crate::verification::rounding::{self, RoundedTo, Rounding};
use crate::verification::{Mode, Subject, Tested, assumptions, inputs};

const EXAMPLES: &str = "\
Examples:
  Compare loss, gradients and updated states, all in f64:
    trainyard verify gpt2.onnx --microbatch 2 --global-batch 8

  Compare the CPU backend:
    trainyard verify gpt2.onnx --mode cpu

  Compare the program for a GPU, on a machine without a GPU:
    trainyard verify gpt2.onnx --mode cuda --bf16

  Compare the program as the kernels of an H200 take it:
    trainyard verify gpt2.onnx --target h200 --bf16

  Compare the program for a mesh of four simulated devices:
    trainyard verify gpt2.onnx --mesh dp=2,tp=2 --zero 1

  Find the first pass whose result differs:
    trainyard verify gpt2.onnx --bisect

  Compare with numbers that another framework computed:
    trainyard verify gpt2.onnx --against gpt2.npz --tolerance 1e-5

Exits with 3 when the largest error is above the tolerance.";

/// Arguments of `verify`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct Verify {
    /// The model: an ONNX file
    #[arg(value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// Read flags from a TOML file, or from DeepSpeed's JSON (FILE.json); flags on the command line override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Backend that runs the transformed program
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    /// Compare with the numbers in FILE: input.NAME, labels, output.NAME, param.NAME, grad.NAME
    #[arg(long, value_name = "FILE.npz")]
    pub against: Option<PathBuf>,
    /// Find the first pass whose result differs
    #[arg(long)]
    pub bisect: bool,
    /// Largest error that is accepted; without this flag, an error that rounding explains is accepted too [default: 1e-9 in
    /// mode exact, 1e-5 with --against; otherwise 1e-5, with fp16 5e-3, with bf16 5e-2]
    #[arg(long, value_name = "X", value_parser = positive)]
    pub tolerance: Option<f64>,
    /// Write the result as JSON
    #[arg(long)]
    pub json: bool,
    /// Steps of the run, over which a schedule of the learning rate without a length of its own runs [default: one after a warm-up]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub steps: Option<u64>,
    /// Compile for this device: h200, h100, a100, a100-40, v100, v100-16 or cpu, or the device that a file describes. The modes exact and
    /// typed run the program as its kernels take it; mode cpu needs a processor, and mode cuda a GPU [default: cpu]
    #[arg(long, value_name = "NAME[:KEY=X,…]|FILE.toml")]
    pub target: Option<TargetDevice>,
    /// The weights.
    #[command(flatten)]
    pub initial: Initial,
    /// The flags of the compilation.
    #[command(flatten)]
    pub compile: CompileFlags,
    /// Looking at the compilation.
    #[command(flatten)]
    pub look: Look,
}

/// The samples of a short last batch of an evaluation, and its program, or the reason why it has no program.
type ShortBatch = (u64, Result<ShortEvaluation, Diagnostic>);

impl Verify {
    /// The largest error that passes, for the compiled program.
    pub fn tolerance(&self, module: &Module) -> f64 {
        // Errors are relative to the largest number of a tensor, so the coarsest type of a step decides.
        self.tolerance.unwrap_or_else(|| match rounding::coarsest(module) {
            // The model's file has constants that the exporter rounded to f32.
            _ if self.mode == Mode::Exact && self.against.is_some() => 1e-5,
            _ if self.mode == Mode::Exact => 1e-9,
            DType::BF16 => 5e-2,
            DType::F16 => 5e-3,
            _ => 1e-5,
        })
    }

    /// Compiles the model, compares, and prints the result.
    ///
    /// # Errors
    /// Faults of the model, the flags or the file of `--against`; missing weights.
    pub fn run(&self) -> Result<Outcome, Failure> {
        let found = self.report()?;
        if self.json {
            report::write_out(&report::json(&found)?)?;
        } else {
            report::write_text(&found.to_string())?;
        }
        Ok(if found.passed { Outcome::Done } else { Outcome::Difference })
    }

    /// Returns the result that [`Self::run`] prints.
    pub fn report(&self) -> Result<Report, Failure> {
        hardware::fits_processor(&self.compile.parallel)?;
        let mut job = self.job()?;
        let manager = self.look.manager()?;
        let mut stages = Vec::new();
        let mut keep = |done: usize, pass: &str, module: &Module| {
            if self.bisect {
                // The passes run again where stages do not fit.
                stages.truncate(done - 1);
                stages.push(Stage { pass: pass.to_owned(), module: module.clone() });
            }
        };
        let forward = compiler::forward(&job, compiler::import(&job)?, &manager, &mut keep)?;
        let module = forward.module();
        if self.against.is_none() {
            job.short_evaluation = short_batch(&forward, &job)?;
        }
        let label = against::label_name(module)?;
        let read = |path| Numbers::read(path, module, label.as_deref());
        let numbers = self.against.as_deref().map(read).transpose()?;
        // A file of numbers may hold several microbatches. Inputs that do not fit are refused when the step runs.
        let inputs = numbers.iter().find_map(|all| against::microbatches(module, all, label.as_deref()).ok());
        if let Some(count @ 2..) = inputs.map(|microbatches| microbatches.len() as u64) {
            job.global_batch = job.global_batch.or(forward.batch().map(|batch| batch * count));
        }
        let step = forward.step(&job, &mut keep).map_err(|stopped| stopped.failure)?;
        let mut short = job.short_evaluation.map(|samples| (samples, step.evaluation_of(&job, samples)));
        let Step { source, plan, mut compilation, microbatches, fit, .. } = step;
        if self.target.is_some() && self.mode.target().is_none() {
            compilation.rewrite(&manager, job.on.target, &mut keep)?;
            if let Some((_, Ok(short))) = &mut short {
                short.compilation.rewrite(&Manager::default(), job.on.target, |_, _, _| {})?;
            }
        }
        if let Some(fit) = &fit {
            report::tell_lines(fit);
        }
        report::print(Severity::Warning, &compilation.warnings);
        let given = self.weights(&source, &compilation)?;
        let subject = Subject::new(plan, compilation, self.compile.seed.seed, given)?;
        match (&self.against, numbers) {
            (Some(path), Some(numbers)) => self.against_file(&source, &subject, microbatches, path, numbers),
            _ => self.against_reference(&source, &subject, microbatches, &stages, short.as_ref()),
        }
    }

    fn against_reference(
        &self,
        source: &Source,
        subject: &Subject,
        count: u64,
        stages: &[Stage],
        short: Option<&ShortBatch>,
    ) -> Result<Report, Failure> {
        let module = &subject.compilation.training;
        let microbatches = inputs::draw(&subject.compilation.forward, self.compile.seed.seed, count)?;
        let reference = subject.reference(source)?;
        let expected = subject.run_reference(&reference, &microbatches)?;
        let to = if self.mode == Mode::Exact { RoundedTo::F64 } else { RoundedTo::Asked };
        let to = self.tolerance.is_none().then_some(to);
        let mut rounding = to.map(|to| Rounding::new(source, subject, &microbatches, to));
        let tolerance = self.tolerance(module);
        let batch = &microbatches[..1];
        let (of, step) = ((source, &subject.plan), (&reference, Some(&expected)));
        let mut evaluated = evaluation::Expected::new(subject, of, step, batch, tolerance, to)?;
        let culprit = |rounding, evaluated| {
            let expected =
                Expected { reference: &reference, execution: &expected, microbatches: &microbatches };
            bisect(subject, stages, self.mode, tolerance, expected, rounding, evaluated)
        };
        let tested = match subject.run(Tested { module, cut: true }, self.mode, &microbatches) {
            // The first pass whose program cannot be run is found like a pass whose program differs.
            Err(failure) if self.bisect => {
                return Err(culprit(rounding.as_mut(), Some(&mut evaluated)).err().unwrap_or(failure));
            }
            tested => tested?,
        };
        let doubt = subject.compilation.doubt(count);
        report::print(Severity::Warning, &Vec::from_iter(doubt.cloned()));
        let mut report = self.empty_report(subject, "the untransformed graph".into(), &tested);
        report.differences = subject.compare(&tested, true, (&reference, &expected))?;
        if let Some(rounding) = &mut rounding {
            rounding.explain(&mut report.differences, tolerance, |difference| difference.name.clone())?;
        }
        match self.compare_evaluations(&mut report, subject, &mut evaluated, (short, to)) {
            Err(failure) if self.bisect => {
                return Err(culprit(rounding.as_mut(), Some(&mut evaluated)).err().unwrap_or(failure));
            }
            compared => compared?,
        }
        (report.microbatches, report.loss) = (microbatches.len(), tested.loss());
        report.assumptions = assumptions::all(&subject.compilation, self.compile.seed.seed, None);
        report.passed = !report.differs();
        if self.bisect && !report.passed {
            report.culprit = culprit(rounding.as_mut(), Some(&mut evaluated))?;
        }
        Ok(report)
    }

    /// Compares the evaluation of a whole batch, and that of a short one, whose rounding is that of `to`.
    fn compare_evaluations(
        &self,
        report: &mut Report,
        subject: &Subject,
        whole: &mut evaluation::Expected,
        (short, to): (Option<&ShortBatch>, Option<RoundedTo>),
    ) -> Result<(), Failure> {
        let Compilation { forward, evaluation: module, .. } = &subject.compilation;
        let found = whole.compare(Tested { module, cut: true }, self.mode)?;
        report.add_evaluation(sizes::batch(forward).unwrap_or(1), found);
        match short {
            None => {}
            Some((samples, Err(reason))) => report.evaluation.push(Evaluated::left_out(*samples, reason)),
            Some((samples, Ok(ShortEvaluation { source, plan, compilation, .. }))) => {
                let Compilation { forward, evaluation: module, .. } = compilation;
                let batch = inputs::draw(forward, self.compile.seed.seed, 1)?;
                let (of, reference) =
                    ((source, plan), subject.reference_by(source, &plan.reference_forward(subject.specs()))?);
                let step = (&reference, None);
                let mut expected =
                    evaluation::Expected::new(subject, of, step, &batch, report.tolerance, to)?;
                report.add_evaluation(*samples, expected.compare(Tested { module, cut: true }, self.mode)?);
            }
        }
        Ok(())
    }

    fn against_file(
        &self,
        source: &Source,
        subject: &Subject,
        wanted: u64,
        path: &Path,
        mut numbers: Numbers,
    ) -> Result<Report, Failure> {
        numbers.name_outputs(&source.imported.module);
        let mut outcome = against::run(subject, &numbers, self.mode)?;
        let count = outcome.microbatches.len();
        if self.compile.shapes.global_batch.is_some() && wanted != count as u64 {
            let message = format!(
                "--global-batch asks for {wanted} microbatches, and the inputs of {} are {count}",
                path.display(),
            );
            return Err(Diagnostic::new(message).note("remove --global-batch").into());
        }
        // If both sides are in f64, rounding explains no error above the tolerance.
        if self.tolerance.is_none() && (self.mode != Mode::Exact || numbers.are_rounded()) {
            let to = if self.mode == Mode::Exact { RoundedTo::Model } else { RoundedTo::Asked };
            let here = |difference: &Difference| outcome.name_here(difference);
            let mut differences = outcome.differences.clone();
            Rounding::new(source, subject, &outcome.microbatches, to).explain(
                &mut differences,
                self.tolerance(&subject.compilation.training),
                here,
            )?;
            outcome.differences = differences;
        }
        let mut report = self.empty_report(subject, path.display().to_string(), &outcome.execution);
        report.microbatches = count;
        report.loss = outcome.execution.loss().filter(|_| numbers.labels);
        let trained = |difference: &Difference| matches!(difference.kind, Kind::Loss | Kind::Gradient);
        let follows = outcome.differences.iter().any(trained);
        let theirs = (&outcome.trained_there, follows, &report.against[..]);
        report.assumptions = assumptions::all(&subject.compilation, self.compile.seed.seed, Some(theirs));
        report.differences = outcome.differences;
        report.tensors = outcome.tensors;
        report.passed = !report.differs();
        Ok(report)
    }

    fn empty_report(&self, subject: &Subject, against: String, tested: &Execution) -> Report {
        let initial = subject.plan.precision.scaling.initial;
        Report {
            model: self.model.display().to_string(),
            against,
            mode: self.mode.name(),
            mesh: self.compile.parallel.described(),
            parameters: subject.layout.tensors.len(),
            smaller_loss_scale: tested.loss_scale().filter(|&scale| scale < initial),
            overflows: tested.overflows(),
            tolerance: self.tolerance(&subject.compilation.training),
            ..Report::default()
        }
    }

    /// The job of this command.
    fn job(&self) -> Result<Job, Failure> {
        let device = self.target.as_ref().map(TargetDevice::device).transpose()?;
        let on = On::described(device.unwrap_or_else(|| Preset::Cpu.device()));
        if self.target.is_some() && self.mode.target().is_some_and(|target| target != on.target) {
            let message =
                format!("--mode {} does not run the kernels of {}", self.mode.name(), on.device.name);
            let note = "without --mode, the interpreter runs the program as the kernels of --target take it";
            return Err(Diagnostic::new(message).note(note).into());
        }
        let facts = Facts { on, cluster: self.compile.parallel.cluster()?, global_batch: None };
        let job = Job::resolve(self.model.clone(), &self.compile, facts);
        // A schedule without a length of its own ends with the run, which is one step here; it must outlast its warm-up.
        let steps = self.steps.unwrap_or_else(|| self.compile.optimizer.lr_schedule.least_steps());
        Ok(Job { steps, keeps_gradients: true, ..job })
    }

    /// Reads the values of `--weights`, and tells which tensors its file does not have.
    fn weights(&self, source: &Source, compilation: &Compilation) -> Result<StateBytes, Failure> {
        let Some(path) = &self.initial.weights else { return Ok(StateBytes::new()) };
        let weights = load_weights(path, &compilation.training, &source.imported)?;
        report::tell_lines(&weights.report.to_string());
        Ok(weights.values)
    }
}

/// The samples of a last batch that is half full, if such a batch has a program of its own.
fn short_batch(forward: &Forward, job: &Job) -> Result<Option<u64>, Failure> {
    let ranks = job.data_ranks();
    let half = forward.batch().map_or(0, |batch| batch / ranks / 2 * ranks);
    Ok(if half == 0 || feed::fills_evaluation(forward.module())? { None } else { Some(half) })
}
