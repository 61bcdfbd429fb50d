//! From a model file to the programs that train and evaluate it.

mod trail;

use crate::failure::Failure;
use crate::fit::stages::{Attempt, fit};
use crate::lowering::{self, Lowering};
pub use crate::manager::run;
use crate::pipeline::CompilationPlan;
use ir::analysis::indices::{Outside, of_inputs};
use ir::{Diagnostic, Module, ScalarPart, StepOutput, View};
use onnx::{ImportOptions, Imported, Model, StateDict};
use passes::arguments::pattern::matches as fits;
use passes::evaluation::Evaluation;
use passes::moe::Moe;
use passes::offload::Offload;
use passes::reports::{ParameterReport, Reports, RowRole};
use passes::stage::Stage;
use passes::{Manager, PassContext, Pipeline, Timing, Transform};
use program::{Target, UpdateTime};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use trail::Trail;

/// A model file with its imported program.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file.
    pub model: Model,
    /// The program, at level `imported`, with the facts that the import found about its tensors.
    pub imported: Imported,
    /// The passes that compilations of this source share.
    trail: Trail,
}

/// A model compiled up to its loss.
#[derive(Clone, Debug)]
pub struct Forward {
    /// The program.
    pub module: Module,
    /// The model with mixtures of experts, before it has a loss.
    mixture: Option<Module>,
    state_dict: StateDict,
    cx: PassContext,
    timings: Vec<Timing>,
    pipeline: Pipeline,
    /// The place behind these passes.
    trail: Trail,
}

/// A compiled model.
#[derive(Clone, Debug)]
pub struct Compilation {
    /// The whole step.
    pub training: Module,
    /// The part of the step that computes the loss, for evaluation. It has the same states, split over the same devices.
    pub evaluation: Module,
    /// The forward program with its loss, before anything is split. It determines how the model is fed.
    pub forward: Module,
    /// The model with mixtures of experts, before it has a loss. It is exported in place of the file's graph. `None` if the file's graph is
    /// exported.
    pub mixture: Option<Module>,
    /// The tensors of the author's module, described as parts of the file's tensors.
    pub state_dict: StateDict,
    /// The file's names and records of its tensors; later passes read them too.
    pub tensors: TensorFacts,
    /// The pass that cut the program, with the schedule and the cut that were chosen.
    pub stage: Option<Stage>,
    /// The reports of the passes.
    pub reports: Reports,
    /// Warnings for the user.
    pub warnings: Vec<Diagnostic>,
    /// The time of each pass.
    pub timings: Vec<Timing>,
    /// The passes that made the step.
    pub pipeline: Pipeline,
    /// The time of updates in the step.
    pub update: UpdateTime,
    /// The number of passes that have run, the pass of the evaluation included.
    passes_run: usize,
}

/// The file's names and records of its tensors, by tensor name.
#[derive(Clone, Debug, Default)]
pub struct TensorFacts {
    /// Other names of each tensor.
    pub aliases: BTreeMap<String, Vec<String>>,
    /// The tensors that hold vectors, although they have more dims.
    pub vectors: BTreeSet<String>,
}

impl TensorFacts {
    /// A context for passes that run on a program of the file.
    pub fn context(&self) -> PassContext {
        let (aliases, vectors) = (self.aliases.clone(), self.vectors.clone());
        PassContext { aliases, vectors, ..PassContext::default() }
    }
}

impl Source {
    /// Loads and imports a model. Errors: all faults of the file; every node that cannot be imported.
    pub fn load(path: &Path, bindings: &BTreeMap<String, u64>) -> Result<Self, Failure> {
        Self::import(path, open(path)?, bindings)
    }

    /// Imports a model that [`open`] has loaded. Errors: every node that cannot be imported; a quantized model, which cannot be trained.
    pub fn import(path: &Path, model: Model, bindings: &BTreeMap<String, u64>) -> Result<Self, Failure> {
        let options = ImportOptions { bindings: bindings.clone() };
        let imported = onnx::import(&model, &options).map_err(|problems| in_file(path, problems))?;
        if let Some(refusal) = &imported.untrainable {
            return Err(in_file(path, vec![refusal.clone()]).into());
        }
        Ok(Self { model, imported, trail: Trail::default() })
    }

    /// Lets all compilations of this source and of its clones share the passes before the first one whose options differ.
    pub fn share_passes(&mut self) {
        self.trail = Trail::begin();
    }

    /// The facts of the import that the passes and the user need.
    pub fn context(&self) -> PassContext {
        let Imported { aliases, authors, vectors, warnings, .. } = &self.imported;
        PassContext {
            aliases: aliases.clone(),
            authors: authors.clone(),
            vectors: vectors.clone(),
            warnings: warnings.clone(),
            ..PassContext::default()
        }
    }

    /// Runs the passes of a plan. `after` sees the module after each pass, with the number of passes done by then.
    pub fn compile(
        &self,
        plan: &CompilationPlan,
        manager: &Manager,
        mut after: impl FnMut(usize, &str, &Module),
    ) -> Result<Compilation, Failure> {
        self.forward(plan, manager, &mut after)?.training(plan, manager, after)
    }

