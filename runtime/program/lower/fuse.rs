//! Chains: elementwise nodes that run as one instruction, so that values that only they read never go to memory.
//!
//! A node joins the chain of its reader under three conditions. Both are of one phase, compute in one memory and have the same dims. All
//! other readers of the node come after the chain's last node, where the chain runs; then the node's result is stored as well. With early
//! updates, both run at the same place of backward.

use super::epilogue::{Added, Fused};
use crate::Section;
use crate::backend::{ChainLimits, Target};
use cranelift_entity::{EntitySet, SecondaryMap};
use ir::analysis::Readers;
use ir::{Module, Node, NodeId, ValueId};

/// A unit that becomes one instruction, or none.
#[derive(Clone, Debug)]
pub(super) enum Item {
    /// A node by itself.
    Node(NodeId),
    /// Elementwise nodes in order, and those of their results that are stored.
    Chain { nodes: Vec<NodeId>, stored: Vec<ValueId> },
    /// A contraction with an epilogue.
    Contract(Box<Fused>),
    /// A gradient whose first result is added to another gradient.
    Added(Box<Added>),
}

impl Item {
    pub(super) fn section(&self, module: &Module) -> Section {
        module.node(self.nodes()[0]).phase.into()
    }

    /// Returns the item's nodes.
    pub(super) fn nodes(&self) -> &[NodeId] {
        match self {
            Self::Node(node) => std::slice::from_ref(node),
            Self::Chain { nodes, .. } => nodes,
            Self::Contract(fused) => &fused.nodes,
            Self::Added(added) => &added.nodes,
        }
    }
}

struct Chain {
    /// The nodes in reverse order.
    nodes: Vec<NodeId>,
    stored: Vec<ValueId>,
    /// The position of the last node, where the chain runs.
    position: u32,
}

/// Returns the live nodes as items, in an order in which every value is made before it is read. Nodes in different `slots` are in different
/// chains.
pub(super) fn items(
    module: &Module,
    backend: Target,
    live: &EntitySet<NodeId>,
    readers: &Readers,
    unfused: bool,
    slots: &SecondaryMap<NodeId, usize>,
) -> Vec<Item> {
    let limits = if unfused { ChainLimits { operators: 1, results: 1 } } else { backend.chain_limits() };
    let mut fusion = Fusion { module, limits, readers, slots, chains: vec![], chain_of: SecondaryMap::new() };
    let in_chains = |id: &NodeId| {
        let node = module.node(*id);
        backend.at(node.place).kernel_contract(&node.op, node.operands.len()).in_chains
    };
    let order: Vec<NodeId> = module.order().iter().copied().filter(|&id| live.contains(id)).collect();
    for &id in order.iter().rev().filter(|id| in_chains(id)) {
        fusion.assign(id);
    }
    let Fusion { mut chains, chain_of, .. } = fusion;
    let item = |id: NodeId| match chain_of[id] {
        None => Some(Item::Node(id)),
        Some(chain) => {
            let chain = &mut chains[chain as usize];
            (chain.nodes[0] == id).then(|| Item::Chain {
                nodes: chain.nodes.iter().rev().copied().collect(),
                stored: std::mem::take(&mut chain.stored),
            })
        }
    };
    order.into_iter().filter_map(item).collect()
}

struct Fusion<'m> {
    module: &'m Module,
    limits: ChainLimits,
    readers: &'m Readers,
    slots: &'m SecondaryMap<NodeId, usize>,
    chains: Vec<Chain>,
    chain_of: SecondaryMap<NodeId, Option<u32>>,
}

impl Fusion<'_> {
    /// Puts a node into the first chain that reads it, or into a chain of its own.
    fn assign(&mut self, id: NodeId) {
        let node = self.module.node(id);
        let result = node.results[0];
        let chain = match self.reading_chain(id, node) {
            Some(chain) => chain,
            None => {
                self.chains.push(Chain {
                    nodes: vec![],
                    stored: vec![],
                    position: self.readers.position[id],
                });
                self.chains.len() as u32 - 1
            }
        };
        if self.is_read_outside(result, chain) || self.chains[chain as usize].nodes.is_empty() {
            self.chains[chain as usize].stored.push(result);
        }
        self.chains[chain as usize].nodes.push(id);
        self.chain_of[id] = Some(chain);
    }

    fn is_read_outside(&self, value: ValueId, chain: u32) -> bool {
        self.readers.held.contains(value)
            || self.readers.of[value].iter().any(|&reader| self.chain_of[reader] != Some(chain))
    }

    fn reading_chain(&self, id: NodeId, node: &Node) -> Option<u32> {
        let result = node.results[0];
        let fits = |reader: &&NodeId| {
            let (same_slot, reader) = (self.slots[**reader] == self.slots[id], self.module.node(**reader));
            reader.phase == node.phase
                && reader.place == node.place
                && same_slot
                && self.module.ty(reader.results[0]).dims == self.module.ty(result).dims
        };
        let chains = self.readers.of[result].iter().filter(fits).filter_map(|&reader| self.chain_of[reader]);
        let index = chains.min_by_key(|&chain| self.chains[chain as usize].position)?;
        let chain = &self.chains[index as usize];
        let in_time = |reader: &NodeId| {
            self.chain_of[*reader] == Some(index) || self.readers.position[*reader] > chain.position
        };
        let stored = chain.stored.len() + usize::from(self.is_read_outside(result, index));
        let fits = chain.nodes.len() < self.limits.operators
            && stored <= self.limits.results
            && self.readers.of[result].iter().all(in_time);
        fits.then_some(index)
    }
}
