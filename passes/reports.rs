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
    /// The objective, and how it was recognised.
    pub text: String,
    /// The outputs of the file that are scalars: its own loss, and metrics.
    pub scalars: Vec<String>,
    /// A warning for steps of several microbatches, whose loss may not be that of the whole batch.
    pub doubt: Option<Diagnostic>,
}

/// The gradients that data ranks reduce in another form, and the bytes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressedGradientsReport {
    /// The method for the user.
    pub method: String,
    /// The gradients that are compressed.
    pub compressed: usize,
    /// All gradients.
    pub tensors: usize,
    /// Bytes of all gradients, each of which a reduction of a step would take.
    pub before: u64,
    /// Bytes that the reductions of a step take.
    pub after: u64,
}

/// A place where a pattern was nearly found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NearMiss {
    /// The operator that would have stood there.
    pub pattern: &'static str,
    /// Where in the file.
    pub origin: Arc<str>,
    /// The obstacle to the pattern.
    pub reason: String,
}

/// How a named value is sharded, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardingReport {
    /// The state's or input's name.
    pub name: String,
    /// Its sharding as text prints it: `{dp, -}`.
    pub sharding: String,
    /// For each axis what split it.
    pub reasons: Vec<String>,
}
