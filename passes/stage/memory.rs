//! Estimates the memory of pipeline ranks for a cut: states by the elements of the weights, and activations by the microbatches that
//! the timetable keeps at once.
//!
//! The estimate knows neither the fusion of kernels nor the workspace of the plan. So the caller measures the plan of a rank, and
//! the next cut corrects the estimate by the measured ratio.

use super::prices::{KeptBytes, Prices};
use super::schedule::Plan;
use crate::arguments::{Options, value_of};
use ir::Phase;
use ir::timetable::{Task, slots};
use std::ops::Range;

/// The memory of a device, and the bytes that weights and activations need of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageMemory {
    /// The bytes that the program may take on each device.
    pub limit: u64,
    /// The bytes on a device for 1024 elements of a weight: the weight, and its cast if the program has one.
    pub weight: u64,
    /// The bytes on a device for 1024 elements of a gradient.
    pub gradient: u64,
    /// The bytes on a device for the optimizer's states of 1024 elements.
    pub optimizer: u64,
    /// The bytes on a device for a MiB of the activations of a microbatch.
    pub activations: u64,
    /// For each pipeline rank, the bytes of its plan for 1024 estimated bytes. Empty before a plan was measured.
    pub measured: Vec<u64>,
}

/// The entry of [`StageMemory::measured`] for a plan with exactly the estimated bytes.
pub const AS_ESTIMATED: u64 = 1024;

impl StageMemory {
    /// Names the options: `memory=LIMIT`, with `weight`, `gradient`, `optimizer`, `activations` and `measured`.
    pub(super) fn options(memory: &mut Option<Self>, options: &mut Options) {
        if memory.is_none() && !options.is_reading() {
            return;
        }
        let mut given = memory.take().unwrap_or(Self {
            limit: u64::MAX,
            weight: 4096,
            gradient: 4096,
            optimizer: 0,
            activations: 1 << 20,
            measured: vec![],
        });
        options.written("memory", &mut given.limit);
        options.written("weight", &mut given.weight);
        options.written("gradient", &mut given.gradient);
        options.written("optimizer", &mut given.optimizer);
        options.written("activations", &mut given.activations);
        options.joined("measured", '/', &mut given.measured, |text| value_of("measured", text));
        *memory = Some(given).filter(|memory| memory.limit != u64::MAX);
    }

    /// Returns the expected bytes of a rank's plan, for its estimated bytes.
    pub(super) fn planned(&self, rank: u32, estimated: u64) -> u64 {
        let ratio = self.measured.get(rank as usize).copied().unwrap_or(AS_ESTIMATED);
        part_of(estimated, ratio, AS_ESTIMATED)
    }

    /// Returns the bytes on a device of the states of a stage, with `delay` earlier versions of its weights.
    fn states(&self, prices: &Prices, nodes: &Range<usize>, delay: u32) -> u64 {
        let own = self.own_states(prices.own_weights(nodes), delay);
        own.saturating_add(self.states_of_others(prices.weights_of_others(nodes)))
    }

    /// Returns the bytes for `elements` elements of weights that the stage owns.
    fn own_states(&self, elements: u64, delay: u32) -> u64 {
        let versions = self.weight.saturating_mul(u64::from(delay) + 1);
        part_of(elements, versions.saturating_add(self.gradient).saturating_add(self.optimizer), 1024)
    }

    /// Returns the bytes for `elements` elements of weights that an earlier stage owns: a copy of the weight, and a gradient.
    fn states_of_others(&self, elements: u64) -> u64 {
        part_of(elements, self.weight.saturating_add(self.gradient), 1024)
    }

    /// Returns the bytes of activations on a device.
    fn activations(&self, bytes: u64) -> u64 {
        part_of(bytes, self.activations, 1 << 20)
    }

    /// Returns the estimated bytes on a device of each pipeline rank.
    pub(super) fn estimated(
        &self,
        plan: &Plan,
        microbatches: u32,
        prices: &Prices,
        runs: &[Range<usize>],
    ) -> Vec<u64> {
        let kept: Vec<KeptBytes> = runs.iter().map(|nodes| kept(prices, nodes)).collect();
        let lists = lists(plan, microbatches);
        let rank = |(rank, tasks): (u32, &Vec<Task>)| {
            let own = runs.iter().zip(&plan.placement).zip(0..).filter(|((_, owner), _)| **owner == rank);
            let delay = |stage: usize| plan.delays.get(stage).copied().unwrap_or(0);
            let states = own.map(|((nodes, _), stage)| self.states(prices, nodes, delay(stage)));
            let states = states.fold(0, u64::saturating_add);
            states.saturating_add(self.activations(most_kept(tasks, plan.splits_backward, &kept)))
        };
        (0..).zip(&lists).map(rank).collect()
    }
}

