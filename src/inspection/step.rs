//! What a step of training takes: operations, traffic, memory.

use crate::compilation::Compilation;
use crate::sizes;
use crate::training::Programs;
use ir::analysis::StepCost;
use ir::{Diagnostic, Module, Phase, Role};
use serde::Serialize;

/// A step of training.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
}

impl StepFacts {
    /// The facts of a whole step. Errors: a global batch that is no whole number of the program's; a program that no
    /// device can run.
    pub(super) fn of(compilation: &Compilation, global_batch: Option<u64>) -> Result<Self, Diagnostic> {
        let module = &compilation.training;
        let microbatches = sizes::microbatches(module, global_batch)?;
        let cost = StepCost::of(module);
        let phase = |(phase, name): (Phase, &'static str)| {
            let ir::Cost { flops, read, written } = cost.phase(phase);
            let nodes = module.nodes().filter(|(_, node)| node.phase == phase).count();
            PhaseCost { phase: long_name(phase, name), nodes, flops, read, written }
        };
        let batched = module.inputs.iter().find(|input| input.batched);
        Ok(Self {
            batch: batched.and_then(|input| module.ty(input.value).dims.first()?.size()),
            microbatches,
            flops: cost.step(microbatches).flops,
            phases: Phase::ALL.into_iter().map(phase).filter(|phase| phase.nodes > 0).collect(),
            memory: MemoryFacts::of(module, Programs::lower(compilation, microbatches)?.peak()),
        })
    }
}

/// The phase in full, where its name in a program is short.
fn long_name(phase: Phase, name: &'static str) -> &'static str {
    match phase {
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Prepare | Phase::Update => name,
    }
}

impl MemoryFacts {
    fn of(module: &Module, planned: u64) -> Self {
        let bytes = |roles: &[Role]| {
            let states = module.states.values().filter(|state| roles.contains(&state.role));
            states.filter_map(|state| state.ty.bytes()).fold(0, u64::saturating_add)
        };
        let parameters = bytes(&[Role::Parameter]);
        Self {
            parameters,
            buffers: bytes(&[Role::Buffer]),
            optimizer: bytes(&[Role::Optimizer, Role::Counter, Role::Scaler, Role::Rng]),
            gradients: parameters,
            planned,
        }
    }
}
