//! The compiler: one recipe from a [`Job`] to its programs. No other module calls the steps of the recipe.
//!
//! 1. [`sizes_of`] reads the sizes of dims from the job and the model's file, and [`Source::import`] imports the model.
//! 2. [`forward`] runs the passes up to the loss. With its program the data are opened, and the data determine the remaining fields of
//!    the job.
//! 3. [`Forward::step`] makes the whole step, and makes it fit into the memory that the job allows.
//! 4. [`Step::lower`] makes the programs for the job's device.

mod job;
mod shared;
mod short_evaluation;

use crate::compilation::{self, Compilation, Source};
use crate::failure::Failure;
use crate::pipeline::CompilationPlan;
use crate::training::Programs;
use crate::{fit, sizes};
use ir::{Diagnostic, Module};
pub use job::{Facts, Job, On};
use onnx::Model;
use passes::{Manager, Pass, Pipeline};
pub use shared::Shared;
pub use short_evaluation::ShortEvaluation;
use std::collections::BTreeMap;

/// Sees the program after each pass: the number of passes that have run, the name of the pass, and the program. The number falls when passes
/// run again, because stages did not fit into memory.
pub type Observer<'a> = &'a mut dyn FnMut(usize, &str, &Module);

/// Opens the model's file of a job.
///
/// # Errors
/// A file that cannot be read; a pattern of parameters that matches no tensor.
pub fn open(job: &Job) -> Result<Model, Failure> {
    let (path, untied, train_also) = job.file();
    compilation::open_asking(path, untied, train_also)
}

/// Returns the sizes that the job gives to dims of the model.
///
/// # Errors
/// Flags that contradict each other or the file.
pub fn sizes_of(job: &Job, model: &Model) -> Result<BTreeMap<String, u64>, Diagnostic> {
    let shapes = &job.flags.shapes;
    sizes::bindings(model, shapes.bindings(), (shapes.microbatch, shapes.seq), job.data_ranks())
}

/// Opens and imports the model of a job. All its dims must have sizes.
///
/// # Errors
/// As of [`open`], [`sizes_of`] and [`Source::import`]; dims without a size.
pub fn import(job: &Job) -> Result<(Source, BTreeMap<String, u64>), Failure> {
    let model = open(job)?;
    let sizes = sizes_of(job, &model)?;
    Ok((import_with(job, model, &sizes)?, sizes))
}

/// Imports the opened model of a job. All its dims must have sizes.
fn import_with(job: &Job, model: Model, sizes: &BTreeMap<String, u64>) -> Result<Source, Failure> {
    sizes::require_bound(&model, sizes).map_err(|error| error.at(job.model.display().to_string()))?;
    Source::import(&job.model, model, sizes)
}

/// Returns the passes that decide which tensors are parameters. If dims have no size, these are the passes that need none.
pub fn up_to_parameters(job: &Job, model: &Model, sizes: &BTreeMap<String, u64>) -> Pipeline {
    let mut passes = plan(job, model, sizes).forward().passes;
    let decided = passes.iter().position(|pass| matches!(pass, Pass::Parameters(_)));
    passes.truncate(decided.map_or(passes.len(), |at| at + 1));
    if sizes::dim_names(model).iter().any(|name| !sizes.contains_key(name)) {
        passes.retain(|pass| !matches!(pass, Pass::Bind(_) | Pass::Dropout(_)));
    }
    Pipeline { passes }
}

/// Returns the options of all passes of a job.
fn plan(job: &Job, model: &Model, sizes: &BTreeMap<String, u64>) -> CompilationPlan {
    job.plan(sizes::left_to_passes(model, sizes.clone()))
}

/// A model of a job up to its loss.
#[derive(Clone, Debug)]
pub struct Forward<'m> {
    /// The model.
    pub source: Source,
    /// The sizes of its dims.
    pub sizes: BTreeMap<String, u64>,
    program: compilation::Forward,
    manager: &'m Manager,
}

/// Runs the passes up to the loss.
///
/// # Errors
/// As of [`Source::forward`].
pub fn forward<'m>(
    job: &Job,
    (source, sizes): (Source, BTreeMap<String, u64>),
    manager: &'m Manager,
    after: Observer,
) -> Result<Forward<'m>, Failure> {
    let plan = plan(job, &source.model, &sizes);
    let program = source.forward(&plan, manager, after)?;
    Ok(Forward { source, sizes, program, manager })
}

impl<'m> Forward<'m> {
    /// The program up to the loss. It determines how the model is fed.
    pub fn module(&self) -> &Module {
        &self.program.module
    }

