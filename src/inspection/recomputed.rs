//! The blocks of the forward phase, and the parts that backward computes again.

use super::units::bytes;
use ir::visible;
use passes::reports::{BlockReport, RecomputeReport};
use serde::Serialize;
use std::fmt;

/// The parts of a step that backward computes again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecomputeFacts {
    /// Every block that may be computed again, in program order.
    pub blocks: Vec<BlockFacts>,
}

/// A block, such as a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockFacts {
    /// The ONNX node that its first node came from.
    pub first: String,
    /// The ONNX node that its last node came from.
    pub last: String,
    /// The operators that are computed again, with their counts.
    pub recomputed: Vec<(&'static str, usize)>,
    /// The predicted time of these on a device, in picoseconds.
    pub picoseconds: u64,
    /// Bytes on a device of the activations that backward reads, if none is computed again.
    pub kept_before: u64,
    /// Bytes that are kept.
    pub kept: u64,
}

impl RecomputeFacts {
    /// The facts of a report.
    pub fn of(report: &RecomputeReport) -> Self {
        Self { blocks: report.blocks.iter().map(BlockFacts::of).collect() }
    }
}

impl BlockFacts {
    fn of(report: &BlockReport) -> Self {
        let BlockReport { first, last, operators, picoseconds, kept_before, kept } = report.clone();
        Self { first, last, recomputed: operators, picoseconds, kept_before, kept }
    }

    /// Whether a line can stand for both.
    fn is_like(&self, other: &Self) -> bool {
        let key = |block: &Self| (block.recomputed.clone(), block.picoseconds, block.kept_before, block.kept);
        key(self) == key(other)
    }
}

impl fmt::Display for RecomputeFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total =
            |number: fn(&BlockFacts) -> u64| self.blocks.iter().map(number).fold(0, u64::saturating_add);
        let [before, kept] = [total(|block| block.kept_before), total(|block| block.kept)].map(bytes);
        let milliseconds = total(|block| block.picoseconds) as f64 / 1e9;
        if self.blocks.is_empty() {
            return writeln!(f, "recomputation: the forward phase has no blocks; nothing is computed again");
        }
        writeln!(
            f,
            "recomputation: {kept} of {before} of activations in {} blocks are kept; {milliseconds:.3} ms of a microbatch are \
             computed again",
            self.blocks.len()
        )?;
        for alike in self.blocks.chunk_by(BlockFacts::is_like) {
            let (first, last) = (&alike[0], &alike[alike.len() - 1]);
            let count =
                if alike.len() == 1 { "1 block".into() } else { format!("{} blocks, each", alike.len()) };
            let names = |(name, count): &(&str, usize)| {
                if *count == 1 { (*name).to_owned() } else { format!("{count} {name}") }
            };
            let operators: Vec<String> = first.recomputed.iter().map(names).collect();
            let operators = if operators.is_empty() { "nothing".into() } else { operators.join(", ") };
            let [before, kept] = [first.kept_before, first.kept].map(bytes);
            writeln!(f, "  {count} {kept} of {before}; again: {operators}")?;
            writeln!(f, "    from {} to {}", visible(&first.first), visible(&last.last))?;
        }
        Ok(())
    }
}
