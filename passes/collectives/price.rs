//! What nodes cost, in picoseconds of one device.
//!
//! Communication alone does not decide between an all_reduce and its two halves: they send the same bytes. What decides
//! is what stands between the halves (norms and elementwise operators on a part move fewer bytes), what is kept for
//! backward, and the latency of one more collective, which wins when the parts are small.

use super::graph::{Ask, ENode, Graph, Head, Place, TypeId, TypeIds};
use egg::Id;
use ir::ops::collective::{Change, Collective};
use ir::ops::{Cost, Operator};
use ir::{Movement, Op, Phase, Signature, Type};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// How fast devices are. The defaults are those of a node of H100s, rounded: the choices they lead to are the same on
/// any machine whose links are slower than its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// GB/s that a device sends while all do.
    pub link: u64,
    /// Nanoseconds that a collective takes however small it is, and again for each step of its ring.
    pub latency: u64,
    /// GB/s of a device's memory.
    pub memory: u64,
    /// TFLOP/s of a device.
    pub flops: u64,
    /// Picoseconds that keeping a byte from forward to backward is worth. More than sending it, so that what can be
    /// gathered again is not kept whole.
    pub kept: u64,
    /// Bytes at which a reduction of the update pays its whole latency: smaller ones travel in buckets.
    pub bucket: u64,
}

impl Default for Rates {
    fn default() -> Self {
        Self { link: 450, latency: 1000, memory: 3000, flops: 600, kept: 10, bucket: 25 << 20 }
    }
}

/// Launching a collective takes as long as so many steps of a ring.
const LAUNCH_STEPS: u64 = 5;

/// Costs of e-nodes. Layers are alike, so each call is priced once.
pub(super) struct Prices {
    rates: Rates,
    known: RefCell<BTreeMap<(Op, TypeIds, TypeIds, Phase), u64>>,
}

impl Prices {
    pub(super) fn new(rates: Rates) -> Self {
        Self { rates, known: RefCell::default() }
    }

    /// What an e-node costs.
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
            Head::Saved(_) => local_bytes(graph, graph.type_id(node.args[0])).saturating_mul(self.rates.kept),
            _ => 0,
        }
    }

    /// The time of a collective by its ring: a launch, the steps, and the bytes that a device sends.
    fn collective(
        &self,
        graph: &Graph,
        collective: Collective,
        operands: &[TypeId],
        results: &[TypeId],
        place: Place,
    ) -> u64 {
        let (from, to) = (graph.analysis.ty(operands[0]), graph.analysis.ty(results[0]));
        let Ok(change) = Change::between(&from.sharding, &to.sharding, from.ndim()) else {
            return u64::MAX / 4;
        };
        let devices = graph.analysis.module.mesh.size(&change.axes);
        let [read, written]: [u64; 2] = [operands, results]
            .map(|types| types.iter().map(|&id| local_bytes(graph, id)).fold(0, u64::saturating_add));
        let hops = devices.saturating_sub(1);
        let (whole, steps) = match collective {
            Collective::AllSlice => return self.traffic(written.saturating_mul(2)),
            Collective::AllReduce => (read, 2 * hops),
            Collective::ReduceScatter => (read, hops),
            Collective::AllGather => (written, hops),
            Collective::AllToAll => (read.saturating_mul(devices), hops),
        };
        let latency = (LAUNCH_STEPS + steps).saturating_mul(self.rates.latency).saturating_mul(1000);
        let in_bucket = place.phase == Phase::Update && change.reduced.is_some() && whole < self.rates.bucket;
        let latency = if in_bucket {
            (u128::from(latency) * u128::from(whole) / u128::from(self.rates.bucket.max(1))) as u64
        } else {
            latency
        };
        latency.saturating_add(picoseconds(collective.bytes_sent(whole, devices), self.rates.link))
    }

    /// The time of an operator on one device's part.
    fn operator(&self, graph: &Graph, op: &Op, operands: &[TypeId], results: &[TypeId]) -> u64 {
        let part = |&id: &TypeId| {
            let ty = graph.analysis.ty(id);
            ty.local(&graph.analysis.module.mesh).map(|sizes| Type::of(ty.dtype, &sizes))
        };
        let parts = |ids: &[TypeId]| ids.iter().map(part).collect::<Option<Vec<Type>>>();
        let (Some(operands), Some(results)) = (parts(operands), parts(results)) else { return u64::MAX / 4 };
        let Cost { flops, read, written } = op.cost(&Signature { operands, results });
        (flops / self.rates.flops.max(1)).max(self.traffic(read.saturating_add(written)))
    }

    fn traffic(&self, bytes: u64) -> u64 {
        picoseconds(bytes, self.rates.memory)
    }
}

/// The time that bytes take at a rate in GB/s, which is bytes a nanosecond.
fn picoseconds(bytes: u64, rate: u64) -> u64 {
    bytes.saturating_mul(1000) / rate.max(1)
}

/// Views and constants are no kernels. A slice of what no node makes is a view of it.
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

/// Bytes of one device's part.
fn local_bytes(graph: &Graph, id: TypeId) -> u64 {
    let ty = graph.analysis.ty(id);
    let sizes = ty.local(&graph.analysis.module.mesh).unwrap_or_default();
    sizes.iter().fold(ty.dtype.bytes(), |bytes, &size| bytes.saturating_mul(size))
}

/// Whether an e-node may stand for its class: it is known as early as any. One of a later phase may be equal to it, and
/// its readers may be earlier than that.
pub(super) fn allowed(graph: &Graph, class: Id, node: &ENode) -> bool {
    let place = match &node.head {
        Head::Op(_, _, place) | Head::Saved(place) => Some(*place),
        Head::Result(_) => graph[node.args[0]].data.place,
        Head::Leaf(_) | Head::Root => None,
    };
    place == graph[class].data.place
}
