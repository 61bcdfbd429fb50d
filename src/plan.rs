//! `plan.json`: the results of a compilation, for other programs to read.

mod listing;

use crate::config::Settings;
use crate::failure::Failure;
use crate::fit::Peaks;
use crate::sizes;
use crate::training::{self, RunJob};
use anyhow::Context;
use ir::analysis::Shares;
use passes::reports::{ParameterReport, RowRole};
use program::UpdateTime;
use serde::Serialize;

pub use listing::MemoryPlan;

/// The plan of a run.
#[derive(Clone, Debug, Serialize)]
pub struct RunPlan {
    /// Version of this format.
    pub format: u32,
    /// The model's name.
    pub model: String,
    /// The passes that ran, with their options.
    pub pipeline: String,
    /// The axes of the mesh with their sizes, outermost first; empty on one device.
    pub mesh: Vec<(String, u64)>,
    /// Samples of a microbatch, those of all data ranks.
    pub microbatch: u64,
    /// Microbatches of a step.
    pub microbatches: u64,
    /// `early` if updates run before backward is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update: Option<&'static str>,
    /// Trained tensors of the file.
    pub parameters: usize,
    /// Elements of all trained states.
    pub parameter_elements: u64,
    /// The hash of the training program.
    pub program_hash: String,
    /// Memory of each device.
    pub memory: Memory,
    /// The bytes of each kind of tensor on each device, and on one device alone. `None` without a mesh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<Shares>,
}

/// Bytes that a device allocates.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// The bytes of the arena and of all constants.
    pub peak: u64,
    /// States, in the arena.
    pub states: u64,
    /// The arena of the training program.
    pub training_arena: u64,
    /// The arena of the evaluation program, which takes the same place.
    pub evaluation_arena: u64,
    /// Bytes on the host: states that rest there, and values of nodes that compute there.
    pub host: u64,
    /// Bytes in a file: states that rest there.
    pub disk: u64,
    /// Constants of all programs.
    pub constants: u64,
    /// The most bytes that are alive at a time in the training program: no memory plan takes less.
    pub lower_bound: u64,
    /// The copy of this rank's states in the memory of the host. Checkpoints are written from it while steps go on. It is not part of
    /// `peak`. 0 if the run saves only at its end. If there is no room for the copy, it is not made, and steps wait for the disk.
    pub checkpoint_copy: u64,
}

impl RunPlan {
    /// Makes the plan of the last job of a run, on a device with the programs of all jobs. Errors: as of [`training::step`].
    pub fn new(jobs: &[RunJob], settings: &Settings, microbatches: u64) -> Result<Self, Failure> {
        let RunJob { compilation, programs, .. } = jobs.last().context("a run has a job")?;
        let on_device = training::all_programs(jobs);
        let module = &compilation.training;
        let trained = module.states.values().filter(|state| state.role == ir::Role::Parameter);
        let is_parameter =
            |report: &&ParameterReport| report.role == RowRole::Parameter && report.tied.is_none();
        let (training, evaluation) =
            (programs.training.largest().memory, programs.evaluation.largest().memory);
        let tiers = Peaks::of(programs);
        let is_split = module.mesh.devices() > 1;
        let step = is_split.then(|| training::step(module)).transpose()?;
        Ok(Self {
            format: 1,
            model: module.name.clone(),
            pipeline: compilation.pipeline.to_string(),
            mesh: module.mesh.axes.values().map(|axis| (axis.name.clone(), axis.size)).collect(),
            microbatch: sizes::batch(module).unwrap_or(1),
            microbatches,
            update: (compilation.update == UpdateTime::Early).then_some("early"),
            parameters: compilation.reports.parameters.iter().filter(is_parameter).count(),
            parameter_elements: trained.filter_map(|state| state.ty.numel()).sum(),
            program_hash: format!("{:016x}", programs.training.hash()),
            memory: Memory {
                peak: training::peak(&on_device),
                states: training.states,
                training_arena: training.arena,
                evaluation_arena: evaluation.arena,
                host: tiers.host,
                disk: tiers.disk,
                constants: training::constants(&on_device),
                lower_bound: training.lower_bound,
                checkpoint_copy: training::copy_of_states(programs, settings).unwrap_or(0),
            },
            shares: step.as_ref().map(Shares::of),
        })
    }
}
