//! The reports of passes, as plain data: [`crate::PassContext`] holds them, and a pass fills in its own. `inspect` writes them as JSON as
//! they are.

mod compressed_activations;
mod parameters;
mod recompute;
mod stages;

pub use compressed_activations::CompressedActivationsReport;
pub use parameters::{ParameterReport, RowRole, StateView, Tie};
pub use recompute::{BlockReport, Fate, RecomputeReport, ValueReport};
pub use stages::{CandidateReport, StageReport};

use ir::Diagnostic;
use serde::Serialize;
use std::collections::BTreeMap;

/// The reports of all passes that have something to say. A pass fills its own field.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reports {
    /// The role of each float tensor of the file; filled by `parameters`.
    pub parameters: Vec<ParameterReport>,
    /// Places where a pattern was nearly found, with reasons; filled by `canonicalize`.
    pub near_misses: Vec<NearMiss>,
    /// The objective; filled by `loss`.
    pub loss: Option<LossReport>,
    /// The operators that compute in half precision; filled by `precision`. `None` for a program in f32.
    pub precision: Option<PrecisionReport>,
    /// The choice of the schedule and the cut; filled by the search for stages. `None` for a program without stages.
    pub stages: Option<StageReport>,
    /// The sharding of each input and state over the mesh; filled by `spmd`.
    pub shardings: Vec<ShardingReport>,
    /// The gradients that data ranks reduce in another form; filled by `compress_gradients`. `None` if they are reduced as they are.
    pub compressed_gradients: Option<CompressedGradientsReport>,
    /// The blocks of the forward phase, and the parts of them that backward repeats; filled by `recompute`.
    pub recomputed: Option<RecomputeReport>,
    /// The forms of activations that wait for backward; filled by `compress_activations`.
    pub compressed_activations: Option<CompressedActivationsReport>,
}

/// The description of the loss for the user.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct LossReport {
    /// The objective, and the way in which it was recognised.
    pub text: String,
    /// The outputs of the file that are scalars: its own loss and metrics.
    #[serde(skip)]
    pub scalars: Vec<String>,
    /// A warning for steps of several microbatches, whose loss may not be that of the whole batch.
    #[serde(skip)]
    pub doubt: Option<Diagnostic>,
}

/// The operators of a microbatch that compute in half precision. Nodes that depend on no state, such as those of masks and positions, are
/// not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PrecisionReport {
    /// The half type: `bf16` or `f16`.
    pub half: String,
    /// The number of nodes that compute in half, by operator.
    pub in_half: BTreeMap<&'static str, usize>,
    /// The number of nodes that compute in f32, by operator.
    pub in_f32: BTreeMap<&'static str, usize>,
}

/// The gradients that data ranks reduce in another form, and the bytes of that form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CompressedGradientsReport {
    /// The name of the method, for the user.
    pub method: String,
    /// The number of compressed gradients.
    pub compressed: usize,
    /// The number of all gradients.
    pub tensors: usize,
    /// The bytes of all gradients, which the reductions of a step would take without compression.
    pub before: u64,
    /// The bytes that the reductions of a step take.
    pub after: u64,
}

/// A place where a pattern was nearly found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NearMiss {
    /// The operator that the pattern would have become.
    pub pattern: &'static str,
    /// The place in the file.
    pub origin: String,
    /// The obstacle to the pattern.
    pub reason: String,
}

/// The sharding of a named value, and the reasons for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShardingReport {
    /// The name of the state or input.
    pub name: String,
    /// The sharding as text prints it: `{dp, -}`.
    pub sharding: String,
    /// The reason for each axis.
    pub reasons: Vec<String>,
}