    /// Returns the samples of a microbatch of all data ranks. `None` if no input is batched.
    pub fn batch(&self) -> Option<u64> {
        sizes::batch(self.module())
    }

    /// Returns the number of microbatches in a step of a job.
    ///
    /// # Errors
    /// A global batch that is no whole number of microbatches.
    pub fn microbatches(&self, job: &Job) -> Result<u64, Diagnostic> {
        sizes::microbatches(self.module(), job.global_batch, job.data_ranks())
    }

    /// Makes the step of a job: the job of [`forward`], with the fields that data determine. Options of passes after the loss may differ.
    ///
    /// # Errors
    /// A program that cannot be trained as the job says; memory that no program fits.
    pub fn step(self, job: &Job, after: Observer) -> Result<Step<'m>, Stopped> {
        let microbatches = self.microbatches(job)?;
        let Self { source, sizes, program, manager } = self;
        let mut plan = plan(job, &source.model, &sizes);
        plan.autodiff.whole = program.has_classes() && microbatches == 1;
        let mut compilation = program.training(&plan, manager, &mut *after)?;
        // The loading of the file warns of a graph that another program changed, for example.
        compilation.warnings.splice(0..0, source.model.warnings.iter().cloned());
        if let Some(report) = &mut compilation.reports.stages {
            report.device.clone_from(&job.device().name);
        }
        // An evaluation of another batch has the same stages.
        (plan.stage, plan.limit) = (compilation.stage.clone(), None);
        let (node, may_update_early) = (job.node(), plan.may_update_early());
        let On { target, multiprocessors, .. } = job.on;
        let conditions =
            fit::Conditions { microbatches, target, multiprocessors, may_update_early, node: &node };
        let mut passes = compilation.pipeline.passes.len();
        let fit =
            fit::fit_memory(&mut compilation, manager, &job.flags.memory, conditions, |pass, module| {
                passes += 1;
                after(passes, pass, module);
            });
        let fit = match fit {
            Ok(fit) => fit,
            Err(failure) => return Err(Stopped { failure, compilation: Some(compilation.into()) }),
        };
        Ok(Step { source, sizes, plan, compilation, microbatches, fit, manager })
    }
}

/// A failure, with the results that were reached before it.
#[derive(Debug)]
pub struct Stopped {
    /// The failure.
    pub failure: Failure,
    /// The compiled model, if it does not fit into memory.
    pub compilation: Option<Box<Compilation>>,
}

impl<F: Into<Failure>> From<F> for Stopped {
    fn from(failure: F) -> Self {
        Self { failure: failure.into(), compilation: None }
    }
}

/// The step of a job.
#[derive(Debug)]
pub struct Step<'m> {
    /// The model.
    pub source: Source,
    /// The sizes of its dims.
    pub sizes: BTreeMap<String, u64>,
    /// The options of all passes, with the stages that were chosen.
    pub plan: CompilationPlan,
    /// The compiled model.
    pub compilation: Compilation,
    /// The microbatches of a step.
    pub microbatches: u64,
    /// The result of the search for a program that fits into `--memory`, for people.
    pub fit: Option<String>,
    manager: &'m Manager,
}

/// The programs of a step for a device.
#[derive(Debug)]
pub struct Lowered {
    /// The step and the evaluations.
    pub programs: Programs,
    /// The reason why a last batch of the evaluation that is not whole has no program.
    pub left_out: Option<Diagnostic>,
}

impl Step<'_> {
    /// Lowers the step and the evaluations for the device of the job.
    ///
    /// # Errors
    /// A program that the device cannot run.
    pub fn lower(&self, job: &Job) -> Result<Lowered, Failure> {
        let (compilation, microbatches) = (&self.compilation, self.microbatches);
        let mut lowering = compilation.lowering(self.manager);
        let On { target, multiprocessors, .. } = job.on;
        let mut programs =
            Programs::lower_by(&mut lowering, compilation, microbatches, target, multiprocessors)?;
        let short =
            job.short_evaluation.map(|samples| self.evaluation_of(job, samples).map_err(Failure::from));
        let added = short.map(|short| {
            let ShortEvaluation { compilation, shares, .. } = short?;
            programs.add(&mut lowering, compilation.evaluation, shares)
        });
        let left_out = match added.transpose() {
            Ok(_) => None,
            Err(Failure::User(reasons)) => reasons.into_iter().next(),
            Err(fault) => return Err(fault),
        };
        Ok(Lowered { programs, left_out })
    }
}
