//! The facts about a model: its file, its support, its parameters with the reason for each, its program, and the cost of a step of training.
//! `trainyard inspect` shows them as text or as JSON, and the program as a graph.

mod after;
pub mod cluster;
pub mod collectives;
mod compressed;
pub mod facts;
mod feed_forward;
pub mod folder;
pub mod groups;
mod measured;
pub mod parameters;
mod perfetto;
pub mod prediction;
mod recomputed;
mod shares;
pub mod stages;
pub mod step;
mod text;
pub mod why;

pub use after::program_after;
pub use compressed::{compressed_activations, compressed_gradients};
pub use folder::FolderFacts;
pub use measured::MeasuredText;
pub(crate) use perfetto::timeline;
pub use prediction::PredictionFacts;
pub use recomputed::recomputed;
pub(crate) use stages::staleness;
pub use stages::{PipelineFacts, chosen_schedule};

use crate::compilation::{Compilation, Source};
use crate::compiler::{self, Job, Step, Stopped};
use crate::config::memory::Budget;
use crate::failure::Failure;
use crate::plan::MemoryPlan;
use crate::training::{self, Programs};
use crate::{feed, manager, sizes};
use facts::{FileFacts, ProgramFacts};
use groups::GroupFacts;
use ir::machine::{Device, Machine, Preset};
use ir::{Diagnostic, Module, units, visible};
use onnx::Model;
use parameters::ParameterFacts;
use passes::moe::{self, FeedForward};
use passes::reports::{
    CompressedActivationsReport, CompressedGradientsReport, LossReport, NearMiss, PrecisionReport,
    RecomputeReport, ShardingReport, StageReport,
};
use passes::{Manager, Timing};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use step::StepFacts;

/// The facts about a model. Unknown facts are left out: a model that cannot be imported has only the facts of its file, and a model with
/// unbound dims has no costs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Inspection {
    /// The file.
    pub file: FileFacts,
    /// The steps that it can go through.
    pub support: Support,
    /// The named dims without a size.
    pub unbound: Vec<String>,
    /// All reasons why it cannot be imported or trained.
    pub reasons: Vec<Diagnostic>,
    /// Warnings about choices that the user may not intend.
    pub warnings: Vec<Diagnostic>,
    /// The roles of its tensors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<ParameterFacts>,
    /// The groups of parameters with a learning rate or a weight decay of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupFacts>,
    /// Its forward program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramFacts>,
    /// Its feed-forward blocks, before some become mixtures of experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feed_forward: Option<FeedForward>,
    /// The places where a pattern was nearly found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub near_misses: Vec<NearMiss>,
    /// The objective, and the way in which it was recognised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossReport>,
    /// The cost of a step of training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<StepFacts>,
    /// The choice of the schedule, if no flag names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<StageReport>,
    /// The pipeline, if the mesh has several stages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<PipelineFacts>,
    /// The blocks of the forward phase, and the parts that backward computes again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recomputed: Option<RecomputeReport>,
    /// The forms in which activations wait for backward.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compressed_activations: Option<CompressedActivationsReport>,
    /// The gradients that data ranks reduce in another form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compressed_gradients: Option<CompressedGradientsReport>,
    /// The operators that compute in half precision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<PrecisionReport>,
    /// The search for a program that fits into `--memory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fit: Option<String>,
    /// The prediction of a step on the machine of the question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction: Option<PredictionFacts>,
    /// The shardings of inputs and states, with their reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shardings: Vec<ShardingReport>,
    /// The time of each pass.
    pub passes: Vec<Timing>,
    /// The program after the last pass that ran.
    #[serde(skip)]
    module: Option<Module>,
    /// The memory plan, if the question asks for it.
    #[serde(skip)]
    pub memory_plan: Option<MemoryPlan>,
}

/// The steps that a model can go through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Support {
    /// The model can be trained as it is.
    Trainable,
    /// The model can be trained once its dims are bound.
    Unbound,
    /// The model can be imported, and cannot be trained with these flags.
    Importable,
    /// Only the sizes of its dims decide whether the model can be imported.
    Undecided,
    /// The model cannot be imported.
    #[default]
    Unsupported,
}

/// Sizes for dims without a size: of the first dims of inputs, such as the batch, and of all other dims. Exports are usually made with at
/// least two of everything; convolutions and pooling need larger images, and a state that the file has for one sample needs a batch of one.
const MADE_UP_SIZES: [(u64, u64); 5] = [(2, 2), (2, 64), (1, 64), (2, 512), (1, 512)];

/// A question about a model.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// The job.
    pub job: &'a Job,
    /// The sizes of dims.
    pub sizes: BTreeMap<String, u64>,
    /// The machine on which a step is to be predicted.
    pub machine: Option<&'a Machine>,
    /// The pass manager, which shows the program between passes.
    pub manager: Manager,
    /// Whether the memory plan is asked for.
    pub lists_memory: bool,
}

