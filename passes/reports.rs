//! The reports of passes, as plain data: [`crate::PassContext`] holds them, and a pass fills in its own.

mod compressed_activations;
mod parameters;
mod recompute;
mod stages;

pub use compressed_activations::{CompressedActivationsReport, KeptReport};
pub use parameters::{ParameterReport, RowRole, StateView, Tie};
pub use recompute::{BlockReport, Fate, RecomputeReport, ValueReport};
pub use stages::{CandidateReport, StageReport};

use ir::Diagnostic;
use std::sync::Arc;

/// The description of the loss for the user.
#[derive(Clone, Debug, PartialEq)]
pub struct LossReport {
    /// The objective, and the way in which it was recognised.
    pub text: String,
    /// The outputs of the file that are scalars: its own loss and metrics.
    pub scalars: Vec<String>,
    /// A warning for steps of several microbatches, whose loss may not be that of the whole batch.
    pub doubt: Option<Diagnostic>,
}

/// The gradients that data ranks reduce in another form, and the bytes of that form.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NearMiss {
    /// The operator that the pattern would have become.
    pub pattern: &'static str,
    /// The place in the file.
    pub origin: Arc<str>,
    /// The obstacle to the pattern.
    pub reason: String,
}

/// The sharding of a named value, and the reasons for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardingReport {
    /// The name of the state or input.
    pub name: String,
    /// The sharding as text prints it: `{dp, -}`.
    pub sharding: String,
    /// The reason for each axis.
    pub reasons: Vec<String>,
}
