//! The report of the pass `recompute`.

/// The repeated parts of the forward phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecomputeReport {
    /// Each block that may be repeated, in program order.
    pub blocks: Vec<BlockReport>,
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
}
