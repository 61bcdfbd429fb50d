//! The report of the pass `recompute`.

use ir::ValueId;
use serde::Serialize;

/// The repeated parts of the forward phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecomputeReport {
    /// The blocks that may be repeated, in program order.
    pub blocks: Vec<BlockReport>,
    /// The values that these blocks compute, in program order, without views and constants.
    #[serde(skip)]
    pub values: Vec<ValueReport>,
}

/// A value of a block, and the choice that was made for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueReport {
    /// The value of the forward phase.
    pub value: ValueId,
    /// The copy of the value that backward computes, if there is one.
    pub copy: Option<ValueId>,
    /// The origin of its node in the ONNX file.
    pub origin: String,
    /// The name of its operator.
    pub operator: &'static str,
    /// The index of its block.
    pub block: usize,
    /// The bytes of the value on a device.
    pub bytes: u64,
    /// The predicted picoseconds of its node on a device. If the value is not computed again, those of all nodes that would have to be
    /// repeated for it. `None` if one of them is a reduction over devices or a transfer, which is never repeated.
    pub picoseconds: Option<u64>,
    /// The choice.
    pub fate: Fate,
}

impl ValueReport {
    /// Returns the price of keeping the value, in picoseconds, if a KiB costs `price`.
    pub fn price(&self, price: u64) -> u128 {
        u128::from(self.bytes) * u128::from(price) / 1024
    }
}

/// The choice that was made for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The value is kept until backward reads it.
    Kept,
    /// Backward computes the value again.
    Repeated,
    /// The value is kept because a later block reads it.
    Between,
    /// Neither backward nor a repeated node reads the value.
    Unread,
}

/// A block: a part of the forward phase after which a single large value is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockReport {
    /// The origin of its first node in the ONNX file.
    pub first: String,
    /// The origin of its last node in the ONNX file.
    pub last: String,
    /// The repeated operators with their counts, in the order of their first node.
    #[serde(rename = "recomputed")]
    pub operators: Vec<(&'static str, usize)>,
    /// The predicted time of the repeated nodes on a device, in picoseconds.
    pub picoseconds: u64,
    /// The bytes on a device of the block's activations that backward reads, if nothing is repeated.
    pub kept_before: u64,
    /// The same bytes, if the nodes of this report are repeated.
    pub kept: u64,
    /// The price of a kept activation in this block: picoseconds for each KiB.
    pub price: u64,
}
