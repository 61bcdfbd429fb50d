//! `--memory`: the cheapest recomputation whose program fits a number of bytes on each device.
//!
//! A price of a kept byte determines a program (`passes::recompute`). Few prices matter: those at which the decision changes. Layers are
//! alike, so the decisions of all layers change at the same price. At this price, the search changes them one by one, from the first block
//! on. That makes a list of programs, each of which keeps fewer bytes than the program before it. The search finds the first program that
//! fits, or a program that repeats at most a hundredth more.
//!
//! Lowering takes long. So the search guesses the bytes of a program: it assumes that they fall as much as the kept bytes. A wrong guess
//! costs time, and does not change the result.

use super::measure::Measure;
use super::{Candidate, Conditions};
use crate::compilation::Compilation;
use crate::config::memory::Budget;
use crate::failure::Failure;
use crate::units::bytes;
use ir::analysis::liveness;
use ir::analysis::memory_plan::{Buffer, busiest};
use ir::machine::Device;
use ir::{Diagnostic, Module, ValueId};
use passes::compress_activations::{self, CompressActivations};
use passes::recompute::{Choices, Decision, DeviceRates, Recompute, apply};
use passes::{Manager, Transform};
use std::fmt;

/// After this number of guesses, the search bisects the remaining programs instead. After half of this number, it tries the last program,
/// unless a program that fits is known.
const GUESSES: usize = 4;

/// The search may end with a program that fits, if its repeated nodes take at most one part in `NEAR` longer than those of a program that
/// does not fit.
const NEAR: u64 = 100;

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The budget, in bytes.
    pub budget: u64,
    /// Bytes of the program that keeps all activations.
    pub unconstrained: u64,
    /// Bytes of the program that fits.
    pub peak: u64,
    /// Picoseconds of a microbatch's repeated nodes.
    pub time: u64,
    /// The Lagrangian bound in picoseconds: no choice of nodes that keeps as few bytes takes less.
    pub least_time: u64,
    /// Whether activations are compressed without loss.
    pub compressed: bool,
    /// The number of programs that were lowered.
    pub tries: usize,
}

impl Fit {
    /// The result for a program that fits with all activations kept.
    fn as_it_is(budget: u64, peak: u64) -> Self {
        Self { budget, unconstrained: peak, peak, time: 0, least_time: 0, compressed: false, tries: 1 }
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { budget, unconstrained, peak, time, least_time, compressed, tries } = self;
        let [budget, unconstrained, peak] = [budget, unconstrained, peak].map(|&number| bytes(number));
        let forms = if *compressed { "activations are compressed without loss, and " } else { "" };
        if *time == 0 {
            return write!(f, "memory: {peak} of {budget}; {forms}nothing is computed again");
        }
        write!(
            f,
            "memory: {peak} of {budget}, {unconstrained} if all activations are kept; {forms}{:.3} ms of a microbatch are computed \
             again, at least {:.3} ms ({tries} programs tried)",
            *time as f64 / 1e9,
            *least_time as f64 / 1e9
        )
    }
}

/// Makes the programs of a compilation fit into `budget` bytes of each device. If they do not fit as they are, activations are compressed
/// without loss, as far as they have such forms; then as few of them as possible are computed again. `after` sees the step after each pass.
///
/// # Errors
/// A budget that no program fits: the smallest budget that is accepted, and the largest value at the peak of its program.
pub fn fit(
    compilation: &mut Compilation,
    manager: &Manager,
    budget: u64,
    conditions: Conditions,
    after: impl FnMut(&str, &Module),
) -> Result<Fit, Failure> {
    let trial = Manager { trial: true, ..Manager::default() };
    let mut measure = Measure::new(compilation, &trial, conditions);
    let (module, update) = (&compilation.training, compilation.update);
    let mut peak = |step: Module| Ok(measure.step(step, update)?.device);
    let unconstrained = peak(module.clone())?;
    if unconstrained <= budget {
        return Ok(Fit::as_it_is(budget, unconstrained));
    }
    let is_given = compilation.has_pass(CompressActivations::NAME);
    let forms = (!is_given).then_some(CompressActivations::LOSSLESS);
    let forms = forms.filter(|forms| !compress_activations::decide(module, forms).is_empty());
    let device = &conditions.node.device;
    let (mut fit, recompute) = cheapest(module, budget, unconstrained, device, forms.as_ref(), &mut peak)?;
    let compress = forms.filter(|_| fit.compressed);
    let candidate = Candidate { recompute, compress, ..Candidate::unchanged(update) };
    candidate.run_passes(compilation, manager, after)?;
    // All activations that can be compressed may already be computed again.
    fit.compressed = compilation.has_pass(CompressActivations::NAME) && !is_given;
    Ok(fit)
}

