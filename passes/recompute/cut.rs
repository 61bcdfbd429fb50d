//! The cheapest choice for one block: which activations are kept, and which nodes are repeated.
//!
//! A value that backward needs is kept, or its node is repeated, and then backward needs the node's operands. That is a minimum
//! cut: from the source an edge to each value that backward reads; from a value to its node the price of keeping the value; from
//! a node to each operand an edge that cannot be cut; from a node to the sink the time of the node. Nodes on the source's side
//! are repeated (as Jia et al., arXiv 1910.02653, and PyTorch's min-cut partitioner, whose formulation has the time inside the
//! values).

use super::blocks::{Blocks, base, is_activation, is_view_or_constant, local_bytes};
use cranelift_entity::EntitySet;
use ir::machine::Device;
use ir::ops::collective::{Change, Collective};
use ir::{Module, Node, NodeId, Op, ValueId};
use petgraph::algo::dinics;
use petgraph::graph::{DiGraph, EdgeIndex, NodeIndex};
use petgraph::visit::EdgeRef;
use std::collections::{BTreeMap, BTreeSet};

/// The cheapest choice for a block.
pub(super) struct Cut {
    /// The repeated nodes, in program order.
    pub(super) repeated: Vec<NodeId>,
    /// Picoseconds that they take.
    pub(super) time: u64,
    /// Bytes on a device of the block's activations that backward reads: if none is repeated, and after the cut.
    pub(super) kept: [u64; 2],
}

/// The capacity of an edge that is never cut. A sum of many such edges still fits.
const UNCUT: u128 = 1 << 112;

/// Capacities are times a KiB, since prices are for a KiB: so they are whole numbers.
const KIB: u128 = 1024;

/// Finds the cheapest choice for a block, if keeping a KiB costs `price` picoseconds.
pub(super) fn minimum(
    module: &Module,
    blocks: &Blocks,
    read_in_backward: &EntitySet<ValueId>,
    block: &[NodeId],
    price: u64,
    device: &Device,
) -> Cut {
    let members: BTreeSet<NodeId> = block.iter().copied().collect();
    let mut network = Network::new();
    for &id in block {
        let node = module.node(id);
        let time = u128::from(picoseconds(module, node, device)) * KIB;
        let time = if is_repeatable(node) { time } else { UNCUT };
        let own = network.node(Vertex::Node(id));
        network.graph.add_edge(own, network.sink, time);
        for &operand in node.operands.iter().filter(|&&operand| is_choice(module, blocks, &members, operand))
        {
            let operand = network.node(Vertex::Value(operand));
            network.graph.add_edge(own, operand, UNCUT);
        }
        for &result in node.results.iter().filter(|&&result| is_choice(module, blocks, &members, result)) {
            let value = network.node(Vertex::Value(result));
            let price = u128::from(local_bytes(module, result)) * u128::from(price);
            let kept = if node.op.movement().is_layout() { UNCUT } else { price };
            network.graph.add_edge(value, own, kept);
            if read_in_backward.contains(result) {
                network.graph.add_edge(network.source, value, UNCUT);
            }
        }
    }
    let on_source_side = network.source_side();
    let repeated: Vec<NodeId> =
        block.iter().copied().filter(|&id| on_source_side.contains(&Vertex::Node(id))).collect();
    let is_repeated = |value: ValueId| {
        matches!(module.value(value).definition,
        ir::Definition::Node(id, _) if on_source_side.contains(&Vertex::Node(id)))
    };
    let needed = on_source_side.iter().filter_map(|vertex| match vertex {
        Vertex::Value(value) if !is_repeated(*value) => Some(*value),
        _ => None,
    });
    let results = block.iter().flat_map(|&id| module.node(id).results.iter().copied());
    let read = results.filter(|&result| read_in_backward.contains(result));
    let kept = [bytes_of(module, blocks, read), bytes_of(module, blocks, needed)];
    let time =
        repeated.iter().map(|&id| picoseconds(module, module.node(id), device)).fold(0, u64::saturating_add);
    Cut { repeated, time, kept }
}

