//! The exchange of each collective of a program, and the time of each node by the cost model of [`crate::machine`].

use crate::machine::{CollectiveTime, Device, Link};
use crate::ops::collective::{Change, Collective};
use crate::{AxisId, Mesh, Module, Node, Op};

/// The exchange of a collective within each group of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The operator.
    pub kind: Collective,
    /// The axes of its groups.
    pub axes: Vec<AxisId>,
    /// The bytes of each value, summed over a group ([`Collective::group_bytes`]).
    pub groups: Vec<u64>,
}

impl Exchange {
    /// Returns the exchange of a node. `None` if the node is no collective.
    pub fn of(module: &Module, node: &Node) -> Option<Self> {
        let Op::Collective(kind) = node.op else { return None };
        let mut axes: Vec<AxisId> = Vec::new();
        let mut groups = Vec::with_capacity(node.operands.len());
        for (&from, &to) in node.operands.iter().zip(&node.results) {
            let [from, to] = [from, to].map(|value| module.ty(value));
            // The verifier has proved that a collective can make every change.
            let change = Change::between(&from.sharding, &to.sharding, from.ndim()).ok()?;
            let [read, written] = [from, to].map(|ty| ty.local_bytes(&module.mesh).unwrap_or(u64::MAX));
            groups.push(kind.group_bytes(read, written, module.mesh.size(&change.axes)));
            axes = change.axes.to_vec();
        }
        Some(Self { kind, axes, groups })
    }

    /// Returns the bytes that each device sends, by a ring algorithm.
    pub fn sent(&self, mesh: &Mesh) -> u64 {
        let devices = mesh.size(&self.axes);
        let sent = self.groups.iter().map(|&bytes| self.kind.bytes_sent(bytes, devices));
        sent.fold(0, u64::saturating_add)
    }

    /// Returns the time on devices that have this link between them.
    pub fn time(&self, mesh: &Mesh, device: &Device, link: &Link) -> CollectiveTime {
        let bytes = self.groups.iter().copied().fold(0, u64::saturating_add);
        device.collective_time(link, self.kind, bytes, mesh.size(&self.axes))
    }
}

/// Returns the time of a node on each device, in picoseconds. `link` gives the link between devices along some axes. Views and constants
/// take no time. Transfers between stages take none, since they run beside the tasks of a pipeline.
pub fn node_time(module: &Module, node: &Node, device: &Device, link: impl FnOnce(&[AxisId]) -> Link) -> u64 {
    if matches!(node.op, Op::Constant(_) | Op::Splat(_) | Op::Transfer(_)) || node.op.movement().is_layout() {
        return 0;
    }
    if let Some(exchange) = Exchange::of(module, node) {
        return exchange.time(&module.mesh, device, &link(&exchange.axes)).total();
    }
    let part = module.signature(node).local(&module.mesh);
    part.map_or(u64::MAX, |part| device.node_time(&node.op, &part))
}
