//! `--memory`: the cheapest recomputation whose program fits a number of bytes on each device.
//!
//! A price of a kept byte determines a program (`passes::recompute`). Few prices matter: those at which the decision changes. Layers are
//! alike, so the decisions of all layers change at the same price. At this price, the search changes them one by one, from the first block
//! on. That makes a list of candidates, each of which keeps fewer bytes than the candidate before it. The search finds the first that fits,
//! or one that repeats at most a hundredth more.
//!
//! Lowering takes long. So the search guesses the bytes of a program: it assumes that they fall as much as the kept bytes. A wrong guess
//! costs time, and does not change the result.

use super::measure::Tried;
use super::{Candidate, Fit, OnDevice, Search};
use crate::config::memory::Budget;
use crate::failure::Failure;
use ir::analysis::liveness;
use ir::analysis::memory_plan::{Buffer, busiest};
use ir::units::bytes;
use ir::{Diagnostic, Module, ValueId};
use passes::recompute::{Decision, Recompute};

/// After this number of guesses, the search bisects the remaining programs instead. After half of this number, it tries the last program,
/// unless a program that fits is known.
const GUESSES: usize = 4;

/// The search may end with a program that fits, if its repeated nodes take at most one part in `NEAR` longer than those of a program that
/// does not fit.
const NEAR: u64 = 100;

impl Search<'_> {
    /// Finds the candidate that fits into the device alone and repeats the least. If a step does not fit as it is, its activations are
    /// compressed without loss, as far as they have such forms; then as few of them as possible are computed again. Candidates without
    /// compression are tried last.
    pub(super) fn on_device(&mut self) -> Result<Fit, Failure> {
        let budget = self.device_budget();
        let unchanged = self.unchanged();
        let alone = self.measure.tried(&unchanged)?;
        let mut one = OnDevice { budget, unconstrained: alone.peaks.device, time: 0, least_time: 0 };
        if self.fits(&alone) {
            return self.found(alone, Some(one));
        }
        let highest = Recompute::FULL.on(&self.conditions.node.device);
        let prices = self.measure.choices().prices(&Recompute { price: 0, ..highest.clone() }, &highest);
        for compress in self.forms()?.into_iter().map(Some).chain([None]) {
            let base = Candidate { compress, ..unchanged.clone() };
            if let Some((found, decision)) = self.least_repeated(&base, &prices)? {
                (one.time, one.least_time) =
                    (decision.picoseconds(), lagrangian_bound(&prices, decision.kept()));
                return self.found(found, Some(one));
            }
        }
        Err(self.too_small()?.into())
    }

    /// Finds the candidate that fits and repeats the least: `base` with the options of `prices`, or with options between them. The prices
    /// are those at which the decision changes, in ascending order. `None` if no price fits.
    ///
    /// The program of the highest price is not always the smallest: a block that is repeated as a whole needs its memory at once.
    fn least_repeated(
        &mut self,
        base: &Candidate,
        prices: &[(Recompute, Decision)],
    ) -> Result<Option<(Tried, Decision)>, Failure> {
        let found = self.first_that_fits(base, prices, None)?;
        if found.is_some() {
            return Ok(found);
        }
        for end in (1..prices.len()).rev() {
            let last = self.repeating(base, &prices[end].0)?;
            if self.fits(&last.0) {
                return self.first_that_fits(base, &prices[..=end], Some(last));
            }
        }
        Ok(None)
    }

    /// Finds the first candidate that fits: `base` with the options of `prices`, block by block. Their programs get smaller and smaller.
    /// `fitting` is the last candidate, if it is known to fit. `None` if no candidate fits.
    fn first_that_fits(
        &mut self,
        base: &Candidate,
        prices: &[(Recompute, Decision)],
        mut fitting: Option<(Tried, Decision)>,
    ) -> Result<Option<(Tried, Decision)>, Failure> {
        let options = one_by_one(prices);
        let mut before = self.repeating(base, &options[0])?;
        if self.fits(&before.0) {
            return Ok(Some(before));
        }
        let (mut below, mut above) = (0, options.len() - usize::from(fitting.is_some()));
        for tries in 0.. {
            let is_near = |(_, decision): &(Tried, Decision)| takes_hardly_longer(decision, &before.1);
            if above - below <= 1 || fitting.as_ref().is_some_and(is_near) {
                break;
            }
            let between = &options[below + 1..above];
            let at = match &fitting {
                None if tries >= GUESSES / 2 => above - 1,
                _ if tries >= GUESSES => below + 1 + between.len() / 2,
                fitting => below + 1 + self.guess(between, &before, fitting.as_ref()),
            };
            let tried = self.repeating(base, &options[at])?;
            if self.fits(&tried.0) {
                (above, fitting) = (at, Some(tried));
            } else {
                (below, before) = (at, tried);
            }
        }
        Ok(fitting)
    }

    /// The index of the first options whose program should fit. The bytes of a program are interpolated between the programs on both sides;
    /// as long as no program fits, a program is assumed to take one byte less for each byte that it does not keep.
    fn guess(
        &self,
        options: &[Recompute],
        (before, decision): &(Tried, Decision),
        fitting: Option<&(Tried, Decision)>,
    ) -> usize {
        let (peak, kept) = (before.peaks.device, decision.kept());
        let excess = u128::from(peak.saturating_sub(self.device_budget()));
        let to_save = match fitting {
            Some((fitting, decision)) => {
                let saved = u128::from(kept.saturating_sub(decision.kept()));
                excess * saved / u128::from(peak.saturating_sub(fitting.peaks.device).max(1))
            }
            None => excess,
        };
        let choices = self.measure.choices();
        let fits =
            |options: &Recompute| u128::from(kept.saturating_sub(choices.decide(options).kept())) >= to_save;
        options.partition_point(|options| !fits(options)).min(options.len() - 1)
    }

    /// Tries `base` with other repeated nodes. A kept byte of the price 0 repeats nothing.
    fn repeating(&mut self, base: &Candidate, options: &Recompute) -> Result<(Tried, Decision), Failure> {
        let recompute = (options.price > 0).then(|| options.clone());
        let tried = self.measure.tried(&Candidate { recompute, ..base.clone() })?;
        Ok((tried, self.measure.choices().decide(options)))
    }

    /// The error for a budget of the device that no candidate fits.
    fn too_small(&mut self) -> Result<Diagnostic, Failure> {
        // A search that finds no program has tried the programs with one price for all blocks.
        let is_uniform =
            |tried: &&Tried| tried.candidate.recompute.as_ref().is_none_or(|options| options.first.is_none());
        let uniform = self.measure.tried.iter().filter(is_uniform);
        let smallest =
            uniform.min_by_key(|tried| tried.peaks.device).expect("the first program repeats nothing");
        let (smallest, peak) = (smallest.candidate.clone(), smallest.peaks.device);
        let error = Diagnostic::new(format!(
            "--memory {}: the smallest program that was found takes {} on each device",
            Budget(self.device_budget()),
            bytes(peak)
        ));
        let accepted = Budget(peak).rounded_up();
        let mut error = error.note(format!("the smallest budget that fits is --memory {accepted}"));
        let made = self.measure.made(&smallest)?;
        if let Some((value, size)) = largest_at_peak(&made.step) {
            let node = made.step.producer(value).map(|node| (node.op.name(), node.origin.to_string()));
            let (name, origin) = node.unwrap_or(("input", String::new()));
            error = error
                .note(format!("the largest value at its peak is the result of `{name}`, {}", bytes(size)));
            if !origin.is_empty() {
                error = error.at(origin);
            }
        }
        Ok(error.note("a smaller --microbatch, a mesh of more devices or --zero takes less"))
    }
}

