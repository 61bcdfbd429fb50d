//! What is inside a model: the facts of its file, what can be done with it, its parameters with the reason for each,
//! its program, and what a step of training takes. `trainyard inspect` shows them as text or as JSON,
//! and the program as a graph.

mod after;
mod cluster;
mod collectives;
mod compressed;
mod dot;
mod facts;
mod feed_forward;
pub mod folder;
mod groups;
mod measured;
mod parameters;
mod prediction;
mod recomputed;
mod shares;
mod stages;
mod step;
mod text;
pub(crate) mod units;
mod why;

pub use after::program_after;
pub use cluster::{AxisFacts, ClusterFacts, CollectiveTimeFacts, LinkFacts, SentFacts};
pub use collectives::{CollectiveFacts, Communication};
pub use compressed::{compressed_activations, compressed_gradients};
pub use dot::dot;
pub use facts::{DiagnosticFacts, FileFacts, Port, ProgramFacts};
pub use folder::FolderFacts;
pub use groups::{GroupFacts, GroupMember};
pub use measured::{MeasuredPipeline, MeasuredRankFacts, MeasuredStageFacts, PredictedIdle};
pub use parameters::{ParameterFacts, PartFacts, TensorRow};
pub(crate) use prediction::milliseconds;
pub use prediction::{
    CommandFacts, ExchangeFacts, KindFacts, MemoryClassFacts, PredictionFacts, SectionFacts,
};
pub use recomputed::recomputed;
pub use shares::{Share, Shares};
pub(crate) use stages::staleness;
pub use stages::{
    PipelineFacts, PipelineStepFacts, RankFacts, StageFacts, TaskFacts, TransferFacts, chosen_schedule,
};
pub use step::{DeviceFacts, EachDevice, MemoryFacts, MeshFacts, PhaseCost, StepFacts};
pub use why::Answer;

use crate::compilation::{self, Compilation, Source};
use crate::compiler::{self, Job, Step, Stopped};
use crate::config::memory::Budget;
use crate::failure::Failure;
use crate::feed;
use crate::plan::MemoryPlan;
use crate::sizes;
use crate::training::Programs;
use data;
use ir::machine::{Device, Machine, Preset};
use ir::{Diagnostic, Module, visible};
use onnx::Model;
use passes::bind::BATCH;
use passes::moe::{self, FeedForward};
use passes::reports::{
    CompressedActivationsReport, CompressedGradientsReport, LossReport, NearMiss, RecomputeReport,
    ShardingReport, StageReport,
};
use passes::{Manager, Timing};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A model that was looked at. What is not known is left out: a model that cannot be imported has its file's facts
/// alone, and one whose dims are not all bound has no costs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Inspection {
    /// The file.
    pub file: FileFacts,
    /// What can be done with it.
    pub support: Support,
    /// Named dims that have no size yet.
    pub unbound: Vec<String>,
    /// Why it cannot be imported or trained, all of it.
    pub reasons: Vec<DiagnosticFacts>,
    /// What may not be what the user means.
    pub warnings: Vec<DiagnosticFacts>,
    /// What its tensors are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<ParameterFacts>,
    /// Groups of parameters that learn or decay otherwise than the rest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupFacts>,
    /// Its forward program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramFacts>,
    /// Its feed-forward blocks, before any became a mixture of experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feed_forward: Option<FeedForward>,
    /// Where one of the patterns was nearly found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub near_misses: Vec<NearMiss>,
    /// What is minimised, and how it was recognised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossReport>,
    /// What a step of training takes.
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
    /// The search for a program that fits into `--memory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fit: Option<String>,
    /// What a step takes on the device that was asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction: Option<PredictionFacts>,
    /// How inputs and states lie over the mesh, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shardings: Vec<ShardingReport>,
    /// How long each pass took.
    pub passes: Vec<Timing>,
    /// The program as far as the passes got.
    #[serde(skip)]
    module: Option<Module>,
    /// The memory plan, if it is asked for.
    #[serde(skip)]
    pub memory_plan: Option<MemoryPlan>,
}

/// How far a model gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Support {
    /// All passes run: it can be trained as it is.
    Trainable,
    /// Its dims are to be bound before it can be trained.
    Unbound,
    /// It can be imported, and not be trained as asked.
    Importable,
    /// Its dims are to be bound before it can be told whether it can be imported.
    Undecided,
    /// It cannot be imported.
    #[default]
    Unsupported,
}

/// Sizes that are made up for dims without one: of dims that stand first in an input, as the batch does, and of the
/// others. Exports' examples have at least two of all; convolutions and pooling need room, and a state that the file
/// has for one sample needs a batch of one.
const MADE_UP_SIZES: [(u64, u64); 5] = [(2, 2), (2, 64), (1, 64), (2, 512), (1, 512)];

