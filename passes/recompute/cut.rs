//! Finds the cheapest choice for one block: the activations to keep, and the nodes to repeat.
//!
//! A value that backward needs is kept, or its node is repeated, and then backward needs the node's operands. The cheapest choice is a
//! minimum cut of a network with these edges: from the source to each value that backward reads, uncuttable; from a value to its node,
//! the price of keeping the value; from a node to each operand, uncuttable; from a node to the sink, the time of the node. Nodes on the
//! source's side are repeated (as in Jia et al., arXiv 1910.02653, and in PyTorch's min-cut partitioner, whose formulation has the time
//! inside the values).
//!
//! The networks of equal layers differ only in the names of their values, so they are cut once for each price.

use super::blocks::{Blocks, base, is_activation, local_bytes};
use cranelift_entity::EntitySet;
use ir::analysis::{takes_no_time, time_on_mesh};
use ir::machine::Device;
use ir::{Definition, Module, Node, NodeId, Op, ValueId};
use petgraph::algo::dinics;
use petgraph::graph::{DiGraph, EdgeIndex, NodeIndex};
use petgraph::visit::EdgeRef;
use std::collections::{BTreeMap, BTreeSet};

/// The capacity of an edge that is never cut. A sum of many such edges still fits.
const UNCUT: u128 = 1 << 112;

/// The factor of all capacities. Prices are for a KiB, so capacities are whole numbers.
const KIB: u128 = 1024;

/// A vertex of a flow network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Vertex {
    Value(ValueId),
    Node(NodeId),
}

/// The capacity of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Capacity {
    /// The edge cannot be cut.
    Uncut,
    /// The picoseconds of a node.
    Time(u64),
    /// The bytes of a value, which have a price.
    Bytes(u64),
}

impl Capacity {
    /// Returns the capacity if keeping a KiB costs `price` picoseconds.
    fn at(self, price: u64) -> u128 {
        match self {
            Self::Uncut => UNCUT,
            Self::Time(time) => u128::from(time) * KIB,
            Self::Bytes(bytes) => u128::from(bytes) * u128::from(price),
        }
    }
}

/// The indices of the source, of the sink, and of the first vertex.
const SOURCE: u32 = 0;
const SINK: u32 = 1;
const FIRST: u32 = 2;

/// The edges of a flow network, between the indices of its vertices. Equal blocks have equal shapes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape(Vec<(u32, u32, Capacity)>);

impl Shape {
    /// Returns for each vertex whether it is on the source's side of the minimum cut. Of several minimum cuts, that with the smallest side.
    pub(super) fn source_side(&self, price: u64) -> Vec<bool> {
        let mut graph: DiGraph<(), u128> = DiGraph::new();
        let last = self.0.iter().map(|&(from, to, _)| from.max(to)).max().unwrap_or(SINK);
        for _ in 0..=last {
            graph.add_node(());
        }
        for &(from, to, capacity) in &self.0 {
            graph.add_edge(from.into(), to.into(), capacity.at(price));
        }
        let source = NodeIndex::from(SOURCE);
        let (_, flows) = dinics(&graph, source, SINK.into());
        let (mut reached, mut pending) = (vec![false; last as usize + 1], vec![source]);
        reached[source.index()] = true;
        while let Some(at) = pending.pop() {
            let left = |edge: EdgeIndex| graph[edge] - flows[edge.index()];
            let onward = graph.edges(at).filter(|edge| left(edge.id()) > 0).map(|edge| edge.target());
            let back = graph.edges_directed(at, petgraph::Incoming);
            let back = back.filter(|edge| flows[edge.id().index()] > 0).map(|edge| edge.source());
            for next in onward.chain(back) {
                if !std::mem::replace(&mut reached[next.index()], true) {
                    pending.push(next);
                }
            }
        }
        reached.split_off(FIRST as usize)
    }
}

/// The flow network of a block.
#[derive(Debug, Default)]
pub(super) struct Network {
    pub(super) shape: Shape,
    /// The vertices, in the order of their indices.
    vertices: Vec<Vertex>,
    places: BTreeMap<Vertex, u32>,
    /// The picoseconds of each node.
    times: BTreeMap<NodeId, u64>,
}