/// Finds the options of `recompute` whose program takes at most `budget` bytes and repeats the least. `None` if nothing has to be repeated:
/// the program fits as it is, in `unconstrained` bytes, or with compressed activations. `forms` are the forms in which activations may be
/// compressed. Programs without compression are tried last. `peak` lowers a program and returns its bytes.
///
/// # Errors
/// As [`fit`]; those of `peak`.
pub fn cheapest(
    module: &Module,
    budget: u64,
    unconstrained: u64,
    device: &Device,
    forms: Option<&CompressActivations>,
    peak: &mut dyn FnMut(Module) -> Result<u64, Failure>,
) -> Result<(Fit, Option<Recompute>), Failure> {
    let fits_as_it_is = Fit::as_it_is(budget, unconstrained);
    if unconstrained <= budget {
        return Ok((fits_as_it_is, None));
    }
    let choices = Choices::of(module, &DeviceRates::of(device));
    let highest = Recompute::FULL.on(device);
    let lowest = Recompute { price: 0, ..highest.clone() };
    let prices = choices.prices(&lowest, &highest);
    let nothing = Tried { options: lowest.clone(), decision: choices.decide(&lowest), peak: unconstrained };
    let (mut refused, mut tries): (Vec<(u64, Diagnostic)>, usize) = (vec![], 0);
    for forms in forms.map(Some).into_iter().chain([None]) {
        let mut search = Search { module, choices: &choices, budget, forms, tried: vec![], peak };
        let nothing = match forms {
            Some(_) => search.attempt(&lowest)?,
            None => {
                search.tried.push(nothing.clone());
                nothing.clone()
            }
        };
        let found = if nothing.peak <= budget { Some(nothing) } else { search.run(&prices)? };
        tries += search.tried.len();
        let Some(found) = found else {
            refused.push(search.too_small());
            continue;
        };
        let (time, peak, compressed) = (found.decision.picoseconds(), found.peak, forms.is_some());
        let least_time = lagrangian_bound(&prices, found.decision.kept());
        let fit = Fit { peak, time, least_time, compressed, tries, ..fits_as_it_is };
        return Ok((fit, (time > 0).then_some(found.options)));
    }
    let smallest = refused.into_iter().min_by_key(|(bytes, _)| *bytes);
    Err(smallest.expect("programs that are not compressed are tried").1.into())
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
pub(crate) fn one_by_one(prices: &[(Recompute, Decision)]) -> Vec<Recompute> {
    let mut all = vec![prices[0].0.clone()];
    for pair in prices.windows(2) {
        let [(from, before), (to, after)] = pair else { continue };
        let with = |block: usize| Recompute { first: Some(block as u64 + 1), then: from.price, ..to.clone() };
        all.extend(before.changed_blocks(after).map(with));
        // After the last block, the price holds for all blocks.
        all.last_mut().into_iter().for_each(|last| *last = to.clone());
    }
    all
}

/// Options whose program was lowered, with the bytes of the program.
#[derive(Clone, Debug)]
struct Tried {
    options: Recompute,
    decision: Decision,
    peak: u64,
}

impl Tried {
    /// Whether the repeated nodes of this program take hardly longer than those of another program.
    fn is_near(&self, other: &Self) -> bool {
        let [own, other] = [self, other].map(|tried| tried.decision.picoseconds());
        own.saturating_sub(other) <= own / NEAR
    }
}

struct Search<'a> {
    module: &'a Module,
    choices: &'a Choices<'a>,
    budget: u64,
    /// The forms in which activations are compressed; `None` without compression.
    forms: Option<&'a CompressActivations>,
    /// Every program that was lowered. The first repeats nothing.
    tried: Vec<Tried>,
    peak: &'a mut dyn FnMut(Module) -> Result<u64, Failure>,
}