/// What a model is looked at with.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// The job.
    pub job: &'a Job,
    /// Sizes of dims.
    pub sizes: BTreeMap<String, u64>,
    /// The machine on which a step is to be predicted.
    pub machine: Option<&'a Machine>,
    /// What shows the program between passes.
    pub manager: Manager,
    /// Whether the memory plan is asked for.
    pub lists_memory: bool,
}

impl Inspection {
    /// Looks at a model. What keeps it from being imported or trained stands in [`Inspection::reasons`].
    ///
    /// # Errors
    /// A program that the verifier refuses: a fault of the compiler.
    pub fn of(model: Model, question: &Question) -> Result<Self, Failure> {
        let mut found = Self {
            file: FileFacts::of(&model, &question.job.model),
            unbound: unbound(&model, &question.sizes),
            warnings: model.warnings.iter().map(DiagnosticFacts::diagnostic).collect(),
            ..Self::default()
        };
        match Source::import(&question.job.model, model.clone(), &question.sizes) {
            Ok(source) => found.compile(&source, question)?,
            Err(failure) => found.refused(&model, question, failure)?,
        }
        Ok(found)
    }

    /// Says why a model cannot be imported. Where dims have no size, sizes made up for the occasion tell whether that is
    /// all that is in the way: what stands in the way of all of them is told, and nothing that is due to one of them.
    fn refused(&mut self, model: &Model, question: &Question, failure: Failure) -> Result<(), Failure> {
        self.reasons = told(failure)?;
        if self.unbound.is_empty() {
            return Ok(());
        }
        let mut always: Option<Vec<DiagnosticFacts>> = None;
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
            let whatever_the_size = always.as_ref() == Some(&reasons);
            let reasons: Vec<DiagnosticFacts> = match always {
                None => reasons,
                Some(known) => known.into_iter().filter(|reason| reasons.contains(reason)).collect(),
            };
            always = Some(reasons);
            if whatever_the_size {
                break;
            }
        }
        match always.filter(|reasons| !reasons.is_empty()) {
            Some(reasons) => self.reasons = reasons,
            None => self.support = Support::Undecided,
        }
        Ok(())
    }

    /// The sizes asked for, and these for the dims that have none: first dims of inputs, and others.
    fn made_up(
        &self,
        model: &Model,
        question: &Question,
        (first, other): (u64, u64),
    ) -> BTreeMap<String, u64> {
        let firsts: BTreeSet<&str> = sizes::inputs(model)
            .filter_map(|input| match input.ty.tensor()?.dims.as_ref()?.first()? {
                onnx::Dim::Named(name) => Some(name.as_str()),
                onnx::Dim::Unknown => Some(BATCH),
                onnx::Dim::Known(_) => None,
            })
            .collect();
        let size = |name: &String| if firsts.contains(name.as_str()) { first } else { other };
        let made_up = self.unbound.iter().map(|name| (name.clone(), size(name)));
        question.sizes.clone().into_iter().chain(made_up).collect()
    }

    /// Runs the passes as far as they go.
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
                // What it could be trained with is known all the same, unless an earlier pass is at fault.
                if compilation.is_none()
                    && let Err(failure) = self.decide_parameters(source, question, &Manager::default())
                {
                    told(failure)?;
                }
                Ok(())
            }
        }
    }

    /// Everything about a program that all passes have run on.
    fn trainable(&mut self, step: Step, question: &Question) -> Result<(), Failure> {
        let Step { source, plan, compilation, microbatches, fit, .. } = step;
        let state_dict = &source.imported.state_dict;
        self.fit = fit;
        self.passes.clone_from(&compilation.timings);
        self.warnings = compilation.warnings.iter().map(DiagnosticFacts::diagnostic).collect();
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
        self.shardings = reports.shardings;
        let processor = Preset::Cpu.device();
        let device = question.machine.map_or(&processor, Machine::device);
        // The bytes of a step without stages are those of the processor's plan. Its prediction has those of the machine.
        let planned_on = if compilation.training.pipeline.is_some() { device } else { &processor };
        let step = Programs::lower_on(&compilation, microbatches, planned_on).and_then(|programs| {
            let step = StepFacts::of(&compilation, &programs, microbatches, question.machine)?;
            Ok((programs, step))
        });
        match step {
            Ok((programs, step)) => {
                self.warnings.extend(compilation.doubt(microbatches).map(DiagnosticFacts::diagnostic));
                self.support = Support::Trainable;
                self.step = Some(step);
                self.predict(&compilation, microbatches, question.machine)?;
                self.pipeline(&compilation, &programs, question.machine)?;
                if question.lists_memory {
                    let budgets = question.job.flags.memory.memory.as_ref();
                    let plan = match device == planned_on {
                        true => MemoryPlan::of(&programs, microbatches, budgets).map_err(Failure::from),
                        false => MemoryPlan::for_device(&compilation, microbatches, device, budgets),
                    };
                    match plan {
                        Ok(plan) => self.memory_plan = Some(plan),
                        Err(failure) => self.reasons.extend(told(failure)?),
                    }
                }
            }
            Err(failure) => self.reasons.extend(told(failure)?),
        }
        self.module = Some(compilation.training);
        Ok(())
    }

    /// Predicts a step on a machine. An operator without a kernel there is a reason; a program that is larger than the device's
    /// memory is warned of.
    fn predict(
        &mut self,
        compilation: &Compilation,
        microbatches: u64,
        machine: Option<&Machine>,
    ) -> Result<(), Failure> {
        let training = &compilation.training;
        let Some(machine) = machine.filter(|_| training.pipeline.is_none()) else { return Ok(()) };
        match PredictionFacts::of(training, microbatches, compilation.update, machine) {
            Ok(prediction) => {
                self.warnings.extend(
                    larger(prediction.planned, machine.device()).as_ref().map(DiagnosticFacts::diagnostic),
                );
                self.prediction = Some(prediction);
            }
            Err(failure) => self.reasons.extend(told(failure)?),
        }
        Ok(())
    }

    /// Looks at the pipeline of a step with its programs. An operator without a kernel on the machine that was asked about is a reason.
    fn pipeline(
        &mut self,
        compilation: &Compilation,
        programs: &Programs,
        machine: Option<&Machine>,
    ) -> Result<(), Failure> {
        match PipelineFacts::of_compiled(compilation, programs, machine) {
            Ok(pipeline) => {
                let planned = pipeline.iter().flat_map(|pipeline| &pipeline.ranks).map(|rank| rank.planned);
                let device = machine.map(Machine::device);
                let warning = planned.max().zip(device).and_then(|(planned, device)| larger(planned, device));
                self.warnings.extend(warning.as_ref().map(DiagnosticFacts::diagnostic));
                self.pipeline = pipeline;
            }
            Err(failure) => self.reasons.extend(told(failure)?),
        }
        Ok(())
    }

    /// Runs the passes up to the one that decides what is a parameter.
    fn decide_parameters(
        &mut self,
        source: &Source,
        question: &Question,
        manager: &Manager,
    ) -> Result<(), Failure> {
        let mut module = source.imported.module.clone();
        let mut cx = source.context();
        let pipeline = compiler::up_to_parameters(question.job, &source.model, &question.sizes);
        self.passes = compilation::run(manager, &pipeline, &mut module, &mut cx, |_, _, _| {})?;
        self.warnings.extend(cx.warnings.iter().map(DiagnosticFacts::diagnostic));
        self.parameters =
            Some(ParameterFacts::of(&cx.reports.parameters, &module, &source.imported.state_dict));
        self.near_misses = cx.reports.near_misses;
        self.program.get_or_insert_with(|| ProgramFacts::of(&module));
        self.feed_forward.get_or_insert_with(|| moe::blocks(&module));
        self.module = Some(module);
        Ok(())
    }

    /// The program as far as the passes got; none if it cannot be imported.
    pub fn module(&self) -> Option<&Module> {
        self.module.as_ref()
    }

    /// The diagnostics that [`Inspection::reasons`] has.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        self.reasons.iter().map(DiagnosticFacts::as_diagnostic).collect()
    }
}