impl Inspection {
    /// Gathers the facts about a model. [`Inspection::reasons`] has the reasons why it cannot be imported or trained.
    ///
    /// # Errors
    /// A program that the verifier refuses: a fault of the compiler.
    pub fn of(model: Model, question: &Question) -> Result<Self, Failure> {
        let mut found = Self {
            file: FileFacts::of(&model, &question.job.model),
            unbound: sizes::unbound(&model, &question.sizes),
            warnings: model.warnings.clone(),
            ..Self::default()
        };
        match Source::import(&question.job.model, model.clone(), &question.sizes) {
            Ok(source) => found.compile(&source, question)?,
            Err(failure) => found.refused(&model, question, failure)?,
        }
        Ok(found)
    }

    /// Gathers the reasons why a model cannot be imported. If dims have no size, several sizes are tried. If the import succeeds with one of
    /// them, the model lacks only sizes. Otherwise the reasons are the errors that the import has for every size.
    fn refused(&mut self, model: &Model, question: &Question, failure: Failure) -> Result<(), Failure> {
        self.reasons = told(failure)?;
        if self.unbound.is_empty() {
            return Ok(());
        }
        let mut always: Option<Vec<Diagnostic>> = None;
        for sizes in MADE_UP_SIZES {
            let bindings = self.made_up(model, question, sizes);
            let reasons = match Source::import(&question.job.model, model.clone(), &bindings) {
                Ok(source) => {
                    let loss =
                        passes::loss::decide(&source.imported.module, &question.job.flags.loss.pass(), None);
                    self.support = if loss.is_ok() { Support::Unbound } else { Support::Undecided };
                    return Ok(());
                }
                Err(failure) => told(failure)?,
            };
            let are_the_same = always.as_ref() == Some(&reasons);
            always.get_or_insert_with(|| reasons.clone()).retain(|reason| reasons.contains(reason));
            if are_the_same {
                break;
            }
        }
        match always.filter(|reasons| !reasons.is_empty()) {
            Some(reasons) => self.reasons = reasons,
            None => self.support = Support::Undecided,
        }
        Ok(())
    }

    /// The sizes of the question, and for dims without a size `first`, if they are first dims of inputs, or `other`.
    fn made_up(
        &self,
        model: &Model,
        question: &Question,
        (first, other): (u64, u64),
    ) -> BTreeMap<String, u64> {
        let firsts: BTreeSet<&str> = sizes::inputs(model)
            .filter_map(|input| sizes::name_of_first(input.ty.tensor()?.dims.as_ref()?.first()?))
            .collect();
        let size = |name: &String| if firsts.contains(name.as_str()) { first } else { other };
        let made_up = self.unbound.iter().map(|name| (name.clone(), size(name)));
        question.sizes.clone().into_iter().chain(made_up).collect()
    }

    /// Runs the passes, up to the first that fails.
    fn compile(&mut self, source: &Source, question: &Question) -> Result<(), Failure> {
        self.support = Support::Importable;
        if !self.unbound.is_empty() {
            match self.decide_parameters(source, question, &question.manager) {
                Ok(()) if self.parameters.as_ref().is_some_and(|found| found.trained == 0) => {
                    self.reasons = told(passes::autodiff::nothing_to_train().into())?;
                }
                Ok(()) => self.support = Support::Unbound,
                Err(failure) => self.reasons = told(failure)?,
            }
            return Ok(());
        }
        let (program, feed_forward) = (&mut self.program, &mut self.feed_forward);
        let mut after = |_: usize, pass: &str, module: &Module| match pass {
            "parameters" => *feed_forward = Some(moe::blocks(module)),
            "loss" => *program = Some(ProgramFacts::of(module)),
            _ => {}
        };
        let imported = (source.clone(), question.sizes.clone());
        let forward = compiler::forward(question.job, imported, &question.manager, &mut after);
        let step = forward.map_err(Stopped::from).and_then(|forward| {
            // `compile` refuses such inputs when it opens the data.
            let spec = feed::model_spec(forward.module())?;
            data::common_batch(&spec).map_err(|error| Diagnostic::new(data::one_line(&error)))?;
            forward.step(question.job, &mut after)
        });
        match step {
            Ok(step) => self.trainable(step, question),
            Err(Stopped { failure, compilation }) => {
                self.reasons = told(failure)?;
                // The parameters are known all the same, unless an earlier pass fails.
                if compilation.is_none()
                    && let Err(failure) = self.decide_parameters(source, question, &Manager::default())
                {
                    told(failure)?;
                }
                Ok(())
            }
        }
    }

    /// Gathers the facts about a program on which all passes have run.
    fn trainable(&mut self, step: Step, question: &Question) -> Result<(), Failure> {
        let Step { source, plan, compilation, microbatches, fit, .. } = step;
        let state_dict = &source.imported.state_dict;
        self.fit = fit;
        self.passes.clone_from(&compilation.timings);
        self.warnings.clone_from(&compilation.warnings);
        self.parameters =
            Some(ParameterFacts::of(&compilation.reports.parameters, &compilation.training, state_dict));
        self.groups = GroupFacts::of(&plan.optimizer.groups, &compilation.reports.parameters);
        let reports = compilation.reports.clone();
        self.near_misses = reports.near_misses;
        self.loss = reports.loss;
        self.schedule = reports.stages.filter(StageReport::is_choice);
        self.recomputed = reports.recomputed;
        self.compressed_activations = reports.compressed_activations;
        self.compressed_gradients = reports.compressed_gradients;
        self.precision = reports.precision;
        self.shardings = reports.shardings;
        if let Err(failure) = self.lowered(&compilation, microbatches, question) {
            self.reasons.extend(told(failure)?);
        }
        self.module = Some(compilation.training);
        Ok(())
    }

