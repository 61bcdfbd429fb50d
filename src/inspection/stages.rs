//! The pipeline of a step: its cut into stages, the memory of its ranks, and its predicted timetable: `inspect --mesh pp=4`.

mod arrows;
mod cut;
mod drawing;
mod html;
mod schedule;
mod step;
mod text;
mod times;

use super::prediction::MemoryClassFacts;
use crate::compilation::Compilation;
use crate::failure::Failure;
use crate::training::{self, Programs};
pub(super) use arrows::Arrow;
use ir::machine::{Device, Machine, Preset};
use ir::timetable::{Task, TaskTime, slots};
use ir::{Dependency, Module, Phase, StageTable, Timeline};
use program::simulator::pipeline::SimulatedRank;
use program::{Program, StagePrograms, Target, UpdateTime};
pub use schedule::chosen_schedule;
pub(super) use schedule::other_schedules;
use serde::Serialize;
pub use step::PipelineStepFacts;
pub(crate) use text::staleness;
use times::Times;

/// A pipeline: simulated on the machine of the question, or priced by the cost model of the pass that cuts the program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PipelineFacts {
    /// The schedule.
    pub schedule: String,
    /// Microbatches of the timetable.
    pub microbatches: u32,
    /// The steps of the timetable: 1, unless steps follow each other without a flush.
    #[serde(skip_serializing_if = "is_one")]
    pub steps: u32,
    /// The device whose rates the times follow from.
    pub device: String,
    /// The milliseconds from the start of the first task of a step to the end of its last task.
    pub microbatches_ms: f64,
    /// The whole step, if the question names a machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<PipelineStepFacts>,
    /// The stages.
    pub stages: Vec<StageFacts>,
    /// The pipeline ranks.
    pub ranks: Vec<RankFacts>,
    /// The transfers of a microbatch between stages of different ranks.
    pub transfers: Vec<TransferFacts>,
    /// Whether no device was named, so that it is the one that passes assume.
    #[serde(skip)]
    is_assumed: bool,
    /// The table of stages, and the dependencies of its tasks.
    #[serde(skip)]
    plan: (StageTable, Vec<Dependency>),
    /// The times of tasks and transfers.
    #[serde(skip)]
    times: Times,
}

/// A stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageFacts {
    /// The pipeline rank that has it.
    pub rank: u32,
    /// The origin of its first node in the file.
    pub first: String,
    /// The origin of its last node in the file.
    pub last: String,
    /// In an asynchronous schedule, the number of updates between the weights that it reads and the newest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<u32>,
    /// Elements of its trained parameters. A parameter that several stages read belongs to the first of them.
    pub parameters: u64,
    /// Milliseconds of its forward task.
    pub forward_ms: f64,
    /// Milliseconds of its backward task.
    pub backward_ms: f64,
    /// Milliseconds of its task for gradients of parameters, if the schedule has such tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_ms: Option<f64>,
    /// The time of its tasks as a share of the slowest stage's.
    pub share_of_slowest: f64,
    /// Bytes of a microbatch that each device sends to later stages.
    pub sent_forward: u64,
    /// Bytes of a microbatch that each device sends to earlier stages.
    pub sent_backward: u64,
}

/// A pipeline rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankFacts {
    /// Its stages.
    pub stages: Vec<u32>,
    /// Bytes that each of its devices allocates to train.
    pub planned: u64,
    /// These bytes by class, where most of the memory is in use.
    pub memory: MemoryClassFacts,
    /// The largest number of sets of activations that wait for backward at once. A set belongs to a stage and a microbatch.
    pub kept_for_backward: u32,
    /// The largest number of sets that wait for the gradients of parameters, if these are tasks of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_for_weight: Option<u32>,
    /// The share of the time in which it computes nothing.
    pub idle: f64,
    /// Its tasks in order.
    pub tasks: Vec<TaskFacts>,
}

/// A task, with its time since the first microbatch began.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskFacts {
    /// `forward`, `backward` or `weight gradients`.
    pub phase: &'static str,
    /// The stage.
    pub stage: u32,
    /// The microbatch, counted from 0.
    pub microbatch: u32,
    /// Milliseconds when it begins.
    pub begin_ms: f64,
    /// Milliseconds when it is done.
    pub end_ms: f64,
    /// The task.
    #[serde(skip)]
    pub(super) task: Task,
}

/// The messages of a microbatch from a task of one rank to a task of another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransferFacts {
    /// The phase and the stage of the sender: `F0`.
    pub from: String,
    /// The phase and the stage of the receiver.
    pub to: String,
    /// Bytes that each device sends.
    pub bytes: u64,
    /// Milliseconds until all bytes have arrived.
    pub ms: f64,
}

