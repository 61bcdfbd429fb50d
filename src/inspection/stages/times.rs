//! The predicted times of the tasks and transfers of a pipeline: by the simulator on a machine that was asked about, and else by the cost
//! model of [`ir::machine`].

use super::TransferFacts;
use ir::analysis::time_on_mesh;
use ir::machine::Machine;
use ir::{AxisId, ChunkPhase, Dependency, Module, StageTable};
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
                let link = |axes: &[AxisId]| machine.link(&of_rank.mesh, axes);
                let time = time_on_mesh(&of_rank, node, machine.device(), link);
                *tasks.entry(part).or_default() += time as f64 * PICOSECOND;
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
    let rank = |part: ChunkPhase| pipeline.placement.get(part.chunk as usize).copied();
    let transfer = |(dependency, bytes): (Dependency, u64)| {
        let (from, to) = (rank(dependency.from)?, rank(dependency.to)?);
        let ms = message_ms(module, machine, from, to, bytes);
        (from != to).then_some((dependency, (bytes, ms)))
    };
    module.transfer_bytes().into_iter().filter_map(transfer).collect()
}

/// The milliseconds of a message of `bytes` bytes from each device of a pipeline rank to a device of another.
pub(super) fn message_ms(module: &Module, machine: &Machine, from: u32, to: u32, bytes: u64) -> f64 {
    let link = machine.link_of_pipeline_ranks(module.mesh.devices(), u64::from(from), u64::from(to));
    link.transfer_time(bytes) as f64 * PICOSECOND
}
