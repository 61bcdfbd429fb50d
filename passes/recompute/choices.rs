//! The possible choices of a program, and the decision for a price.

use super::blocks::Blocks;
use super::cut::{Network, Shape, bytes_of};
use super::{DeviceRates, Recompute};
use cranelift_entity::EntitySet;
use ir::analysis::live_nodes;
use ir::{Module, NodeId, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The blocks of a program with their flow networks. For each price they give a decision.
pub struct Choices<'a> {
    pub(super) module: &'a Module,
    pub(super) blocks: Blocks,
    /// The network of each block that may be repeated.
    pub(super) networks: Vec<Network>,
    /// The distinct shapes of the networks.
    pub(super) shapes: Vec<Shape>,
    /// The index of each network's shape.
    shape_of: Vec<usize>,
    /// The bytes on a device of each block's activations that backward reads, if nothing is repeated.
    kept_before: Vec<u64>,
}

impl fmt::Debug for Choices<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks of {} shapes", self.networks.len(), self.shapes.len())
    }
}

impl<'a> Choices<'a> {
    /// Finds the blocks of a program, and the times of their nodes on a device.
    pub fn of(module: &'a Module, rates: &DeviceRates) -> Self {
        let live = live_nodes(module);
        let blocks = Blocks::find(module, &live);
        let mut read_in_backward = EntitySet::new();
        let backward = module.nodes().filter(|(id, node)| node.phase.is_gradient() && live.contains(*id));
        backward.for_each(|(_, node)| read_in_backward.extend(node.operands.iter().copied()));
        let device = rates.device();
        let network = |block: &Vec<NodeId>| Network::of(module, &blocks, &read_in_backward, block, &device);
        let networks: Vec<Network> = blocks.repeatable().iter().map(network).collect();
        let kept_before = |block: &Vec<NodeId>| {
            let results = block.iter().flat_map(|&id| module.node(id).results.iter().copied());
            bytes_of(module, &blocks, results.filter(|&result| read_in_backward.contains(result)))
        };
        let kept_before = blocks.repeatable().iter().map(kept_before).collect();
        let (mut shapes, mut known) = (Vec::new(), BTreeMap::new());
        let shape_of = networks.iter().map(|network| {
            *known.entry(&network.shape).or_insert_with(|| {
                shapes.push(network.shape.clone());
                shapes.len() - 1
            })
        });
        let shape_of = shape_of.collect();
        Self { module, blocks, networks, shapes, shape_of, kept_before }
    }

    /// Chooses the nodes to repeat. The options name the device whose rates [`Choices::of`] got.
    pub fn decide(&self, options: &Recompute) -> Decision {
        let mut sides: BTreeMap<(usize, u64), Vec<bool>> = BTreeMap::new();
        let blocks = self.networks.iter().enumerate().map(|(index, network)| {
            let (shape, price) = (self.shape_of[index], options.price_in(index));
            let side = sides.entry((shape, price)).or_insert_with(|| self.shapes[shape].source_side(price));
            let cut = network.cut(self.module, &self.blocks, side);
            let kept = [self.kept_before[index], cut.kept];
            BlockDecision { repeated: cut.repeated, needed: cut.needed, time: cut.time, kept }
        });
        Decision { blocks: blocks.collect() }
    }

    /// Returns each decision between two prices with the lowest price that leads to it, in ascending order. The first price is `lowest`.
    ///
    /// The cost of a decision is a linear function of the price. Where the lines of two decisions cross, either a third decision is cheaper
    /// than both, or there is none between them.
    pub fn prices(&self, lowest: &Recompute, highest: &Recompute) -> Vec<(Recompute, Decision)> {
        let ends = [lowest, highest].map(|options| (options.clone(), self.decide(options)));
        let [first, last] = ends;
        let (mut found, mut pending, mut at) = (Vec::new(), vec![last], first);
        while let Some(next) = pending.last() {
            let middle =
                at.1.crossing(&next.1).filter(|price| (at.0.price + 1..next.0.price).contains(price));
            let middle = middle.map(|price| Recompute { price, ..highest.clone() });
            let middle = middle.map(|options| (self.decide(&options), options));
            match middle {
                Some((decision, options)) if decision == next.1 => {
                    pending.last_mut().expect("it is there").0 = options
                }
                Some((decision, options)) if decision != at.1 => {
                    pending.push((options, decision));
                    continue;
                }
                Some(_) | None => {}
            }
            let next = pending.pop().expect("it is there");
            let before = std::mem::replace(&mut at, next);
            if before.1 != at.1 {
                found.push(before);
            }
        }
        found.push(at);
        found
    }
}

/// The nodes that are repeated, block by block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub(super) blocks: Vec<BlockDecision>,
}

/// The decision for a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlockDecision {
    /// The repeated nodes.
    pub(super) repeated: BTreeSet<NodeId>,
    /// The values that are kept because backward, or a repeated node, reads them.
    pub(super) needed: BTreeSet<ValueId>,
    /// The picoseconds of the repeated nodes.
    pub(super) time: u64,
    /// The bytes on a device of the block's activations that backward reads: without the pass, and with it.
    pub(super) kept: [u64; 2],
}

impl Decision {
    /// Returns the picoseconds that the repeated nodes of a microbatch take on a device.
    pub fn picoseconds(&self) -> u64 {
        self.blocks.iter().map(|block| block.time).fold(0, u64::saturating_add)
    }

    /// Returns the bytes on a device of the blocks' activations that backward reads and that are kept.
    pub fn kept(&self) -> u64 {
        self.blocks.iter().map(|block| block.kept[1]).fold(0, u64::saturating_add)
    }

    /// Returns the indices of the blocks with different decisions in `other`.
    pub fn changed_blocks<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = usize> + 'a {
        let both = self.blocks.iter().zip(&other.blocks).enumerate();
        both.filter(|(_, (own, other))| own != other).map(|(index, _)| index)
    }

    /// Whether no node is repeated.
    pub fn is_empty(&self) -> bool {
        self.blocks.iter().all(|block| block.repeated.is_empty())
    }

    /// Returns the repeated nodes of all blocks.
    pub(super) fn repeated(&self) -> BTreeSet<NodeId> {
        self.blocks.iter().flat_map(|block| block.repeated.iter().copied()).collect()
    }

    /// Returns the lowest price at which `other`, a decision that keeps fewer bytes, is cheaper than this one.
    fn crossing(&self, other: &Self) -> Option<u64> {
        let less = self.kept().checked_sub(other.kept()).filter(|&less| less > 0)?;
        let longer = other.picoseconds().saturating_sub(self.picoseconds());
        u64::try_from(u128::from(longer) * 1024 / u128::from(less) + 1).ok()
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, block) in self.blocks.iter().enumerate() {
            let [before, after] = block.kept;
            let nodes = block.repeated.len();
            writeln!(f, "block {index}: {nodes} nodes repeated, {before} -> {after} bytes kept")?;
        }
        Ok(())
    }
}
