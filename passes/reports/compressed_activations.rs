//! The report of the pass `compress_activations`.

use ir::{DType, Module, ValueId};

/// The activations that wait for backward, and the forms that they got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressedActivationsReport {
    /// The activations before the pass.
    pub before: KeptReport,
    /// The activations after the pass.
    pub after: KeptReport,
    /// The number of activations that are kept as bits.
    pub masks: u64,
    /// The number of ReLUs whose gradient reads the result, which is kept in any case, in place of the operand.
    pub outputs: u64,
    /// The number of max poolings for which the places of the largest elements are kept.
    pub indices: u64,
    /// The narrower type, and the number of activations that are kept in it.
    pub rounded: Option<(DType, u64)>,
}

/// Activations that wait for backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptReport {
    /// The number of activations.
    pub count: u64,
    /// The bytes of a microbatch's activations on each device.
    pub bytes: u64,
}

impl KeptReport {
    /// Reports these activations of a module.
    pub(crate) fn of(module: &Module, values: &[ValueId]) -> Self {
        let bytes = values.iter().filter_map(|&value| module.ty(value).local_bytes(&module.mesh));
        Self { count: values.len() as u64, bytes: bytes.fold(0, u64::saturating_add) }
    }
}