/// The warning about a program that does not fit into the memory of a device.
fn larger(planned: u64, device: &Device) -> Option<Diagnostic> {
    (planned > device.memory).then(|| {
        let [planned, memory] = [planned, device.memory].map(units::bytes);
        let message = format!("the program takes {planned}, and the {} has {memory}", visible(&device.name));
        let remedy = format!("--memory {} computes activations again", Budget(device.memory));
        Diagnostic::new(message)
            .note(format!("{remedy}; a smaller --microbatch, a mesh of more devices or --zero takes less"))
    })
}

/// The named dims of a model's inputs that have no size.
fn unbound(model: &Model, bindings: &BTreeMap<String, u64>) -> Vec<String> {
    sizes::dim_names(model).into_iter().filter(|name| !bindings.contains_key(name)).collect()
}

/// How to bind dims.
fn bind_hint(unbound: &[String]) -> String {
    let sizes: Vec<String> = unbound.iter().map(|name| format!("{name}=SIZE")).collect();
    format!("bind the dims: --bind {}", sizes.join(","))
}

/// The reasons of a user's mistake; a fault stays a fault.
fn told(failure: Failure) -> Result<Vec<DiagnosticFacts>, Failure> {
    match failure {
        Failure::User(diagnostics) => Ok(diagnostics.iter().map(DiagnosticFacts::diagnostic).collect()),
        fault => Err(fault),
    }
}
