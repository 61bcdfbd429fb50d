//! What a step of training takes: operations, traffic, memory.

use super::cluster::ClusterFacts;
use super::collectives::Communication;
use super::shares::Shares;
use crate::compilation::Compilation;
use crate::failure::Failure;
use crate::fit::Peaks;
use crate::targets;
use crate::training::{self, Programs};
use ir::analysis::StepCost;
use ir::machine::{DeviceKind, Machine};
use ir::{Module, Phase, Role};
use program::UpdateTime;
use serde::Serialize;

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
    /// What one run of each phase takes, in their order.
    pub phases: Vec<PhaseCost>,
    /// Memory.
    pub memory: MemoryFacts,
    /// The devices, when there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mesh: Option<MeshFacts>,
    /// The cluster that was asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterFacts>,
}

/// What several devices do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeshFacts {
    /// The axes with their sizes, outermost first.
    pub axes: Vec<(String, u64)>,
    /// How many devices there are.
    pub devices: u64,
    /// What they send each other.
    pub communication: Communication,
    /// What each holds.
    pub shares: Shares,
}

/// One run of a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PhaseCost {
    /// The phase.
    pub phase: &'static str,
    /// How many nodes it has.
    pub nodes: usize,
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes that its nodes read.
    pub read: u64,
    /// Bytes that they write.
    pub written: u64,
}

/// Memory, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryFacts {
    /// Parameters that are trained.
    pub parameters: u64,
    /// What the model keeps and does not train.
    pub buffers: u64,
    /// What the optimizer keeps.
    pub optimizer: u64,
    /// Gradients of all parameters at once.
    pub gradients: u64,
    /// All that a device allocates to train and evaluate: the size of the plan, states and gradients included.
    pub planned: u64,
    /// With early updates: all that a device would allocate with late ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_with_late_updates: Option<u64>,
    /// On the host, if values rest or are computed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<u64>,
    /// In a file, if values rest there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<u64>,
}

impl StepFacts {
    /// The facts of a step of this number of microbatches, on a machine if one was named. Errors: a program that no device can run.
    pub(super) fn of(
        compilation: &Compilation,
        microbatches: u64,
        machine: Option<&Machine>,
    ) -> Result<Self, Failure> {
        let module = &training::step(&compilation.training)?;
        let cost = StepCost::of(module);
        let cluster = match machine {
            Some(Machine::Cluster(cluster)) => Some(cluster),
            Some(Machine::Node(_)) | None => None,
        };
        let phase = |(phase, _): (Phase, &'static str)| {
            let ir::Cost { flops, read, written } = cost.phase(phase);
            let nodes = module.nodes().filter(|(_, node)| node.phase == phase).count();
            PhaseCost { phase: phase.long_name(), nodes, flops, read, written }
        };
        let batched = module.inputs.iter().find(|input| input.batched);
        Ok(Self {
            batch: batched.and_then(|input| module.ty(input.value).dims.first()?.size()),
            microbatches,
            flops: cost.step(microbatches).flops,
            phases: Phase::ALL.into_iter().map(phase).filter(|phase| phase.nodes > 0).collect(),
            memory: MemoryFacts::of(module, compilation, microbatches)?,
            mesh: MeshFacts::of(module, microbatches),
            cluster: cluster.map(|cluster| ClusterFacts::of(module, microbatches, cluster)),
        })
    }
}

impl MeshFacts {
    fn of(module: &Module, microbatches: u64) -> Option<Self> {
        let devices = module.mesh.devices();
        (devices > 1).then(|| Self {
            axes: module.mesh.axes.values().map(|axis| (axis.name.clone(), axis.size)).collect(),
            devices,
            communication: Communication::of(module, microbatches),
            shares: Shares::of(module),
        })
    }
}

impl MemoryFacts {
    /// The facts of a step. Errors: a program that no device can run.
    fn of(module: &Module, compilation: &Compilation, microbatches: u64) -> Result<Self, Failure> {
        let planned = |compilation: &Compilation| {
            Programs::lower(compilation, microbatches, targets::of(DeviceKind::Cpu))
                .map(|programs| Peaks::of(&programs))
        };
        let peaks = planned(compilation)?;
        let there = |bytes: u64| (bytes > 0).then_some(bytes);
        let mut late = compilation.clone();
        late.update = UpdateTime::Late;
        let late = (compilation.update == UpdateTime::Early).then(|| planned(&late)).transpose()?;
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
            planned_with_late_updates: late.map(|late| late.device),
            host: there(peaks.host),
            disk: there(peaks.disk),
        })
    }
}