/// Returns the tasks of each rank. For an asynchronous schedule, these are the tasks of as many steps as fill the pipeline.
fn lists(plan: &Plan, microbatches: u32) -> Vec<Vec<Task>> {
    if plan.delays.is_empty() {
        return plan.timetable.ranks.clone();
    }
    let ranks = plan.timetable.ranks.len() as u32;
    plan.timetable.unrolled(microbatches, (2 * ranks).div_ceil(microbatches.max(1)).max(2)).ranks
}

/// Returns the bytes that a stage keeps of a microbatch: the activations of its own nodes, and those that it receives.
fn kept(prices: &Prices, nodes: &Range<usize>) -> KeptBytes {
    let own = prices.kept(nodes);
    let sent = if nodes.start == 0 { 0 } else { prices.messages(nodes.start) };
    KeptBytes { backward: own.backward.saturating_add(sent), ..own }
}

/// Returns the most bytes that the tasks of a rank keep at once. `kept` has the bytes of each stage.
fn most_kept(tasks: &[Task], splits: bool, kept: &[KeptBytes]) -> u64 {
    let (mut now, mut most) = (0u64, 0u64);
    for task in tasks {
        let KeptBytes { backward, weight, gradients } = kept[task.part.chunk as usize];
        match task.part.phase {
            Phase::Forward => now = now.saturating_add(backward).saturating_add(weight),
            Phase::Backward if splits => {
                most = most.max(now.saturating_add(gradients));
                now = now.saturating_add(gradients).saturating_sub(backward);
            }
            Phase::Backward => now = now.saturating_sub(backward).saturating_sub(weight),
            _ => now = now.saturating_sub(weight).saturating_sub(gradients),
        }
        most = most.max(now);
    }
    most
}

/// The bytes of single stages, for the dynamic programming over cuts.
pub(super) struct StageBytes<'a> {
    memory: &'a StageMemory,
    prices: &'a Prices,
    plan: &'a Plan,
    /// For each stage, the expected bytes of its plan for the nodes before each place: their states, and their activations in as many
    /// microbatches as the stage keeps at once.
    until: Vec<Vec<u64>>,
    /// For each stage, the most microbatches whose activations it keeps at once.
    live: Vec<u64>,
}

impl<'a> StageBytes<'a> {
    pub(super) fn new(
        memory: &'a StageMemory,
        plan: &'a Plan,
        microbatches: u32,
        prices: &'a Prices,
        nodes: usize,
    ) -> Self {
        let lists = lists(plan, microbatches);
        let (mut until, mut live) = (vec![], vec![]);
        for (stage, &rank) in (0..).zip(&plan.placement) {
            let own = |task: &&Task| task.part.chunk == stage;
            let tasks: Vec<Task> = lists[rank as usize].iter().filter(own).copied().collect();
            let count = |from, until| u64::from(slots(&tasks, from, until).count);
            let backward = count(Phase::Forward, Phase::Backward);
            let (weight, gradients) = if plan.splits_backward {
                (count(Phase::Forward, Phase::Weight), count(Phase::Backward, Phase::Weight))
            } else {
                (backward, 0)
            };
            let delay = plan.delays.get(stage as usize).copied().unwrap_or(0);
            let before = |place: usize| {
                let kept = prices.kept(&(0..place));
                let classes = [(kept.backward, backward), (kept.weight, weight), (kept.gradients, gradients)];
                let kept = classes.map(|(bytes, count)| bytes.saturating_mul(count));
                let kept = kept.into_iter().fold(0, u64::saturating_add);
                let states = memory.own_states(prices.own_weights(&(0..place)), delay);
                memory.planned(rank, states.saturating_add(memory.activations(kept)))
            };
            until.push((0..=nodes).map(before).collect());
            live.push(backward);
        }
        Self { memory, prices, plan, until, live }
    }

    /// Returns the expected bytes of the plan of a stage: first without the activations that it receives, which depend on the place where
    /// it begins; then with them.
    pub(super) fn of(&self, stage: usize, nodes: &Range<usize>) -> (u64, u64) {
        let until = &self.until[stage];
        let rank = self.plan.placement[stage];
        let of_others = self.prices.weights_of_others(nodes);
        let of_others = if of_others == 0 { 0 } else { self.memory.states_of_others(of_others) };
        let own =
            (until[nodes.end] - until[nodes.start]).saturating_add(self.memory.planned(rank, of_others));
        let sent = if nodes.start == 0 { 0 } else { self.prices.messages(nodes.start) };
        let sent = self.memory.activations(sent.saturating_mul(self.live[stage]));
        (own, own.saturating_add(self.memory.planned(rank, sent)))
    }
}

/// Returns `number · ratio / whole`.
fn part_of(number: u64, ratio: u64, whole: u64) -> u64 {
    // Dynamic programming calls this millions of times, and divisions of wide numbers are slow.
    if let Some(product) = number.checked_mul(ratio) {
        return product / whole.max(1);
    }
    let part = u128::from(number) * u128::from(ratio) / u128::from(whole.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}