impl Network {
    /// Builds the network of a block.
    pub(super) fn of(
        module: &Module,
        blocks: &Blocks,
        read_in_backward: &EntitySet<ValueId>,
        block: &[NodeId],
        device: &Device,
    ) -> Self {
        let members: BTreeSet<NodeId> = block.iter().copied().collect();
        let is_choice = |value: ValueId| is_choice(module, blocks, &members, value);
        let mut network = Self::default();
        for &id in block {
            let node = module.node(id);
            let own = network.place(Vertex::Node(id));
            let time = picoseconds(module, node, device);
            network.times.insert(id, time);
            let time = if is_repeatable(node) { Capacity::Time(time) } else { Capacity::Uncut };
            network.edge(own, SINK, time);
            for &operand in node.operands.iter().filter(|&&operand| is_choice(operand)) {
                let operand = network.place(Vertex::Value(operand));
                network.edge(own, operand, Capacity::Uncut);
            }
            for &result in node.results.iter().filter(|&&result| is_choice(result)) {
                let value = network.place(Vertex::Value(result));
                let is_view = node.op.movement().is_layout();
                let kept =
                    if is_view { Capacity::Uncut } else { Capacity::Bytes(local_bytes(module, result)) };
                network.edge(value, own, kept);
                if read_in_backward.contains(result) {
                    network.edge(SOURCE, value, Capacity::Uncut);
                }
            }
        }
        network
    }

    fn place(&mut self, vertex: Vertex) -> u32 {
        let next = FIRST + self.vertices.len() as u32;
        let place = *self.places.entry(vertex).or_insert(next);
        if place == next {
            self.vertices.push(vertex);
        }
        place
    }

    fn edge(&mut self, from: u32, to: u32, capacity: Capacity) {
        self.shape.0.push((from, to, capacity));
    }

    /// Returns the choice for a cut, given the source's side of it.
    pub(super) fn cut(&self, module: &Module, blocks: &Blocks, source_side: &[bool]) -> Cut {
        let mut repeated = BTreeSet::new();
        let mut needed = Vec::new();
        for (vertex, _) in self.vertices.iter().zip(source_side).filter(|(_, is_reached)| **is_reached) {
            match vertex {
                Vertex::Node(id) => drop(repeated.insert(*id)),
                Vertex::Value(value) => needed.push(*value),
            }
        }
        let is_repeated = |value: &ValueId| match module.value(*value).definition {
            Definition::Node(id, _) => repeated.contains(&id),
            Definition::Input(_) | Definition::State(_) => false,
        };
        needed.retain(|value| !is_repeated(value));
        let time = repeated.iter().map(|id| self.times[id]).fold(0, u64::saturating_add);
        let kept = bytes_of(module, blocks, needed.iter().copied());
        Cut { repeated, needed: needed.into_iter().collect(), time, kept }
    }

    /// Whether a node is in the block.
    pub(super) fn contains(&self, id: NodeId) -> bool {
        self.times.contains_key(&id)
    }

    /// Returns the picoseconds of a node of the block.
    pub(super) fn time(&self, id: NodeId) -> u64 {
        self.times.get(&id).copied().unwrap_or(0)
    }
}

/// The cheapest choice for a block.
pub(super) struct Cut {
    /// The repeated nodes.
    pub(super) repeated: BTreeSet<NodeId>,
    /// The values that are kept because backward, or a repeated node, reads them.
    pub(super) needed: BTreeSet<ValueId>,
    /// The picoseconds of the repeated nodes.
    pub(super) time: u64,
    /// The bytes on a device of the kept values.
    pub(super) kept: u64,
}

/// Whether the cut decides about a value: it belongs to the block and is not kept in any case.
pub(super) fn is_choice(
    module: &Module,
    blocks: &Blocks,
    members: &BTreeSet<NodeId>,
    value: ValueId,
) -> bool {
    let Definition::Node(id, _) = module.value(value).definition else { return false };
    members.contains(&id) && is_activation(module, value) && !blocks.between.contains(value)
}

/// Sums the bytes of the values behind these views. Each value counts once. Values between blocks do not count, since they are
/// always kept.
pub(super) fn bytes_of(module: &Module, blocks: &Blocks, values: impl Iterator<Item = ValueId>) -> u64 {
    let bases: BTreeSet<ValueId> = values.map(|value| base(module, value)).collect();
    let counted =
        bases.into_iter().filter(|&value| is_activation(module, value) && !blocks.between.contains(value));
    counted.map(|value| local_bytes(module, value)).fold(0, u64::saturating_add)
}

/// Whether a node may be repeated. Reductions over devices and transfers between stages may not: their communication would be waited for
/// twice.
pub(super) fn is_repeatable(node: &Node) -> bool {
    match node.op {
        Op::Collective(collective) => !collective.reduces(),
        Op::Transfer(_) => false,
        _ => true,
    }
}

/// Returns the time of a node on a device, by the cost model of [`ir::machine`]. A node takes some time even if its bytes take none, so
/// that it is not repeated without need. Views and constants take none.
fn picoseconds(module: &Module, node: &Node, device: &Device) -> u64 {
    let time = time_on_mesh(module, node, device, |_| device.link);
    if takes_no_time(&node.op) { 0 } else { time.max(1) }
}
