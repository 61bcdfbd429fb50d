//! The costs of nodes, in picoseconds of one device, by the cost model of [`ir::machine`].
//!
//! Communication alone does not decide between an all_reduce and its two halves: they send the same bytes. The decision follows
//! from the nodes between the halves (norms and elementwise operators on a part move fewer bytes), from the bytes that are kept for
//! backward, and from the latency of one more collective, which wins when the parts are small.

use super::Collectives;
use super::graph::{Ask, ENode, Graph, Head, StepPlace, TypeId, TypeIds};
use egg::Id;
use ir::machine::{CollectiveTime, Device};
use ir::ops::collective::{Change, Collective};
use ir::{Movement, Op, Phase, Signature, Type};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Costs of e-nodes. Layers are alike, so each call is priced once.
pub(super) struct Prices {
    device: Device,
    /// As [`super::Collectives::kept`].
    kept: u64,
    /// As [`super::Collectives::bucket`].
    bucket: u64,
    known: RefCell<BTreeMap<(Op, TypeIds, TypeIds, Phase), u64>>,
}

/// The cost of a node that no device can run.
const UNAFFORDABLE: u64 = u64::MAX / 4;

impl Prices {
    pub(super) fn new(options: &Collectives) -> Self {
        let Collectives { kept, bucket, .. } = *options;
        Self { device: options.device(), kept, bucket, known: RefCell::default() }
    }

    /// Returns the cost of an e-node.
    pub(super) fn of(&self, graph: &Graph, node: &ENode) -> u64 {
        match &node.head {
            Head::Op(op, types, place) if !is_free(graph, node) => {
                let operands: TypeIds =
                    node.args.iter().flat_map(|&arg| graph[arg].data.types.clone()).collect();
                let key = (op.clone(), operands, types.clone(), place.phase);
                if let Some(&cost) = self.known.borrow().get(&key) {
                    return cost;
                }
                let cost = match op {
                    Op::Collective(collective) => self.collective(graph, *collective, &key.1, &key.2, *place),
                    op => self.operator(graph, op, &key.1, &key.2),
                };
                self.known.borrow_mut().insert(key, cost);
                cost
            }
            Head::Saved(_) => local_bytes(graph, graph.type_id(node.args[0])).saturating_mul(self.kept),
            _ => 0,
        }
    }

    /// Returns the time of a collective on one device's part.
    fn collective(
        &self,
        graph: &Graph,
        collective: Collective,
        operands: &[TypeId],
        results: &[TypeId],
        place: StepPlace,
    ) -> u64 {
        let (from, to) = (graph.analysis.ty(operands[0]), graph.analysis.ty(results[0]));
        let Ok(change) = Change::between(&from.sharding, &to.sharding, from.ndim()) else {
            return UNAFFORDABLE;
        };
        let devices = graph.analysis.module.mesh.size(&change.axes);
        let [read, written]: [u64; 2] = [operands, results]
            .map(|types| types.iter().map(|&id| local_bytes(graph, id)).fold(0, u64::saturating_add));
        let bytes = collective.group_bytes(read, written, devices);
        let time = self.device.collective_time(&self.device.link, collective, bytes, devices);
        let travels_in_a_bucket = place.phase == Phase::Update && change.reduced.is_some();
        if !travels_in_a_bucket || bytes >= self.bucket {
            return time.total();
        }
        let share = u128::from(time.latency) * u128::from(bytes) / u128::from(self.bucket.max(1));
        CollectiveTime { latency: share as u64, ..time }.total()
    }

    /// Returns the time of an operator on one device's part.
    fn operator(&self, graph: &Graph, op: &Op, operands: &[TypeId], results: &[TypeId]) -> u64 {
        let types = |ids: &[TypeId]| ids.iter().map(|&id| Type::clone(&graph.analysis.ty(id))).collect();
        let signature = Signature { operands: types(operands), results: types(results) };
        let part = signature.local(&graph.analysis.module.mesh);
        part.map_or(UNAFFORDABLE, |part| self.device.node_time(op, &part))
    }
}

/// Whether a node becomes no kernel: a constant, a view, or a slice of an input, a state or a constant.
fn is_free(graph: &Graph, node: &ENode) -> bool {
    match &node.head {
        Head::Op(Op::Constant(_) | Op::Splat(_), ..) => true,
        Head::Op(op, ..) if op.movement() == Movement::Reshaped => true,
        Head::Op(Op::Collective(Collective::AllSlice), ..) => {
            let source = |node: &ENode| matches!(node.head, Head::Leaf(_) | Head::Op(Op::Constant(_), ..));
            graph[node.args[0]].nodes.iter().any(source)
        }
        _ => false,
    }
}

/// Returns the bytes of one device's part.
fn local_bytes(graph: &Graph, id: TypeId) -> u64 {
    let ty = graph.analysis.ty(id);
    let sizes = ty.local(&graph.analysis.module.mesh).unwrap_or_default();
    sizes.iter().fold(ty.dtype.bytes(), |bytes, &size| bytes.saturating_mul(size))
}

/// Whether an e-node may be chosen for its class: it must be known as early as the class. An equal e-node of a later phase would come
/// too late for earlier readers of the class.
pub(super) fn allowed(graph: &Graph, class: Id, node: &ENode) -> bool {
    let place = match &node.head {
        Head::Op(_, _, place) | Head::Saved(place) => Some(*place),
        Head::Result(_) => graph[node.args[0]].data.place,
        Head::Leaf(_) | Head::Root => None,
    };
    place == graph[class].data.place
}
