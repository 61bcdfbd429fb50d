//! `--memory`: the cheapest recomputation whose program fits a number of bytes on each device.
//!
//! A price of a kept byte determines a program (`passes::recompute`). The search halves the range of prices, and lowers the
//! program of each price that decides otherwise than those before. Layers are alike, so all of them change at the same price;
//! then the search finds the smallest number of blocks, from the first on, that take the higher price.

use crate::compilation::Compilation;
use crate::failure::Failure;
use crate::inspection::units::bytes;
use crate::training::Programs;
use ir::analysis::liveness;
use ir::{Diagnostic, Module, ValueId};
use passes::Manager;
use passes::recompute::{Decision, Recompute, apply, decide};
use runtime::target::{Multiprocessors, Target};
use std::fmt;

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
    /// Picoseconds that no choice of nodes undercuts that keeps as few bytes: the Lagrangian bound.
    pub least_time: u64,
    /// The number of programs that were lowered.
    pub tries: usize,
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { budget, unconstrained, peak, time, least_time, tries } = self;
        let [budget, unconstrained, peak] = [budget, unconstrained, peak].map(|&number| bytes(number));
        if *time == 0 {
            return write!(f, "memory: {peak} of {budget}; nothing is computed again");
        }
        write!(
            f,
            "memory: {peak} of {budget}, {unconstrained} if all activations are kept; {:.3} ms of a microbatch are computed \
             again, at least {:.3} ms ({tries} programs tried)",
            *time as f64 / 1e9,
            *least_time as f64 / 1e9
        )
    }
}

/// Options of the search, with the bytes of their program.
#[derive(Clone, Debug)]
struct Tried {
    options: Recompute,
    decision: Decision,
    peak: u64,
}

/// The device and the steps that a program is made to fit.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Bytes of each device that the programs may take.
    pub budget: u64,
    /// Microbatches of a step.
    pub microbatches: u64,
    /// The kind of the device.
    pub target: Target,
    /// The size of a GPU.
    pub multiprocessors: Multiprocessors,
}

/// Recomputes as little as possible so that the programs of a compilation fit into the budget.
///
/// # Errors
/// A budget that no program fits: the smallest program's bytes, and the largest value at its peak.
pub fn fit(compilation: &mut Compilation, manager: &Manager, place: Place) -> Result<Fit, Failure> {
    let Place { budget, microbatches, target, multiprocessors } = place;
    let silent = Manager::default();
    let mut peak = |step: Module| {
        let lowering = &mut compilation.lowering(&silent);
        let programs =
            Programs::lower_with(lowering, step, compilation, microbatches, target, multiprocessors);
        programs.map(|programs| programs.peak())
    };
    let unconstrained = peak(compilation.training.clone())?;
    let fits_as_it_is = Fit { budget, unconstrained, peak: unconstrained, time: 0, least_time: 0, tries: 1 };
    if unconstrained <= budget {
        return Ok(fits_as_it_is);
    }
    let mut search =
        Search { module: &compilation.training, budget, tried: Vec::new(), lowered: 0, peak: &mut peak };
    let found = search.run(unconstrained)?;
    let (time, peak) = (found.decision.picoseconds(), found.peak);
    let least_time = lagrangian_bound(&search.tried, found.decision.kept());
    let tries = search.lowered + 1;
    compilation.recompute(manager, found.options)?;
    Ok(Fit { peak, time, least_time, tries, ..fits_as_it_is })
}

/// The Lagrangian bound: for any price, no choice that keeps `kept` bytes takes less than the cheapest choice's time and the
/// price of the bytes that it keeps beyond these.
fn lagrangian_bound(tried: &[Tried], kept: u64) -> u64 {
    let bound = |tried: &Tried| {
        let price = i128::from(tried.options.price);
        let beyond = i128::from(tried.decision.kept()) - i128::from(kept);
        let bound = i128::from(tried.decision.picoseconds()) + beyond * price / 1024;
        u64::try_from(bound).unwrap_or(0)
    };
    tried.iter().filter(|tried| tried.options.first.is_none()).map(bound).max().unwrap_or(0)
}

struct Search<'a> {
    module: &'a Module,
    budget: u64,
    tried: Vec<Tried>,
    /// The number of programs that were lowered.
    lowered: usize,
    peak: &'a mut dyn FnMut(Module) -> Result<u64, Failure>,
}

