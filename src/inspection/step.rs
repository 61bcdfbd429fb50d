//! The cost of a step of training: operations, traffic, memory.

use super::cluster::ClusterFacts;
use super::collectives::Communication;
use crate::compilation::Compilation;
use crate::failure::Failure;
use crate::fit::Peaks;
use crate::sizes;
use crate::training::Programs;
use ir::analysis::{Shares, StepCost};
use ir::machine::Machine;
use ir::{Module, Phase, Role, StageTable};
use program::UpdateTime;
use serde::Serialize;

/// The name of the axis of a pipeline's ranks.
pub(super) const PIPELINE_AXIS: &str = "pp";

/// A step of training.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepFacts {
    /// Samples in a microbatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<u64>,
    /// Microbatches in a step.
    pub microbatches: u64,
    /// Floating-point operations of the step; a multiply-add is two.
    pub flops: u64,
    /// The cost of one run of each phase, in the order of the phases.
    pub phases: Vec<PhaseCost>,
    /// Memory.
    pub memory: MemoryFacts,
    /// The devices, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mesh: Option<MeshFacts>,
    /// The cluster of the question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterFacts>,
}

/// The devices of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeshFacts {
    /// The axes with their sizes, outermost first. The axis of the pipeline is the outermost.
    pub axes: Vec<(String, u64)>,
    /// The number of all devices.
    pub devices: u64,
    /// The traffic and the memory of each device.
    #[serde(flatten)]
    pub each: EachDevice,
}

/// The traffic and the memory of each device of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum EachDevice {
    /// All devices are alike.
    Alike(DeviceFacts),
    /// The devices of a pipeline rank are alike.
    ByPipelineRank {
        /// The devices of each pipeline rank.
        pipeline_ranks: Vec<DeviceFacts>,
    },
}

/// The traffic and the memory of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    /// The collectives that it takes part in.
    pub communication: Communication,
    /// The tensors that it holds. Those of one device alone are those of its pipeline rank's stages.
    pub shares: Shares,
}

/// The cost of one run of a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PhaseCost {
    /// The phase.
    pub phase: &'static str,
    /// The number of its nodes.
    pub nodes: usize,
    /// Floating-point operations.
    pub flops: u64,
    /// The bytes that its nodes read.
    pub read: u64,
    /// The bytes that its nodes write.
    pub written: u64,
}

/// Memory, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryFacts {
    /// Parameters that are trained.
    pub parameters: u64,
    /// The states of the model that are not trained.
    pub buffers: u64,
    /// The states of the optimizer.
    pub optimizer: u64,
    /// Gradients of all parameters at once.
    pub gradients: u64,
    /// The bytes that a device allocates to train and evaluate, with states and gradients. In a pipeline, these are the bytes of the rank with
    /// the largest step.
    pub planned: u64,
    /// The bytes that a device would allocate with late updates, if updates are early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_with_late_updates: Option<u64>,
    /// The bytes on the host, if values rest or are computed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<u64>,
    /// The bytes in a file, if values rest there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<u64>,
}

impl StepFacts {
    /// The facts of a step of this number of microbatches, with the programs of its compilation. `machine` is the machine of the question.
    ///
    /// # Errors
    /// A program that no device can run.
    pub(super) fn of(
        step: &Module,
        compilation: &Compilation,
        programs: &Programs,
        microbatches: u64,
        machine: Option<&Machine>,
    ) -> Result<Self, Failure> {
        let cost = StepCost::of(step);
        let phase = |(phase, _): (Phase, &'static str)| {
            let ir::Cost { flops, read, written } = cost.phase(phase);
            let nodes = step.nodes().filter(|(_, node)| node.phase == phase).count();
            PhaseCost { phase: phase.long_name(), nodes, flops, read, written }
        };
        Ok(Self {
            batch: sizes::batch(step),
            microbatches,
            flops: cost.step(microbatches).flops,
            phases: Phase::ALL.into_iter().map(phase).filter(|phase| phase.nodes > 0).collect(),
            memory: MemoryFacts::of(step, compilation, programs, microbatches)?,
            mesh: MeshFacts::of(step, microbatches),
            cluster: match machine {
                Some(Machine::Cluster(cluster)) => Some(ClusterFacts::of(step, microbatches, cluster)),
                Some(Machine::Node(_)) | None => None,
            },
        })
    }
}

impl MeshFacts {
    fn of(module: &Module, microbatches: u64) -> Option<Self> {
        let devices = module.ranks();
        let of_rank = |rank: u32| {
            let module = module.of_pipeline_rank(rank);
            let communication = Communication::of(&module, microbatches);
            DeviceFacts { communication, shares: Shares::of_pipeline_rank(&module, rank) }
        };
        let pipeline_ranks = module.pipeline.as_ref().map(StageTable::ranks);
        let stages = pipeline_ranks.map(|ranks| (PIPELINE_AXIS.to_owned(), u64::from(ranks)));
        let axes = module.mesh.axes.values().map(|axis| (axis.name.clone(), axis.size));
        (devices > 1).then(|| Self {
            axes: stages.into_iter().chain(axes).collect(),
            devices,
            each: match pipeline_ranks {
                None => EachDevice::Alike(of_rank(0)),
                Some(ranks) => {
                    EachDevice::ByPipelineRank { pipeline_ranks: (0..ranks).map(of_rank).collect() }
                }
            },
        })
    }
}

impl MemoryFacts {
    /// The memory of a step with its programs.
    ///
    /// # Errors
    /// A program that no device can run.
    fn of(
        module: &Module,
        compilation: &Compilation,
        programs: &Programs,
        microbatches: u64,
    ) -> Result<Self, Failure> {
        let peaks = Peaks::of(programs);
        let there = |bytes: u64| (bytes > 0).then_some(bytes);
        let late = || {
            let mut late = compilation.clone();
            late.update = UpdateTime::Late;
            Programs::lower(&late, microbatches, programs.target)
        };
        let late = (compilation.update == UpdateTime::Early).then(late).transpose()?;
        let bytes = |roles: &[Role]| {
            let states = module.states.values().filter(|state| roles.contains(&state.role));
            states.filter_map(|state| state.ty.bytes()).fold(0, u64::saturating_add)
        };
        let parameters = bytes(&[Role::Parameter]);
        Ok(Self {
            parameters,
            buffers: bytes(&[Role::Buffer]),
            optimizer: bytes(&[Role::Optimizer, Role::Counter, Role::Scaler, Role::Rng, Role::Compression]),
            gradients: parameters,
            planned: peaks.device,
            planned_with_late_updates: late.map(|late| late.peak()),
            host: there(peaks.host),
            disk: there(peaks.disk),
        })
    }
}
