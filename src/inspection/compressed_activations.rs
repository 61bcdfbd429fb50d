//! The forms in which activations wait for backward.

use super::units::bytes;
use ir::DType;
use passes::reports::CompressedActivationsReport;
use serde::Serialize;
use std::fmt;

/// The activations that wait for backward, and the forms that they got.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CompressedActivationFacts {
    /// Bytes on each device of a microbatch's activations that backward reads, as they are.
    pub kept_before: u64,
    /// The same in their forms.
    pub kept: u64,
    /// The number of activations of which a bit for each element is kept.
    pub masks: u64,
    /// The number of ReLUs whose gradient reads the result in place of the operand.
    pub outputs: u64,
    /// The number of max poolings of which the places of the largest elements are kept.
    pub indices: u64,
    /// The type in which other activations are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// The number of activations in this type.
    pub rounded: u64,
    /// The largest relative error of an element that is kept in this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative_error: Option<f64>,
}

impl CompressedActivationFacts {
    /// The facts of a report.
    pub fn of(report: &CompressedActivationsReport) -> Self {
        let dtype = report.rounded.map(|(dtype, _)| dtype);
        Self {
            kept_before: report.before.bytes,
            kept: report.after.bytes,
            masks: report.masks,
            outputs: report.outputs,
            indices: report.indices,
            dtype: dtype.map(|dtype| dtype.to_string()),
            rounded: report.rounded.map_or(0, |(_, count)| count),
            // Half of the distance of neighbours, of 8 and 11 significant bits.
            relative_error: dtype
                .map(|dtype| if dtype == DType::BF16 { 2f64.powi(-8) } else { 2f64.powi(-11) }),
        }
    }
}

impl fmt::Display for CompressedActivationFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kept, before) = (bytes(self.kept), bytes(self.kept_before));
        let forms = [
            (self.masks, "as bits"),
            (self.outputs, "read from the results of their ReLUs"),
            (self.indices, "as places in windows"),
        ];
        let forms = forms.into_iter().filter(|(count, _)| *count > 0);
        write!(f, "activations kept for backward: {kept} instead of {before}")?;
        for (count, form) in forms {
            write!(f, ", {count} {form}")?;
        }
        if let (Some(dtype), Some(error)) = (&self.dtype, self.relative_error) {
            write!(
                f,
                ", {} as {dtype} (relative error of an element at most 2^{})",
                self.rounded,
                error.log2()
            )?;
        }
        Ok(())
    }
}