impl PipelineFacts {
    /// The pipeline of a step that is lowered for a machine, or for the processor. `None` for a program without stages.
    ///
    /// # Errors
    /// An operator without a kernel for the machine.
    pub fn of_step(module: &Module, machine: Option<&Machine>) -> Result<Option<Self>, Failure> {
        let Some(pipeline) = &module.pipeline else { return Ok(None) };
        let processor = Preset::Cpu.device();
        let device = machine.map_or(&processor, Machine::device);
        let microbatches = pipeline.microbatches.into();
        let (programs, target) =
            training::lower_step_on(module.clone(), microbatches, UpdateTime::Late, device)?;
        Self::of_programs(&training::step(module)?, &programs, target, machine)
    }

    /// The pipeline of a compiled step with its programs. `None` for a program without stages.
    ///
    /// # Errors
    /// As [`Self::of_step`].
    pub(crate) fn of_compiled(
        compilation: &Compilation,
        programs: &Programs,
        machine: Option<&Machine>,
    ) -> Result<Option<Self>, Failure> {
        let step = training::step(&compilation.training)?;
        Self::of_programs(&step, &programs.training, programs.target, machine)
    }

    /// The facts of a step with the programs of its pipeline ranks. Without a machine, the times are those of the device that passes assume.
    /// `None` for a program without stages.
    ///
    /// # Errors
    /// A timetable that cannot run: a fault.
    pub(super) fn of_programs(
        module: &Module,
        programs: &StagePrograms,
        target: Target,
        machine: Option<&Machine>,
    ) -> Result<Option<Self>, Failure> {
        let Some(pipeline) = module.pipeline.clone() else { return Ok(None) };
        let simulated = machine.map(|machine| {
            let ranks = programs.iter().map(|program| SimulatedRank::of(program, target, machine));
            ranks.collect::<Result<Vec<_>, _>>()
        });
        let simulated = simulated.transpose()?;
        let steps = steps_shown(&pipeline);
        let pipeline = if pipeline.is_asynchronous() { pipeline.unrolled(steps) } else { pipeline };
        let (is_assumed, assumed) = (machine.is_none(), Machine::Node(Device::assumed()));
        let machine = machine.unwrap_or(&assumed);
        let times = match &simulated {
            Some(ranks) => Times::simulated(module, &pipeline, machine, ranks),
            None => Times::by_cost_model(module, &pipeline, machine),
        };
        let (microbatches, dependencies) = (pipeline.microbatches, module.dependencies());
        let timeline = Timeline::new(
            &pipeline.timetable,
            &pipeline.placement,
            microbatches,
            &dependencies,
            |part| times.task(part),
            |dependency| times.transfer(dependency),
        );
        let timeline = timeline.map_err(|error| Failure::Fault(anyhow::anyhow!(error)))?;
        let of_rank = |(rank, program)| RankFacts::of(&pipeline, rank, program, &timeline);
        Ok(Some(Self {
            schedule: pipeline.schedule.clone(),
            microbatches,
            steps,
            device: machine.device().name.clone(),
            microbatches_ms: timeline.makespan,
            step: simulated
                .map(|ranks| PipelineStepFacts::of(module, machine, &ranks, microbatches, timeline.makespan)),
            stages: StageFacts::all(module, &pipeline, &times),
            ranks: (0..).zip(programs.iter().map(|program| &**program)).map(of_rank).collect(),
            transfers: times.transfers().collect(),
            is_assumed,
            plan: (pipeline, dependencies),
            times,
        }))
    }

    /// Whether a rank has several stages.
    fn interleaves(&self) -> bool {
        self.stages.len() > self.ranks.len()
    }

    /// Whether gradients of parameters are tasks of their own.
    fn splits_backward(&self) -> bool {
        self.plan.0.timetable.splits_backward()
    }
}

impl RankFacts {
    fn of(pipeline: &StageTable, rank: u32, program: &Program, timeline: &Timeline<f64>) -> Self {
        let tasks = &pipeline.timetable.ranks[rank as usize];
        let times = &timeline.ranks[rank as usize];
        let splits = pipeline.timetable.splits_backward();
        let kept = |until| slots(tasks, Phase::Forward, until).count;
        let task = |(&task, time): (&Task, &TaskTime<f64>)| TaskFacts {
            phase: task.part.phase.long_name(),
            stage: task.part.chunk,
            microbatch: task.microbatch,
            begin_ms: time.start,
            end_ms: time.end,
            task,
        };
        Self {
            stages: pipeline.stages_of(rank).collect(),
            planned: program.memory.peak(),
            memory: MemoryClassFacts::of(program.memory),
            kept_for_backward: kept(Phase::Backward),
            kept_for_weight: splits.then(|| kept(Phase::Weight)),
            idle: share(timeline.idle(rank as usize), timeline.makespan),
            tasks: tasks.iter().zip(times).map(task).collect(),
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_one(steps: &u32) -> bool {
    *steps == 1
}

/// The number of steps that a timetable shows: enough steps of an unbroken stream to fill the pipeline twice, otherwise one.
fn steps_shown(pipeline: &StageTable) -> u32 {
    if pipeline.is_asynchronous() {
        (2 * pipeline.ranks()).div_ceil(pipeline.microbatches.max(1)).max(2)
    } else {
        1
    }
}

/// The share of a part in a whole, between 0 and 1. It is 0 if the whole is 0.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 }
}