    /// Runs the first half of a plan, which ends with the loss.
    pub fn forward(
        &self,
        plan: &CompilationPlan,
        manager: &Manager,
        mut after: impl FnMut(usize, &str, &Module),
    ) -> Result<Forward, Failure> {
        let mut cx = self.context();
        let mut module = self.imported.module.clone();
        let pipeline = plan.forward();
        let mut mixture = None;
        let mut trail = self.trail.clone();
        let timings = trail.run(manager, &pipeline, &mut module, &mut cx, |i, name, module| {
            if name == Moe::NAME {
                mixture = Some(module.clone());
            }
            after(i + 1, name, module);
        })?;
        refuse_indices(&module)?;
        let state_dict = self.imported.state_dict.clone();
        Ok(Forward { module, mixture, state_dict, cx, timings, pipeline, trail })
    }

    /// Runs a pipeline on the imported program, and returns the resulting program.
    pub fn run(&self, pipeline: &Pipeline) -> Result<Module, Failure> {
        let mut cx = self.context();
        let mut module = self.imported.module.clone();
        run(&Manager::default(), pipeline, &mut module, &mut cx, |_, _, _| {})?;
        Ok(module)
    }
}

/// Refuses constant indices, such as the positions of a sequence, that are outside of the dim which they index.
fn refuse_indices(module: &Module) -> Result<(), Diagnostic> {
    for indices in of_inputs(module).into_iter().filter(|indices| indices.inputs.is_empty()) {
        let Some(outside) = indices.outside(module, &mut BTreeMap::new()) else { continue };
        let Outside { index, size, .. } = outside;
        let error = format!("index {index} is outside of a dim of {size} of {}", indices.described(module));
        return Err(Diagnostic::new(error)
            .at(module.node(indices.reader).origin.to_string())
            .note("a table of positions takes no longer sequences: --bind NAME=SIZE sets the length"));
    }
    Ok(())
}

impl Forward {
    /// Whether the loss has several classes, each with a weight of its own.
    pub fn has_classes(&self) -> bool {
        self.module.step_output(StepOutput::loss(1, ScalarPart::Sum)).is_some()
    }

    /// Runs the second half of a plan, which makes the whole step. If its stages do not fit into the memory, the passes run again with
    /// other stages.
    ///
    /// # Errors
    /// A program that cannot be trained with these flags; early updates with clipping or fp16.
    pub fn training(
        self,
        plan: &CompilationPlan,
        manager: &Manager,
        mut after: impl FnMut(usize, &str, &Module),
    ) -> Result<Compilation, Failure> {
        plan.check_update()?;
        let Self { module: forward, mixture, state_dict, cx, mut timings, pipeline, trail } = self;
        let done = pipeline.passes.len();
        let attempt = |plan: CompilationPlan, stages| {
            let mut made = Attempt { plan, stages, module: forward.clone(), cx: cx.clone(), timings: vec![] };
            let rest = made.plan.training();
            let (module, cx) = (&mut made.module, &mut made.cx);
            made.timings = trail
                .clone()
                .run(manager, &rest, module, cx, |i, name, module| after(done + i + 1, name, module))?;
            Ok(made)
        };
        let Attempt { plan, stages, module, mut cx, timings: of_rest } =
            fit(plan, &forward, manager, attempt)?;
        timings.extend(of_rest);
        follow_padding(&mut cx.reports.parameters, &forward, &module);
        let (mut evaluation, rest) = (module.clone(), plan.training());
        run(manager, &Evaluation.into(), &mut evaluation, &mut cx, |_, _, _| {})?;
        Ok(Compilation {
            evaluation,
            training: module,
            forward,
            mixture,
            state_dict,
            tensors: TensorFacts { aliases: cx.aliases, vectors: cx.vectors },
            reports: Reports { stages, ..cx.reports },
            warnings: cx.warnings,
            stage: plan.stage,
            timings,
            pipeline: Pipeline { passes: pipeline.passes.into_iter().chain(rest.passes).collect() },
            update: plan.update,
            passes_run: cx.passes_run,
        })
    }
}