impl Search<'_> {
    /// Finds the cheapest options that fit.
    fn run(&mut self, unconstrained: u64) -> Result<Tried, Failure> {
        let highest = self.attempt(Recompute::FULL)?;
        if highest.peak > self.budget {
            return Err(self.too_small(highest.peak.min(unconstrained)).into());
        }
        // The lowest exponent of two whose price fits; then the price, to a sixteenth.
        let (mut low, mut fitting) = (0, highest);
        for step in [1 << 32, 1 << 16, 1 << 8, 1 << 4, 1 << 2, 1 << 1] {
            let price = fitting.options.price / step;
            if price > low {
                match self.attempt(Recompute { price, ..Recompute::FULL })? {
                    tried if tried.peak <= self.budget => fitting = tried,
                    tried => low = tried.options.price,
                }
            }
        }
        while fitting.options.price - low > (fitting.options.price / 16).max(1) {
            let price = low + (fitting.options.price - low) / 2;
            match self.attempt(Recompute { price, ..Recompute::FULL })? {
                tried if tried.peak <= self.budget => fitting = tried,
                tried => low = tried.options.price,
            }
        }
        self.fewest_blocks(low, fitting)
    }

    /// Finds the smallest number of blocks that take the price that fits, if the others take a lower price that does not.
    fn fewest_blocks(&mut self, low: u64, fitting: Tried) -> Result<Tried, Failure> {
        let (mut too_few, mut enough, price) =
            (0, fitting.decision.block_count() as u64, fitting.options.price);
        let mut best = fitting;
        while enough - too_few > 1 {
            let first = too_few + (enough - too_few) / 2;
            let tried = self.attempt(Recompute { price, first: Some(first), then: low })?;
            if tried.peak <= self.budget {
                (best, enough) = (tried, first);
            } else {
                too_few = first;
            }
        }
        Ok(best)
    }

    /// The bytes of the program of a price. A decision is lowered once.
    fn attempt(&mut self, options: Recompute) -> Result<Tried, Failure> {
        let decision = decide(self.module, &options);
        let known = self.tried.iter().find(|tried| tried.decision == decision).map(|tried| tried.peak);
        let peak = match known {
            Some(peak) => peak,
            None => {
                let mut module = self.module.clone();
                apply(&mut module, &decision)?;
                self.lowered += 1;
                (self.peak)(module)?
            }
        };
        let tried = Tried { options, decision, peak };
        self.tried.push(tried.clone());
        Ok(tried)
    }

    fn too_small(&self, smallest: u64) -> Diagnostic {
        let mut module = self.module.clone();
        let applied = apply(&mut module, &decide(self.module, &Recompute::FULL));
        let message = format!(
            "--memory {}: the smallest program, with --recompute full, takes {} of memory on each device",
            crate::config::memory::Budget(self.budget),
            bytes(smallest)
        );
        let error = Diagnostic::new(message);
        let error = match applied.ok().and_then(|_| largest_at_peak(&module)) {
            Some((value, size)) => {
                let node = module.producer(value).map(|node| (node.op.name(), node.origin.to_string()));
                let (name, origin) = node.unwrap_or(("input", String::new()));
                let error = error.note(format!(
                    "the largest value at its peak is the result of `{name}`, {}",
                    bytes(size)
                ));
                if origin.is_empty() { error } else { error.at(origin) }
            }
            None => error,
        };
        error.note("a smaller --microbatch, a mesh of more devices or --zero takes less")
    }
}

/// The largest value that is no state, at the node where the values alive have the most bytes.
fn largest_at_peak(module: &Module) -> Option<(ValueId, u64)> {
    let lifetimes = liveness::values(module);
    let size = |value: ValueId| module.ty(value).local_bytes(&module.mesh);
    let results = module.nodes().flat_map(|(_, node)| node.results.iter().copied());
    let alive: Vec<_> = results.filter_map(|value| Some((value, lifetimes[value]?, size(value)?))).collect();
    let mut changes = vec![0i128; module.order().len() + 1];
    for (_, lifetime, size) in &alive {
        changes[lifetime.first as usize] += i128::from(*size);
        changes[lifetime.last as usize + 1] -= i128::from(*size);
    }
    let totals = changes.iter().scan(0, |total, change| {
        *total += change;
        Some(*total)
    });
    let (peak, _) = totals.enumerate().max_by_key(|(_, total)| *total)?;
    let at_peak =
        alive.iter().filter(|(_, lifetime, _)| (lifetime.first..=lifetime.last).contains(&(peak as u32)));
    at_peak.max_by_key(|(_, _, size)| *size).map(|(value, _, size)| (*value, *size))
}