impl Search<'_> {
    /// Finds the cheapest options that fit. `prices` are the prices at which the decision changes, in ascending order.
    ///
    /// The program of the highest price is not always the smallest: a block that is repeated as a whole needs its memory at once.
    ///
    /// `None` if no price fits.
    fn run(&mut self, prices: &[(Recompute, Decision)]) -> Result<Option<Tried>, Failure> {
        if let Some(found) = self.first_that_fits(&one_by_one(prices), None)? {
            return Ok(Some(found));
        }
        for end in (1..prices.len()).rev() {
            let tried = self.attempt(&prices[end].0)?;
            if tried.peak <= self.budget {
                let first = self.first_that_fits(&one_by_one(&prices[..=end]), Some(tried.clone()))?;
                return Ok(Some(first.unwrap_or(tried)));
            }
        }
        Ok(None)
    }

    /// Finds the first options that fit. The programs of `options` get smaller and smaller, and the first does not fit. `fitting` is the
    /// program of the last options, if it is known to fit. `None` if no options fit.
    fn first_that_fits(
        &mut self,
        options: &[Recompute],
        mut fitting: Option<Tried>,
    ) -> Result<Option<Tried>, Failure> {
        let (mut below, mut above) = (0, options.len() - usize::from(fitting.is_some()));
        let mut before = self.attempt(&options[0])?;
        for tries in 0.. {
            if above - below <= 1 || fitting.as_ref().is_some_and(|fitting| fitting.is_near(&before)) {
                break;
            }
            let between = &options[below + 1..above];
            let at = match &fitting {
                None if tries >= GUESSES / 2 => above - 1,
                _ if tries >= GUESSES => below + 1 + between.len() / 2,
                fitting => below + 1 + self.guess(between, &before, fitting.as_ref()),
            };
            let tried = self.attempt(&options[at])?;
            if tried.peak <= self.budget {
                (above, fitting) = (at, Some(tried));
            } else {
                (below, before) = (at, tried);
            }
        }
        Ok(fitting)
    }

    /// The index of the first options whose program should fit. The bytes of a program are interpolated between the programs on both sides;
    /// as long as no program fits, a program is assumed to take one byte less for each byte that it does not keep.
    fn guess(&self, options: &[Recompute], before: &Tried, fitting: Option<&Tried>) -> usize {
        let (excess, kept) = (u128::from(before.peak - self.budget), before.decision.kept());
        let to_save = match fitting {
            Some(fitting) => {
                let saved = u128::from(kept.saturating_sub(fitting.decision.kept()));
                excess * saved / u128::from((before.peak - fitting.peak).max(1))
            }
            None => excess,
        };
        let fits = |options: &Recompute| {
            u128::from(kept.saturating_sub(self.choices.decide(options).kept())) >= to_save
        };
        options.partition_point(|options| !fits(options)).min(options.len() - 1)
    }

    /// The bytes of the program of some options. Each decision is lowered once.
    fn attempt(&mut self, options: &Recompute) -> Result<Tried, Failure> {
        let decision = self.choices.decide(options);
        if let Some(known) = self.tried.iter().find(|tried| tried.decision == decision) {
            return Ok(Tried { options: options.clone(), ..known.clone() });
        }
        let program = self.program(&decision)?;
        let peak = (self.peak)(program)?;
        let tried = Tried { options: options.clone(), decision, peak };
        self.tried.push(tried.clone());
        Ok(tried)
    }

    /// The program of a decision, with activations in their forms.
    fn program(&self, decision: &Decision) -> Result<Module, Diagnostic> {
        let mut module = self.module.clone();
        apply(&mut module, decision)?;
        if let Some(forms) = self.forms {
            let compressed = compress_activations::decide(&module, forms);
            compress_activations::apply(&mut module, &compressed)?;
        }
        Ok(module)
    }

    /// The bytes of the smallest program that was tried, and the error for a budget that no program fits.
    fn too_small(&self) -> (u64, Diagnostic) {
        // Every search that finds no program has tried the programs with one price for all blocks.
        let uniform = self.tried.iter().filter(|tried| tried.options.first.is_none());
        let smallest = uniform.min_by_key(|tried| tried.peak).expect("the first program repeats nothing");
        let accepted = Budget(smallest.peak).rounded_up();
        let error = Diagnostic::new(format!(
            "--memory {}: the smallest program that was found takes {} on each device",
            Budget(self.budget),
            bytes(smallest.peak)
        ));
        let error = error.note(format!("the smallest budget that fits is --memory {accepted}"));
        let program = self.program(&smallest.decision).ok();
        let largest = program.as_ref().and_then(|module| Some((module, largest_at_peak(module)?)));
        let error = match largest {
            Some((module, (value, size))) => {
                let node = module.producer(value).map(|node| (node.op.name(), node.origin.to_string()));
                let (name, origin) = node.unwrap_or(("input", String::new()));
                let text =
                    format!("the largest value at its peak is the result of `{name}`, {}", bytes(size));
                let error = error.note(text);
                if origin.is_empty() { error } else { error.at(origin) }
            }
            None => error,
        };
        let error = error.note("a smaller --microbatch, a mesh of more devices or --zero takes less");
        (smallest.peak, error)
    }
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