impl Compilation {
    /// The lowering of these programs. Its manager shows passes of the lowering after the passes that have run.
    pub fn lowering<'a>(&self, manager: &'a Manager) -> Lowering<'a> {
        Lowering::new(manager, self.passes_run)
    }

    /// Runs passes on the step, after the passes that have run. `offload` moves states, so the evaluation is then made again from the new
    /// step: its states rest in the same memories. `after` sees the step after each pass.
    ///
    /// # Errors
    /// A program that the verifier refuses.
    pub fn extend_step(
        &mut self,
        manager: &Manager,
        passes: Pipeline,
        mut after: impl FnMut(&str, &Module),
    ) -> Result<(), Failure> {
        let (passes_run, reports) = (self.passes_run, self.reports.clone());
        let mut cx = PassContext { passes_run, reports, ..self.tensors.context() };
        let after = |_, pass: &str, module: &Module| after(pass, module);
        self.timings.extend(run(manager, &passes, &mut self.training, &mut cx, after)?);
        if passes.has(Offload::NAME) {
            self.evaluation = self.training.clone();
            run(manager, &Evaluation.into(), &mut self.evaluation, &mut cx, |_, _, _| {})?;
        }
        self.pipeline.passes.extend(passes.passes);
        (self.passes_run, self.reports) = (cx.passes_run, cx.reports);
        Ok(())
    }

    /// Runs the rewrites of a target on the step and on the evaluation, as their lowering does. `after` sees the step after each rewrite, with
    /// the number of passes done by then.
    ///
    /// # Errors
    /// A program that the verifier refuses.
    pub fn rewrite(
        &mut self,
        manager: &Manager,
        target: Target,
        mut after: impl FnMut(usize, &str, &Module),
    ) -> Result<(), Failure> {
        let (rewrites, done) = (lowering::rewrites(target)?, self.pipeline.passes.len());
        let mut cx =
            PassContext { passes_run: self.passes_run, kernels: target.kernels(), ..self.tensors.context() };
        let of_step = run(manager, &rewrites, &mut self.training, &mut cx, |i, pass, module| {
            after(done + i + 1, pass, module);
        })?;
        run(manager, &rewrites, &mut self.evaluation, &mut cx, |_, _, _| {})?;
        self.timings.extend(of_step);
        self.pipeline.passes.extend(rewrites.passes);
        self.passes_run = cx.passes_run;
        Ok(())
    }

    /// The warning for steps of several microbatches whose losses may not add up to the loss of the whole batch.
    pub fn doubt(&self, microbatches: u64) -> Option<&Diagnostic> {
        self.reports.loss.as_ref().filter(|_| microbatches > 1)?.doubt.as_ref()
    }

    /// The trained tensors of the file, whole. `value` gives the value of each state by its name. States that are parts of one tensor are
    /// put together. Elements that the program never reads stay as they are in the file.
    pub fn file_tensors<'a>(
        &self,
        value: impl Fn(&str) -> Option<&'a ir::Tensor>,
    ) -> Result<BTreeMap<String, ir::Tensor>, Diagnostic> {
        let mut tensors = BTreeMap::new();
        let rows: BTreeMap<&str, &ir::Data> =
            self.training.data.values().map(|data| (data.name.as_str(), data)).collect();
        for report in self.reports.parameters.iter().filter(|report| report.role != RowRole::Constant) {
            let in_file = rows.get(report.data.as_str()).and_then(|row| ir::interp::file_tensor(row));
            let sizes = || report.ty.sizes().into_iter().flatten().map(|size| size as usize).collect();
            let mut tensor = in_file.unwrap_or_else(|| ir::Tensor::splat(report.ty.dtype, sizes(), 0.0));
            for part in &report.states {
                let missing =
                    || Diagnostic::new(format!("state `{}` does not fit `{}`", part.state, report.data));
                let value = value(&part.state).ok_or_else(missing)?;
                ir::view::write_back(&part.view, value, &mut tensor).ok_or_else(missing)?;
            }
            tensors.insert(report.data.clone(), tensor);
        }
        Ok(tensors)
    }
}

/// Adds the padding of states, which were padded so that they divide over devices, to the ends of the views that cut them from the file's
/// tensors.
fn follow_padding(reports: &mut [ParameterReport], before: &Module, after: &Module) {
    fn views(module: &Module) -> BTreeMap<&str, &View> {
        module.states.values().map(|state| (state.name.as_str(), &state.view)).collect()
    }
    let (before, after) = (views(before), views(after));
    for part in reports.iter_mut().flat_map(|report| &mut report.states) {
        if let (Some(before), Some(after)) = (before.get(part.state.as_str()), after.get(part.state.as_str()))
            && let Some(added) = after.strip_prefix(&before[..])
            && !part.view.ends_with(added)
        {
            part.view.extend(added.iter().cloned());
        }
    }
}

/// Loads a model file. Errors: all faults of the file.
pub fn open(path: &Path) -> Result<Model, Failure> {
    open_asking(path, false, &[])
}

/// Loads a model file, with the parameters that the user asks for. Errors: all faults of the file; a pattern of `--train-also` that matches
/// no tensor.
pub fn open_asking(path: &Path, untied: bool, train_also: &[String]) -> Result<Model, Failure> {
    let model = Model::load_with(path, untied);
    let mut model = model.map_err(|error| Failure::User(in_file(path, error.problems)))?;
    if train_also.is_empty() {
        return Ok(model);
    }
    let names = onnx::tensor_names(&model);
    for pattern in train_also {
        let mut fitting =
            names.iter().filter(|names| names.iter().any(|name| fits(pattern, name))).peekable();
        if fitting.peek().is_none() {
            let error =
                Diagnostic::new(format!("--train-also: no float tensor of the file fits `{pattern}`"));
            return Err(error.note("`trainyard inspect` lists all tensors, trained and not trained").into());
        }
        model.asked.extend(fitting.map(|names| names[0].clone()));
    }
    Ok(model)
}

/// Puts the file before the place of each fault.
fn in_file(path: &Path, faults: Vec<Diagnostic>) -> Vec<Diagnostic> {
    faults.into_iter().map(|fault| fault.in_file(path)).collect()
}
