//! The activations that wait for backward in another form, and the gradients that data ranks reduce in another form, in words.

use ir::units::bytes;
use passes::reports::{CompressedActivationsReport, CompressedGradientsReport};

/// `activations kept for backward: 1.2 MiB instead of 8.3 MiB, 4 as bits`
pub fn compressed_activations(report: &CompressedActivationsReport) -> String {
    let CompressedActivationsReport { masks, outputs, indices, rounded, .. } = *report;
    let (kept, before) = (bytes(report.kept), bytes(report.kept_before));
    let mut text = format!("activations kept for backward: {kept} instead of {before}");
    let forms = [
        (masks, "as bits"),
        (outputs, "read from the results of their ReLUs"),
        (indices, "as places in windows"),
    ];
    for (count, form) in forms.into_iter().filter(|(count, _)| *count > 0) {
        text += &format!(", {count} {form}");
    }
    if let (Some(dtype), Some(error)) = (report.dtype, report.relative_error) {
        let bits = error.log2();
        text += &format!(", {rounded} as {dtype} (relative error of an element at most 2^{bits})");
    }
    text
}

/// `gradients: PowerSGD of rank 4 compresses 9 of 26 tensors; a step reduces 1.2 MB in place of 8.3 MB`
pub fn compressed_gradients(report: &CompressedGradientsReport) -> String {
    let CompressedGradientsReport { method, compressed, tensors, before, after } = report;
    let (before, after) = (bytes(*before), bytes(*after));
    format!(
        "gradients: {method} compresses {compressed} of {tensors} tensors; a step reduces {after} in place of {before}"
    )
}