/// Whether the cut decides on a value: a value of the block that is not kept anyway.
fn is_choice(module: &Module, blocks: &Blocks, members: &BTreeSet<NodeId>, value: ValueId) -> bool {
    let ir::Definition::Node(id, _) = module.value(value).definition else { return false };
    members.contains(&id) && is_activation(module, value) && !blocks.between.contains(value)
}

/// Sums the bytes of the values behind these views. A value counts once. Values between blocks do not count, since they are
/// always kept.
fn bytes_of(module: &Module, blocks: &Blocks, values: impl Iterator<Item = ValueId>) -> u64 {
    let bases: BTreeSet<ValueId> = values.map(|value| base(module, value)).collect();
    let counted =
        bases.into_iter().filter(|&value| is_activation(module, value) && !blocks.between.contains(value));
    counted.map(|value| local_bytes(module, value)).fold(0, u64::saturating_add)
}

/// Whether a node may run twice. A reduction over devices is communication that nobody would wait for twice.
fn is_repeatable(node: &Node) -> bool {
    match &node.op {
        Op::Collective(collective) => match collective {
            Collective::AllReduce | Collective::ReduceScatter => false,
            Collective::AllGather | Collective::AllToAll | Collective::AllSlice => true,
        },
        _ => true,
    }
}

/// The time of a node on a device, by the cost model of [`ir::machine`]. Views and constants take none.
fn picoseconds(module: &Module, node: &Node, device: &Device) -> u64 {
    if is_view_or_constant(&node.op) {
        return 0;
    }
    if let Op::Collective(collective) = &node.op {
        let (from, to) = (module.ty(node.operands[0]), module.ty(node.results[0]));
        let Ok(change) = Change::between(&from.sharding, &to.sharding, from.ndim()) else { return u64::MAX };
        let devices = module.mesh.size(&change.axes);
        let [read, written]: [u64; 2] = [&node.operands[..], &node.results[..]].map(|values| {
            values.iter().map(|&value| local_bytes(module, value)).fold(0, u64::saturating_add)
        });
        let bytes = collective.group_bytes(read, written, devices);
        return device.collective_time(&device.link, *collective, bytes, devices).total();
    }
    let part = module.signature(node).local(&module.mesh);
    // A node takes some time even if its bytes take none, so that it is not repeated for nothing.
    part.map_or(u64::MAX, |part| device.node_time(&node.op, &part).max(1))
}

/// A vertex of the flow network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Vertex {
    Value(ValueId),
    Node(NodeId),
}

/// The flow network of a block.
struct Network {
    graph: DiGraph<Option<Vertex>, u128>,
    source: NodeIndex,
    sink: NodeIndex,
    vertices: BTreeMap<Vertex, NodeIndex>,
}

impl Network {
    fn new() -> Self {
        let mut graph = DiGraph::new();
        let (source, sink) = (graph.add_node(None), graph.add_node(None));
        Self { graph, source, sink, vertices: BTreeMap::new() }
    }

    fn node(&mut self, vertex: Vertex) -> NodeIndex {
        *self.vertices.entry(vertex).or_insert_with(|| self.graph.add_node(Some(vertex)))
    }

    /// The vertices on the source's side of the minimum cut with the smallest such side.
    fn source_side(&self) -> BTreeSet<Vertex> {
        let (_, flows) = dinics(&self.graph, self.source, self.sink);
        let (mut reached, mut pending) = (BTreeSet::from([self.source]), vec![self.source]);
        while let Some(at) = pending.pop() {
            let left = |edge: EdgeIndex| self.graph[edge] - flows[edge.index()];
            let onward = self.graph.edges(at).filter(|edge| left(edge.id()) > 0).map(|edge| edge.target());
            let back = self.graph.edges_directed(at, petgraph::Incoming);
            let back = back.filter(|edge| flows[edge.id().index()] > 0).map(|edge| edge.source());
            for next in onward.chain(back).collect::<Vec<_>>() {
                if reached.insert(next) {
                    pending.push(next);
                }
            }
        }
        reached.into_iter().filter_map(|index| self.graph[index]).collect()
    }
}
