//! A whole step of a pipeline on the machine of the question: its time, rate, energy and cost.

use super::times::message_ms;
use crate::inspection::prediction::Throughput;
use ir::Module;
use ir::machine::Machine;
use program::simulator::SimulatedPart;
use program::simulator::pipeline::SimulatedRank;
use serde::Serialize;

/// A step of a pipeline, simulated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PipelineStepFacts {
    /// The milliseconds of a step: the sum of the slowest rank's section `prepare`, the microbatches, and the slowest rank's update.
    pub step_ms: f64,
    /// Milliseconds of the slowest rank's section `prepare`, with its messages.
    pub prepare_ms: f64,
    /// Milliseconds of the slowest rank's update, with its messages.
    pub update_ms: f64,
    /// The work of the step, with its rate, energy and cost.
    #[serde(flatten)]
    pub throughput: Throughput,
}

impl PipelineStepFacts {
    /// The facts of a step of simulated ranks, whose microbatches take `microbatches_ms`.
    pub(super) fn of(
        module: &Module,
        machine: &Machine,
        ranks: &[SimulatedRank],
        microbatches: u32,
        microbatches_ms: f64,
    ) -> Self {
        let slowest = |section: usize, part: fn(&SimulatedRank) -> &SimulatedPart| {
            let own = |(rank, one): (u32, &SimulatedRank)| {
                let messages = one.messages[section].iter();
                let ms = messages.map(|(&other, &bytes)| message_ms(module, machine, rank, other, bytes));
                // Messages with different ranks run at once.
                part(one).seconds * 1e3 + ms.fold(0.0, f64::max)
            };
            (0..).zip(ranks).map(own).fold(0.0, f64::max)
        };
        let (prepare_ms, update_ms) = (slowest(0, |rank| &rank.prepare), slowest(1, |rank| &rank.update));
        let step_ms = prepare_ms + microbatches_ms + update_ms;
        let tasks = ranks.iter().flat_map(|rank| rank.tasks.values());
        let throughput = Throughput::of(module, machine, microbatches.into(), step_ms * 1e-3, tasks);
        Self { step_ms, prepare_ms, update_ms, throughput }
    }
}
