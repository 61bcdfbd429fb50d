//! Recompute: drops activations that backward reads, and repeats their forward nodes just before backward reads them.
//!
//! A kept activation costs its bytes times a price; a repeated node costs its time on a device. For one price the cheapest choice
//! is a minimum cut of each block (`cut`). `--recompute` gives a price, and `--memory` searches for the lowest price whose program
//! fits. Blocks are found in the graph (`blocks`). The values between blocks are always kept: without them, all of the
//! forward phase would be repeated at the start of backward, which saves nothing.
//!
//! Invariants: a repeated node is a copy (`copy = 1`) in backward, immediately before its first reader. It reads the same
//! operands, or copies of them. It writes no state. Reductions over devices are never repeated; gathers may be. Random operators
//! are counted, so that a copy draws the same numbers.

mod blocks;
mod copies;
mod cut;
#[cfg(test)]
mod tests;

use crate::arguments::Arguments;
use crate::pass::{PassContext, Transform};
use crate::reports::{BlockReport, RecomputeReport};
use crate::rewriting::dead::remove_dead;
use blocks::Blocks;
use cranelift_entity::EntitySet;
use ir::analysis::live_nodes;
use ir::machine::Device;
use ir::{Changed, Diagnostic, Module, NodeId, Phase};
use std::fmt;

/// The pass `recompute`. `recompute(price=1536)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recompute {
    /// The price of a kept activation: picoseconds for each KiB.
    pub price: u64,
    /// The number of blocks, from the first on, that this price is for. `None`: all of them.
    pub first: Option<u64>,
    /// The price in the blocks after these.
    pub then: u64,
}

impl Recompute {
    /// The price of `--recompute selective`, 1.5 ps for a byte. An elementwise operator, a norm, or the scores of an attention
    /// head are cheaper on a GPU; a multiplication by a weight matrix is not.
    pub const SELECTIVE: Self = Self { price: 1536, first: None, then: 0 };

    /// The price of `--recompute full`: more than any time, so that only bytes count.
    pub const FULL: Self = Self { price: 1 << 50, first: None, then: 0 };
}

impl Default for Recompute {
    fn default() -> Self {
        Self::SELECTIVE
    }
}

impl Transform for Recompute {
    const NAME: &'static str = "recompute";
    const NEEDED: bool = false;

    fn parse(arguments: &mut Arguments) -> Result<Self, String> {
        let default = Self::default();
        let first = arguments.value("first", u64::MAX)?;
        Ok(Self {
            price: arguments.value("price", default.price)?,
            first: (first != u64::MAX).then_some(first),
            then: arguments.value("then", default.then)?,
        })
    }

    fn print(&self, arguments: &mut Arguments) {
        let default = Self::default();
        arguments.push_unless(&default.price, "price", &self.price);
        arguments.push_unless(&u64::MAX, "first", &self.first.unwrap_or(u64::MAX));
        arguments.push_unless(&default.then, "then", &self.then);
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        let decision = decide(module, self);
        cx.recomputed = Some(decision.report(module));
        apply(module, &decision)
    }
}

/// The nodes that are repeated, block by block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    blocks: Vec<BlockDecision>,
}

/// The decision for a block.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BlockDecision {
    /// The first and the last node of the block.
    ends: [NodeId; 2],
    /// The repeated nodes, in program order.
    repeated: Vec<NodeId>,
    /// Picoseconds that they take.
    time: u64,
    /// Bytes on a device of the block's activations that backward reads: without the pass, and with it.
    kept: [u64; 2],
}

impl Decision {
    /// Picoseconds that the repeated nodes of a microbatch take on a device.
    pub fn picoseconds(&self) -> u64 {
        self.blocks.iter().map(|block| block.time).fold(0, u64::saturating_add)
    }

    /// Bytes on a device of the blocks' activations that backward reads and that are kept.
    pub fn kept(&self) -> u64 {
        self.blocks.iter().map(|block| block.kept[1]).fold(0, u64::saturating_add)
    }

    /// The number of blocks that may be repeated.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    fn report(&self, module: &Module) -> RecomputeReport {
        let block = |block: &BlockDecision| {
            let [first, last] = block.ends.map(|node| module.node(node).origin.to_string());
            let mut operators: Vec<(&'static str, usize)> = Vec::new();
            for &node in &block.repeated {
                let name = module.node(node).op.name();
                match operators.iter_mut().find(|(other, _)| *other == name) {
                    Some((_, count)) => *count += 1,
                    None => operators.push((name, 1)),
                }
            }
            let [kept_before, kept] = block.kept;
            BlockReport { first, last, operators, picoseconds: block.time, kept_before, kept }
        };
        RecomputeReport { blocks: self.blocks.iter().map(block).collect() }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, block) in self.blocks.iter().enumerate() {
            let [before, after] = block.kept;
            writeln!(
                f,
                "block {index}: {} nodes repeated, {before} -> {after} bytes kept",
                block.repeated.len()
            )?;
        }
        Ok(())
    }
}

/// Chooses the nodes that are repeated.
pub fn decide(module: &Module, options: &Recompute) -> Decision {
    let live = live_nodes(module);
    let blocks = Blocks::find(module, &live);
    let mut read_in_backward = EntitySet::new();
    let backward = module.nodes().filter(|(id, node)| node.phase == Phase::Backward && live.contains(*id));
    backward.for_each(|(_, node)| read_in_backward.extend(node.operands.iter().copied()));
    let device = Device::assumed();
    let decide = |(index, block): (usize, &Vec<NodeId>)| {
        let in_first = options.first.is_none_or(|first| (index as u64) < first);
        let price = if in_first { options.price } else { options.then };
        let cut = cut::minimum(module, &blocks, &read_in_backward, block, price, &device);
        let ends = [block[0], block[block.len() - 1]];
        BlockDecision { ends, repeated: cut.repeated, time: cut.time, kept: cut.kept }
    };
    Decision { blocks: blocks.repeatable().iter().enumerate().map(decide).collect() }
}

/// Adds the copies, makes backward read them, and removes forward nodes that nobody reads any more.
pub fn apply(module: &mut Module, decision: &Decision) -> Result<Changed, Diagnostic> {
    let repeated = decision.blocks.iter().flat_map(|block| block.repeated.iter().copied()).collect();
    let changed = copies::insert(module, &repeated)?;
    if changed == Changed::Yes {
        remove_dead(module, Recompute::NAME);
    }
    Ok(changed)
}
