//! The exchange of each collective of a program, and the time of each node by the cost model of [`crate::machine`].

use crate::machine::{CollectiveTime, Device, Link};
use crate::ops::collective::{Change, Collective};
use crate::{AxisId, Mesh, Module, Node, Op};

/// The exchange of a collective within each group of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveExchange {
    /// The operator.
    pub kind: Collective,
    /// The axes of its groups.
    pub axes: Vec<AxisId>,
    /// The bytes of each value, summed over a group ([`Collective::group_bytes`]).
    pub group_bytes: Vec<u64>,
}

impl CollectiveExchange {
    /// Returns the exchange of a node. `None` if the node is no collective.
    pub fn of(module: &Module, node: &Node) -> Option<Self> {
        let Op::Collective(kind) = node.op else { return None };
        let mut axes: Vec<AxisId> = Vec::new();
        let mut group_bytes = Vec::with_capacity(node.operands.len());
        for (&from, &to) in node.operands.iter().zip(&node.results) {
            let [from, to] = [from, to].map(|value| module.ty(value));
            // The verifier has proved that a collective can make every change.
            let change = Change::between(&from.sharding, &to.sharding, from.ndim()).ok()?;
            let [read, written] = [from, to].map(|ty| ty.local_bytes(&module.mesh).unwrap_or(u64::MAX));
            group_bytes.push(kind.group_bytes(read, written, module.mesh.size(&change.axes)));
            axes = change.axes.to_vec();
        }
        Some(Self { kind, axes, group_bytes })
    }

    /// Returns the bytes that each device sends, by a ring algorithm.
    pub fn sent(&self, mesh: &Mesh) -> u64 {
        let devices = mesh.size(&self.axes);
        let sent = self.group_bytes.iter().map(|&bytes| self.kind.bytes_sent(bytes, devices));
        sent.fold(0, u64::saturating_add)
    }

    /// Returns the time on devices that have this link between them.
    pub fn time(&self, mesh: &Mesh, device: &Device, link: &Link) -> CollectiveTime {
        let bytes = self.group_bytes.iter().copied().fold(0, u64::saturating_add);
        device.collective_time(link, self.kind, bytes, mesh.size(&self.axes))
    }
}

/// Whether an operator takes no time: readers read a view's elements in place, and constants are made before the step.
pub fn takes_no_time(op: &Op) -> bool {
    op.movement().is_layout() || matches!(op, Op::Constant(_) | Op::Splat(_))
}

/// Returns the time of a node on each device of a mesh, in picoseconds. `link` gives the link between devices along some axes. Transfers
/// between stages take no time, since they run beside the tasks of a pipeline. The time is `u64::MAX` if a device's part of the operands
/// or results is not known.
pub fn time_on_mesh(
    module: &Module,
    node: &Node,
    device: &Device,
    link: impl FnOnce(&[AxisId]) -> Link,
) -> u64 {
    match node.op {
        Op::Transfer(_) => 0,
        ref op if takes_no_time(op) => 0,
        Op::Collective(_) => CollectiveExchange::of(module, node)
            .map_or(u64::MAX, |exchange| exchange.time(&module.mesh, device, &link(&exchange.axes)).total()),
        ref op => {
            let part = module.signature(node).local(&module.mesh);
            part.map_or(u64::MAX, |part| device.node_time(op, &part))
        }
    }
}
