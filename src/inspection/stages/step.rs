//! A whole step of a pipeline on the machine that was asked about: its time, and its share of the devices' peak.

use super::times::message_ms;
use crate::inspection::prediction::{multiplied, products, samples};
use ir::Module;
use ir::machine::Machine;
use program::simulator::SimulatedPart;
use program::simulator::pipeline::SimulatedRank;
use serde::Serialize;
use std::collections::BTreeMap;

/// A step of a pipeline, simulated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PipelineStepFacts {
    /// Milliseconds of a step: of the slowest rank's section `prepare`, of the microbatches, and of the slowest rank's update.
    pub step_ms: f64,
    /// Milliseconds of the slowest rank's section `prepare`, with its messages.
    pub prepare_ms: f64,
    /// Milliseconds of the slowest rank's update, with its messages.
    pub update_ms: f64,
    /// Tokens that a step trains on; samples of a model without tokens.
    pub samples: u64,
    /// Whether these are tokens.
    pub tokens: bool,
    /// Of these in a second.
    pub samples_per_s: f64,
    /// Operations that the model needs: three times the products of its forward pass, for all devices.
    pub model_flops: u64,
    /// The model's operations as a share of the devices' peak in that time, for the element type of most operations.
    pub mfu: f64,
    /// Joules of a step, of all devices under load.
    pub joules: f64,
    /// Dollars of a step, of all devices.
    pub dollars: f64,
}

impl PipelineStepFacts {
    /// A step of simulated ranks, whose microbatches take so many milliseconds.
    pub(super) fn of(
        module: &Module,
        machine: &Machine,
        ranks: &[SimulatedRank],
        microbatches: u32,
        microbatches_ms: f64,
    ) -> Self {
        let slowest = |section: usize, part: fn(&SimulatedRank) -> &SimulatedPart| {
            let own = |(rank, one): (u32, &SimulatedRank)| {
                part(one).seconds * 1e3 + messages_ms(module, machine, rank, &one.messages[section])
            };
            (0..).zip(ranks).map(own).fold(0.0, f64::max)
        };
        let (prepare_ms, update_ms) = (slowest(0, |rank| &rank.prepare), slowest(1, |rank| &rank.update));
        let step_ms = prepare_ms + microbatches_ms + update_ms;
        let (seconds, device) = (step_ms * 1e-3, machine.device());
        let (samples, tokens) = samples(module);
        let samples = samples.saturating_mul(u64::from(microbatches));
        let model_flops = products(module).saturating_mul(3).saturating_mul(u64::from(microbatches));
        let element = multiplied(ranks.iter().flat_map(|rank| rank.tasks.values()));
        let devices = module.ranks();
        let rented = machine.rented(devices) as f64;
        Self {
            step_ms,
            prepare_ms,
            update_ms,
            samples,
            tokens,
            samples_per_s: samples as f64 / seconds,
            model_flops,
            mfu: model_flops as f64 / (seconds * device.matrices.of(element) * devices as f64),
            joules: device.watts * rented * seconds,
            dollars: device.price_per_hour * rented * seconds / 3600.0,
        }
    }
}

/// Milliseconds of a rank's messages with each other rank: those with different ranks run at once.
fn messages_ms(module: &Module, machine: &Machine, rank: u32, messages: &BTreeMap<u32, u64>) -> f64 {
    let ms = messages.iter().map(|(&other, &bytes)| message_ms(module, machine, rank, other, bytes));
    ms.fold(0.0, f64::max)
}