/// Whether the repeated nodes of a decision take hardly longer than those of another decision.
fn takes_hardly_longer(own: &Decision, other: &Decision) -> bool {
    let [own, other] = [own, other].map(Decision::picoseconds);
    own.saturating_sub(other) <= own / NEAR
}

/// The Lagrangian bound. For any price, a choice that keeps `kept` bytes takes at least the time of the cheapest choice, plus the price of
/// the bytes that the cheapest choice keeps beyond `kept`.
fn lagrangian_bound(prices: &[(Recompute, Decision)], kept: u64) -> u64 {
    let bound = |(options, decision): &(Recompute, Decision)| {
        let beyond = i128::from(decision.kept()) - i128::from(kept);
        let bound = i128::from(decision.picoseconds()) + beyond * i128::from(options.price) / 1024;
        u64::try_from(bound).unwrap_or(0)
    };
    prices.iter().map(bound).max().unwrap_or(0)
}

/// The list of options from the first decision to the last. Each changes one block more than the options before it.
pub(super) fn one_by_one(prices: &[(Recompute, Decision)]) -> Vec<Recompute> {
    let mut all = vec![prices[0].0.clone()];
    for pair in prices.windows(2) {
        let [(from, before), (to, after)] = pair else { continue };
        let with = |block: usize| Recompute { first: Some(block as u64 + 1), then: from.price, ..to.clone() };
        all.extend(before.changed_blocks(after).map(with));
        // After the last block, the price holds for all blocks.
        *all.last_mut().expect("the list begins with the first options") = to.clone();
    }
    all
}

/// The largest value that is not a state, at the node where the values that are alive have the most bytes.
fn largest_at_peak(module: &Module) -> Option<(ValueId, u64)> {
    let lifetimes = liveness::values(module);
    let results = module.nodes().flat_map(|(_, node)| node.results.iter().copied());
    let alive: Vec<(ValueId, Buffer)> = results
        .filter_map(|value| {
            let bytes = module.ty(value).local_bytes(&module.mesh)?;
            Some((value, Buffer { bytes, lifetime: lifetimes[value]? }))
        })
        .collect();
    let peak = busiest(&alive.iter().map(|(_, buffer)| *buffer).collect::<Vec<_>>());
    let at_peak =
        alive.iter().filter(|(_, Buffer { lifetime, .. })| (lifetime.first..=lifetime.last).contains(&peak));
    at_peak.max_by_key(|(_, buffer)| buffer.bytes).map(|(value, buffer)| (*value, buffer.bytes))
}