    /// Gathers the facts about the programs of a step. A program that is larger than the memory of the machine is warned of.
    ///
    /// # Errors
    /// An operator without a kernel on the machine; a program of which the memory plan cannot be listed.
    fn lowered(
        &mut self,
        compilation: &Compilation,
        microbatches: u64,
        question: &Question,
    ) -> Result<(), Failure> {
        let (training, machine) = (&compilation.training, question.machine);
        let processor = Preset::Cpu.device();
        let device = machine.map_or(&processor, Machine::device);
        // The bytes of a step without stages are those of the processor's plan. Its prediction has those of the machine.
        let planned_on = if training.pipeline.is_some() { device } else { &processor };
        let mut programs = Programs::lower_on(compilation, microbatches, planned_on)?;
        let step = training::step(training)?;
        self.step = Some(StepFacts::of(&step, compilation, &programs, microbatches, machine)?);
        self.warnings.extend(compilation.doubt(microbatches).cloned());
        self.support = Support::Trainable;
        let is_other = device != planned_on;
        if is_other && question.lists_memory {
            programs = Programs::lower_on(compilation, microbatches, device)?;
        }
        // Without a list of the memory, only the step is needed.
        let step_alone = (is_other && !question.lists_memory)
            .then(|| training::lower_step_on(training.clone(), microbatches, compilation.update, device))
            .transpose()?;
        let on_machine = step_alone.as_ref().map(|(programs, target)| (programs, *target));
        let (on_machine, target) = on_machine.unwrap_or((&programs.training, programs.target));
        self.pipeline = PipelineFacts::of_programs(&step, on_machine, target, machine)?;
        if let Some(machine) = machine.filter(|_| self.pipeline.is_none()) {
            let program = on_machine.first();
            self.prediction =
                Some(PredictionFacts::of_program(training, program, target, microbatches, machine)?);
        }
        let of_ranks = self.pipeline.iter().flat_map(|pipeline| &pipeline.ranks).map(|rank| rank.planned);
        let planned = of_ranks.chain(self.prediction.iter().map(|prediction| prediction.planned)).max();
        self.warnings.extend(planned.and_then(|planned| larger(planned, machine?.device())));
        if question.lists_memory {
            let budgets = question.job.flags.memory.memory.as_ref();
            self.memory_plan = Some(MemoryPlan::of(&programs, microbatches, budgets)?);
        }
        Ok(())
    }

    /// Runs the passes up to `parameters`, which decides the roles of tensors.
    fn decide_parameters(
        &mut self,
        source: &Source,
        question: &Question,
        manager: &Manager,
    ) -> Result<(), Failure> {
        let mut module = source.imported.module.clone();
        let mut cx = source.context();
        let pipeline = compiler::up_to_parameters(question.job, &source.model, &question.sizes);
        self.passes = manager::run(manager, &pipeline, &mut module, &mut cx, |_, _, _| {})?;
        self.warnings.extend(cx.warnings);
        self.parameters =
            Some(ParameterFacts::of(&cx.reports.parameters, &module, &source.imported.state_dict));
        self.near_misses = cx.reports.near_misses;
        self.program.get_or_insert_with(|| ProgramFacts::of(&module));
        self.feed_forward.get_or_insert_with(|| moe::blocks(&module));
        self.module = Some(module);
        Ok(())
    }

    /// The program after the last pass that ran. `None` if the model cannot be imported.
    pub fn module(&self) -> Option<&Module> {
        self.module.as_ref()
    }
}

/// Warns of a program that does not fit into the memory of a device.
fn larger(planned: u64, device: &Device) -> Option<Diagnostic> {
    (planned > device.memory).then(|| {
        let [planned, memory] = [planned, device.memory].map(units::bytes);
        let message = format!("the program takes {planned}, and the {} has {memory}", visible(&device.name));
        let remedy = format!("--memory {} computes activations again", Budget(device.memory));
        Diagnostic::new(message)
            .note(format!("{remedy}; a smaller --microbatch, a mesh of more devices or --zero takes less"))
    })
}

/// The flag that binds dims.
fn bind_hint(unbound: &[String]) -> String {
    let sizes: Vec<String> = unbound.iter().map(|name| format!("{name}=SIZE")).collect();
    format!("bind the dims: --bind {}", sizes.join(","))
}

/// Returns the reasons of a user's mistake. A fault of the compiler stays an error.
fn told(failure: Failure) -> Result<Vec<Diagnostic>, Failure> {
    match failure {
        Failure::User(diagnostics) => Ok(diagnostics),
        fault => Err(fault),
    }
}
