//! The report of the pass `recompute`.

use ir::ValueId;

/// The repeated parts of the forward phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecomputeReport {
    /// Each block that may be repeated, in program order.
    pub blocks: Vec<BlockReport>,
    /// Each value that these blocks compute, in program order. Views and constants are left out.
    pub values: Vec<ValueReport>,
}

/// A value of a block, and the choice that was made for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueReport {
    /// The value of the forward phase.
    pub value: ValueId,
    /// The value that backward computes again.
    pub copy: Option<ValueId>,
    /// The ONNX node that its node came from.
    pub origin: String,
    /// The name of its operator.
    pub operator: &'static str,
    /// The index of its block.
    pub block: usize,
    /// Its bytes on a device.
    pub bytes: u64,
    /// The predicted picoseconds of its node on a device; of a value that is not computed again, with the nodes that would have
    /// to be repeated too. `None` if one of them is a reduction over devices, which is never repeated.
    pub picoseconds: Option<u64>,
    /// The choice.
    pub fate: Fate,
}

impl ValueReport {
    /// The price of keeping the value, in picoseconds, if a KiB costs `price`.
    pub fn price(&self, price: u64) -> u128 {
        u128::from(self.bytes) * u128::from(price) / 1024
    }
}

/// The choice that was made for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is kept until backward reads it.
    Kept,
    /// Backward computes it again.
    Repeated,
    /// It is kept because a later block reads it.
    Between,
    /// Neither backward nor a repeated node reads it.
    Unread,
}

/// A block: a part of the forward phase behind which one large value is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockReport {
    /// The ONNX node that its first node came from.
    pub first: String,
    /// The ONNX node that its last node came from.
    pub last: String,
    /// The repeated operators with their counts, in the order of their first node.
    pub operators: Vec<(&'static str, usize)>,
    /// The predicted time of the repeated nodes on a device, in picoseconds.
    pub picoseconds: u64,
    /// Bytes on a device of the block's activations that backward reads, if nothing is repeated.
    pub kept_before: u64,
    /// The same bytes with this report's nodes repeated.
    pub kept: u64,
    /// The price of a kept activation in this block: picoseconds for each KiB.
    pub price: u64,
}
