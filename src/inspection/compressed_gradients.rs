//! The gradients that data ranks reduce in another form.

use super::units::bytes;
use passes::reports::CompressedGradientsReport;
use serde::Serialize;
use std::fmt;

/// The gradients of a step, and the forms in which data ranks reduce them. Bytes are those of whole tensors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CompressedGradientFacts {
    /// The method for the user.
    pub method: String,
    /// The number of gradients that are compressed.
    pub compressed: usize,
    /// The number of all gradients.
    pub tensors: usize,
    /// Bytes of all gradients.
    pub before: u64,
    /// Bytes that a step reduces in their place.
    pub after: u64,
}

impl CompressedGradientFacts {
    /// The facts of a report.
    pub fn of(report: &CompressedGradientsReport) -> Self {
        let CompressedGradientsReport { method, compressed, tensors, before, after } = report.clone();
        Self { method, compressed, tensors, before, after }
    }
}

/// `gradients: PowerSGD of rank 4 compresses 9 of 26 tensors; a step reduces 1.2 MB in place of 8.3 MB`
impl fmt::Display for CompressedGradientFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, compressed, tensors, .. } = self;
        let (before, after) = (bytes(self.before), bytes(self.after));
        write!(
            f,
            "gradients: {method} compresses {compressed} of {tensors} tensors; a step reduces {after} in place of {before}"
        )
    }
}
