//! The predicted times of the tasks and transfers of a pipeline: by the simulator on a machine that was asked about, and else by the cost
//! model of [`ir::machine`].

use super::TransferFacts;
use crate::inspection::collectives::Exchange;
use ir::machine::{Link, Machine};
use ir::{ChunkPhase, Dependency, Module, Node, Op, StageTable};
use program::simulator::pipeline::SimulatedRank;
use std::collections::BTreeMap;

/// Milliseconds in a picosecond.
const PICOSECOND: f64 = 1e-9;

/// Milliseconds of tasks and transfers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Times {
    tasks: BTreeMap<ChunkPhase, f64>,
    /// The bytes and the milliseconds of each dependency between ranks that carries bytes.
    transfers: BTreeMap<Dependency, (u64, f64)>,
}

impl Times {
    /// The times by the cost model on a machine.
    pub(super) fn by_cost_model(module: &Module, pipeline: &StageTable, machine: &Machine) -> Self {
        let mut tasks: BTreeMap<ChunkPhase, f64> = BTreeMap::new();
        for rank in 0..pipeline.ranks() {
            // Values of every stage are computed by each stage that reads them.
            let of_rank = module.of_pipeline_rank(rank);
            for (_, node) in of_rank.nodes().filter(|(_, node)| node.phase.is_microbatch()) {
                let part = ChunkPhase::new(node.phase, node.stage);
                *tasks.entry(part).or_default() += node_time(&of_rank, node, machine) as f64 * PICOSECOND;
            }
        }
        Self { tasks, transfers: transfers(module, pipeline, machine) }
    }

    /// The times of simulated ranks.
    pub(super) fn simulated(
        module: &Module,
        pipeline: &StageTable,
        machine: &Machine,
        ranks: &[SimulatedRank],
    ) -> Self {
        let tasks = ranks.iter().flat_map(|rank| &rank.tasks);
        let tasks = tasks.map(|(&part, task)| (part, task.seconds * 1e3)).collect();
        Self { tasks, transfers: transfers(module, pipeline, machine) }
    }

    /// Milliseconds of a task.
    pub(super) fn task(&self, part: ChunkPhase) -> f64 {
        self.tasks.get(&part).copied().unwrap_or_default()
    }

    /// Milliseconds of a transfer.
    pub(super) fn transfer(&self, dependency: Dependency) -> f64 {
        self.transfers.get(&dependency).map_or(0.0, |(_, ms)| *ms)
    }

    /// The time of the longest task.
    pub(super) fn longest(&self) -> f64 {
        self.tasks.values().copied().fold(0.0, f64::max)
    }

    /// The bytes of each transfer between ranks.
    pub(super) fn sent(&self) -> impl Iterator<Item = (Dependency, u64)> + '_ {
        self.transfers.iter().map(|(dependency, (bytes, _))| (*dependency, *bytes))
    }

    /// The transfers between ranks.
    pub(super) fn transfers(&self) -> impl Iterator<Item = TransferFacts> + '_ {
        self.transfers.iter().map(|(Dependency { from, to }, (bytes, ms))| TransferFacts {
            from: from.to_string(),
            to: to.to_string(),
            bytes: *bytes,
            ms: *ms,
        })
    }
}

/// The bytes of each dependency between ranks that carries bytes, and its milliseconds on a machine.
fn transfers(module: &Module, pipeline: &StageTable, machine: &Machine) -> BTreeMap<Dependency, (u64, f64)> {
    let mut bytes: BTreeMap<Dependency, u64> = BTreeMap::new();
    for (id, node) in module.nodes().filter(|(_, node)| node.phase.is_microbatch()) {
        let Some((from, to)) = module.transfers(id) else { continue };
        let from = ChunkPhase::new(module.phase_of(node.operands[0]), from);
        let to = ChunkPhase::new(node.phase, to);
        let sent = bytes.entry(Dependency { from, to }).or_default();
        let of_value = module.ty(node.operands[0]).local_bytes(&module.mesh).unwrap_or(u64::MAX);
        *sent = sent.saturating_add(of_value);
    }
    let rank = |part: ChunkPhase| pipeline.placement.get(part.chunk as usize).copied();
    let transfer = |(dependency, bytes): (Dependency, u64)| {
        let (from, to) = (rank(dependency.from)?, rank(dependency.to)?);
        let ms = message_ms(module, machine, from, to, bytes);
        (from != to).then_some((dependency, (bytes, ms)))
    };
    bytes.into_iter().filter_map(transfer).collect()
}

/// The milliseconds of a message of `bytes` bytes from each device of a pipeline rank to a device of another.
pub(super) fn message_ms(module: &Module, machine: &Machine, from: u32, to: u32, bytes: u64) -> f64 {
    let link = link(machine, module.mesh.devices(), u64::from(from), u64::from(to));
    link.transfer_time(bytes) as f64 * PICOSECOND
}

/// The picoseconds of a node. Views and constants take no time, and transfers run beside the tasks.
fn node_time(module: &Module, node: &Node, machine: &Machine) -> u64 {
    if matches!(node.op, Op::Constant(_) | Op::Splat(_) | Op::Transfer(_)) || node.op.movement().is_layout() {
        return 0;
    }
    let device = machine.device();
    if let Some(exchange) = Exchange::of(module, node) {
        return exchange.picoseconds(&module.mesh, device, &machine.link(&module.mesh, &exchange.axes));
    }
    let whole = module.signature(node);
    let part = whole.local(&module.mesh).unwrap_or(whole);
    device.node_time(&node.op, &part)
}

/// The link between two pipeline ranks of `devices` devices each. Ranks fill one node of a cluster after the other.
fn link(machine: &Machine, devices: u64, from: u64, to: u64) -> Link {
    let inside = machine.device().link;
    let Machine::Cluster(cluster) = machine else { return inside };
    let node = |rank: u64| rank / cluster.node.devices.max(1);
    let (first, last) = (from.min(to).saturating_mul(devices), (from.max(to) + 1).saturating_mul(devices));
    if node(first) == node(last.saturating_sub(1)) { inside } else { cluster.network }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::machine::Preset;

    #[test]
    fn ranks_in_different_nodes_send_over_the_network() {
        let cluster = Preset::H100.cluster(2);
        let (inside, network) = (cluster.node.device.link, cluster.network);
        let machine = Machine::Cluster(cluster);
        assert_eq!(link(&machine, 4, 0, 1), inside);
        assert_eq!(link(&machine, 4, 2, 1), network);
        assert_eq!(link(&machine, 1, 7, 0), inside);
    }
}
