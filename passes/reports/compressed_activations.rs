//! The report of the pass `compress_activations`.

use ir::DType;
use serde::{Serialize, Serializer};

/// The activations that wait for backward, and the forms that they got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CompressedActivationsReport {
    /// The bytes on each device of a microbatch's activations that backward reads, before the pass.
    pub kept_before: u64,
    /// The same bytes after the pass.
    pub kept: u64,
    /// The number of activations that are kept as bits.
    pub masks: u64,
    /// The number of ReLUs whose gradient reads the result, which is kept in any case, in place of the operand.
    pub outputs: u64,
    /// The number of max poolings for which the places of the largest elements are kept.
    pub indices: u64,
    /// The narrower type in which other activations are kept.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
    pub dtype: Option<DType>,
    /// The number of activations in this type.
    pub rounded: u64,
    /// The largest relative error of an element that is kept in this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative_error: Option<f64>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn as_text<S: Serializer>(dtype: &Option<DType>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&dtype.map(|dtype| dtype.to_string()).unwrap_or_default())
}
