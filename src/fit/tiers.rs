//! `--memory host=…,disk=…` and `--offload auto`: the choice of the values that leave the device, as few as possible.
//!
//! An activation may be kept, kept in few bits, computed again, or copied to the host. A candidate is a price of kept bytes, which decides
//! on each activation, and a set of classes of values that leave the device. The description of the machine gives the time of its repeated
//! nodes, its packing, its copies and its work on the host (`costs`). The candidates are lowered in the order of this time, until one fits
//! into all memories. Then as few activations as possible are computed again, and as many activations and states as fit stay on the device,
//! value by value.

use super::measure::Measure;
use super::recompute::one_by_one;
use super::{Candidate, Conditions, Fit, Peaks, costs};
use crate::compilation::Compilation;
use crate::config::memory::{Budget, Budgets, Tiers};
use crate::failure::Failure;
use crate::units::bytes;
use ir::{Diagnostic, Module};
use passes::compress_activations::CompressActivations;
use passes::offload::{Classes, Offload};
use passes::recompute::{Choices, Recompute};
use passes::{Manager, Transform};
use program::UpdateTime;

/// The most programs with which a choice of values is improved.
const TRIES: usize = 4;

/// A budget is used well enough if at most one part in `NEAR` of it is unused.
const NEAR: u64 = 64;

/// A candidate and the bytes of its programs.
type Found = (Candidate, Peaks);

/// The search for a candidate that fits.
pub(super) struct Search<'a> {
    compilation: &'a Compilation,
    tiers: &'a Tiers,
    conditions: Conditions<'a>,
    measure: Measure<'a>,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        compilation: &'a Compilation,
        manager: &'a Manager,
        tiers: &'a Tiers,
        conditions: Conditions<'a>,
    ) -> Self {
        let measure = Measure::new(compilation, manager, conditions);
        Self { compilation, tiers, conditions, measure }
    }

    /// The first candidate that fits, improved value by value. Errors: no candidate fits.
    pub(super) fn run(&mut self) -> Result<Fit, Failure> {
        let mut smallest: Option<(Candidate, Peaks)> = None;
        let (mut failed, mut least): (Vec<Candidate>, u64) = (vec![], u64::MAX);
        for candidate in self.candidates()? {
            let is_hopeless = self.tiers.budgets.device.is_some_and(|Budget(bytes)| candidate.least > bytes);
            if is_hopeless || failed.iter().any(|failed| candidate.takes_as_much(failed)) {
                least = least.min(candidate.least);
                continue;
            }
            let (candidate, peaks) = self.settled(candidate)?;
            if peaks.fit(&self.tiers.budgets) {
                let candidate = self.priced(candidate)?;
                return Ok(Fit { candidate, peaks, tries: self.measure.tries });
            }
            if smallest.as_ref().is_none_or(|(_, known)| peaks.device < known.device) {
                smallest = Some((candidate.clone(), peaks));
            }
            // A candidate that fits the device but not the host says nothing about candidates that leave less on the host.
            if self.tiers.budgets.device.is_some_and(|Budget(bytes)| peaks.device > bytes) {
                failed.push(candidate);
            }
        }
        Err(self.too_small(smallest, least).into())
    }

    /// All candidates, by rising time.
    fn candidates(&self) -> Result<Vec<Candidate>, Failure> {
        let mut all = vec![];
        for recompute in [None].into_iter().chain(self.prices(true).into_iter().map(Some)) {
            let (repeated, time) = self.repeated(recompute.as_ref())?;
            let forms = self.forms();
            if let Some((smaller, packing)) = self.compressed(&repeated, forms.as_ref())? {
                let time = time.saturating_add(packing);
                all.extend(self.candidates_of(&smaller, time, (recompute.as_ref(), forms.as_ref()))?);
            }
            all.extend(self.candidates_of(&repeated, time, (recompute.as_ref(), None))?);
        }
        all.sort_by_key(|candidate| (candidate.update == UpdateTime::Early, candidate.picoseconds));
        Ok(all)
    }

    /// The candidates for a step in which some nodes are repeated and some activations are compressed, which takes this number of
    /// picoseconds.
    fn candidates_of(
        &self,
        module: &Module,
        time: u64,
        (recompute, compress): (Option<&Recompute>, Option<&CompressActivations>),
    ) -> Result<Vec<Candidate>, Failure> {
        let is_tried = |classes: &Classes| {
            recompute.is_none_or(|options| self.prices(classes.activations).contains(options))
        };
        let mut all = vec![];
        for classes in self.class_sets().into_iter().filter(is_tried) {
            let offload = Offload { classes, ..self.tiers.offload.clone() };
            let step = costs::offloaded(module, &offload)?;
            let candidate = |update| Candidate {
                recompute: recompute.cloned(),
                compress: compress.cloned(),
                offload: (classes != Classes::NONE).then(|| offload.clone()),
                update,
                picoseconds: time.saturating_add(self.beside(&step)),
                least: costs::least_of_device(&step, update),
            };
            all.extend(self.update_times().into_iter().map(candidate));
        }
        Ok(all)
    }

    /// The prices of kept bytes that are tried first, in ascending order; none if the flags decide the recomputation. The price of copies
    /// is added if activations may leave the device.
    fn prices(&self, may_leave: bool) -> Vec<Recompute> {
        let Conditions { node, .. } = self.conditions;
        if self.tiers.budgets.device.is_none() || self.compilation.has_pass(Recompute::NAME) {
            return vec![];
        }
        let mut prices = vec![Recompute::SELECTIVE.on(&node.device)];
        prices.extend(may_leave.then(|| costs::price_of_copies(node)));
        prices.sort_by_key(|options| options.price);
        prices.dedup();
        prices.push(Recompute::FULL.on(&node.device));
        prices
    }

    /// The forms in which activations may be kept without loss; `None` if the flags decide the forms.
    fn forms(&self) -> Option<CompressActivations> {
        let is_open =
            self.tiers.budgets.device.is_some() && !self.compilation.has_pass(CompressActivations::NAME);
        is_open.then_some(CompressActivations::LOSSLESS)
    }

    /// The sets of classes that may leave the device.
    fn class_sets(&self) -> Vec<Classes> {
        let mut sets = vec![self.tiers.offload.classes];
        if self.tiers.is_open {
            // Embeddings leave only if the user asks for it: few models have large embeddings apart from their heads.
            for (class, _) in Classes::ALL.into_iter().filter(|(class, _)| !class.embeddings) {
                let with: Vec<Classes> = sets.iter().map(|set| set.with(class)).collect();
                with.into_iter().for_each(|set| {
                    if !sets.contains(&set) {
                        sets.push(set);
                    }
                });
            }
        }
        sets
    }

    /// The possible times of updates. Early updates are possible only if nothing waits for all gradients.
    fn update_times(&self) -> Vec<UpdateTime> {
        let given = self.compilation.update;
        let may_be_early = given == UpdateTime::Late
            && self.conditions.may_update_early
            && self.conditions.microbatches == 1;
        [given].into_iter().chain(may_be_early.then_some(UpdateTime::Early)).collect()
    }

    /// The step with its repeated nodes, and the predicted picoseconds of these nodes.
    fn repeated(&self, recompute: Option<&Recompute>) -> Result<(Module, u64), Failure> {
        let mut module = self.compilation.training.clone();
        let Some(options) = recompute else { return Ok((module, 0)) };
        let decision = Choices::of(&module, &options.rates()).decide(options);
        passes::recompute::apply(&mut module, &decision)?;
        Ok((module, decision.picoseconds().saturating_mul(self.conditions.microbatches)))
    }

    /// Predicted picoseconds of the copies of a step, and of its work on the host.
    fn beside(&self, module: &Module) -> u64 {
        let Conditions { microbatches, node, .. } = self.conditions;
        let [link, disk] = costs::seconds_of_copies(module, microbatches, node);
        ((link + disk + costs::seconds_on_host(module, node)) * 1e12) as u64
    }

    /// The step with activations in fewer bytes, and the predicted picoseconds of their packing. `None` if no activation has such a form.
    fn compressed(
        &self,
        module: &Module,
        forms: Option<&CompressActivations>,
    ) -> Result<Option<(Module, u64)>, Failure> {
        let Some(forms) = forms else { return Ok(None) };
        let compressed = costs::compressed(module, forms, &self.conditions.node.device)?;
        Ok(compressed.map(|(module, time)| (module, time.saturating_mul(self.conditions.microbatches))))
    }

    /// A candidate with the predicted picoseconds of its final choices, and without forms that no kept activation has.
    fn priced(&self, mut candidate: Candidate) -> Result<Candidate, Failure> {
        let (mut module, mut time) = self.repeated(candidate.recompute.as_ref())?;
        match self.compressed(&module, candidate.compress.as_ref())? {
            Some((smaller, packing)) => (module, time) = (smaller, time.saturating_add(packing)),
            None => candidate.compress = None,
        }
        let step =
            candidate.offload.as_ref().map(|offload| costs::offloaded(&module, offload)).transpose()?;
        candidate.picoseconds = time.saturating_add(step.map_or(0, |step| self.beside(&step)));
        Ok(candidate)
    }

    /// Reduces the repeated nodes and the copies of a candidate. First, as few activations as possible are computed again; then as many of
    /// them as fit stay on the device, and then as many states. States for which the host has no room go into the file. If activations take
    /// room that states need, the states come first.
    fn settled(&mut self, candidate: Candidate) -> Result<Found, Failure> {
        let peaks = self.measure.candidate(&candidate)?;
        if self.tiers.budgets.device.is_some_and(|Budget(bytes)| peaks.device > bytes) {
            return Ok((candidate, peaks));
        }
        let first = (candidate, peaks);
        let less = self.less_repeated(first.clone())?;
        let stayed = self.with_most(less, |offload, _, bytes| {
            offload.stay = bytes;
            offload.classes.activations
        })?;
        let is_changed = stayed.0 != first.0;
        let settled = self.with_states(stayed)?;
        if settled.1.fit(&self.tiers.budgets) || !is_changed {
            return Ok(settled);
        }
        self.with_states(first)
    }

    /// A candidate with as many states on the device as fit, and then as many of the others on the host.
    fn with_states(&mut self, found: Found) -> Result<Found, Failure> {
        let (candidate, peaks) = self.with_most(found, |offload, peaks, bytes| {
            offload.keep = bytes;
            peaks.host_states > 0
        })?;
        self.within_host(candidate, peaks)
    }

    /// Whether a program fits if all its states on the host move into the file.
    fn fits_with_file(&self, peaks: &Peaks) -> bool {
        let Budgets { device, host, disk } = &self.tiers.budgets;
        let fits = |own: u64, budget: &Option<Budget>| budget.is_none_or(|Budget(bytes)| own <= bytes);
        let to_file = if disk.is_some() { peaks.host_states } else { 0 };
        fits(peaks.device, device) && fits(peaks.host.saturating_sub(to_file), host)
    }

    /// A candidate that repeats as little as fits. The search goes block by block, between the candidate's price and the next lower price,
    /// which does not fit.
    fn less_repeated(&mut self, (candidate, peaks): Found) -> Result<Found, Failure> {
        let Some(highest) = candidate.recompute.clone().filter(|_| self.fits_with_file(&peaks)) else {
            return Ok((candidate, peaks));
        };
        let may_leave = candidate.offload.as_ref().is_some_and(|offload| offload.classes.activations);
        let lower = self.prices(may_leave).into_iter().rfind(|options| options.price < highest.price);
        let lowest = lower.unwrap_or(Recompute { price: 0, ..highest.clone() });
        let choices = Choices::of(&self.compilation.training, &highest.rates());
        let options = one_by_one(&choices.prices(&lowest, &highest));
        let (mut below, mut above, mut found) = (0, options.len() - 1, (candidate, peaks));
        for _ in 0..TRIES {
            if above <= below + 1 {
                break;
            }
            let middle = below + (above - below) / 2;
            let tried = Candidate { recompute: Some(options[middle].clone()), ..found.0.clone() };
            let peaks = self.measure.candidate(&tried)?;
            if self.fits_with_file(&peaks) {
                (above, found) = (middle, (tried, peaks));
            } else {
                below = middle;
            }
        }
        Ok(found)
    }

    /// A candidate with as many bytes on the device as fit. `stay` keeps that number of bytes on the device; it returns `false` if no value
    /// is left that could stay.
    fn with_most(
        &mut self,
        mut found: Found,
        stay: impl Fn(&mut Offload, &Peaks, u64) -> bool,
    ) -> Result<Found, Failure> {
        let Some(Budget(budget)) = self.tiers.budgets.device else { return Ok(found) };
        let (mut most, mut more) = (0, budget.saturating_sub(found.1.device));
        for _ in 0..TRIES {
            let (mut tried, known) = found.clone();
            if more == 0 || !tried.offload.as_mut().is_some_and(|offload| stay(offload, &known, most + more))
            {
                break;
            }
            let peaks = self.measure.candidate(&tried)?;
            match peaks.device.checked_sub(budget).filter(|&excess| excess > 0) {
                Some(excess) => more = more.saturating_sub(excess.max(more / 8)),
                // Either no more values can stay, or the added values are not alive at the position where the host is fullest.
                None if peaks.host >= known.host => break,
                None => {
                    most += more;
                    more = budget - peaks.device;
                    found = (tried, peaks);
                    if more < budget / NEAR {
                        break;
                    }
                }
            }
        }
        Ok(found)
    }

    /// Moves states from the host into the file, as many as the budget of the host requires.
    fn within_host(&mut self, mut candidate: Candidate, mut peaks: Peaks) -> Result<Found, Failure> {
        let Some((Budget(budget), _)) = self.tiers.budgets.host.zip(self.tiers.budgets.disk.as_ref()) else {
            return Ok((candidate, peaks));
        };
        for _ in 0..TRIES {
            let Some(offload) = candidate.offload.as_mut().filter(|_| peaks.host > budget) else { break };
            let states = offload.host.unwrap_or(peaks.host_states).min(peaks.host_states);
            if states == 0 {
                break;
            }
            offload.host = Some(states.saturating_sub(peaks.host - budget));
            peaks = self.measure.candidate(&candidate)?;
        }
        Ok((candidate, peaks))
    }

    fn too_small(&self, smallest: Option<(Candidate, Peaks)>, least: u64) -> Diagnostic {
        let error =
            Diagnostic::new(format!("--memory {}: no program that was found fits", self.tiers.budgets));
        let Some((candidate, peaks)) = smallest else {
            return error.note(format!("states and gradients alone take {} on the device", bytes(least)));
        };
        let accepted = |bytes: u64| Budget(bytes).rounded_up();
        let disk = match (&self.tiers.budgets.disk, peaks.disk) {
            (Some(disk), bytes) if bytes > 0 => {
                format!(",disk={}:{}", disk.folder.display(), accepted(bytes))
            }
            _ => String::new(),
        };
        let names: Vec<&str> = candidate.offload.iter().flat_map(|offload| offload.classes.names()).collect();
        let beside = if names.is_empty() { "nothing".to_string() } else { names.join(", ") };
        error
            .note(format!(
                "the program with the fewest bytes on the device fits --memory device={},host={}{disk}, with {beside} \
                 beside the device",
                accepted(peaks.device),
                accepted(peaks.host)
            ))
            .note("a smaller --microbatch, a mesh of more devices or --zero takes less")
    }
}

impl Candidate {
    /// Whether this candidate takes at least as much memory of the device as another candidate, which repeats the same nodes and moves more
    /// values off the device.
    fn takes_as_much(&self, other: &Self) -> bool {
        let classes = |own: &Self| own.offload.as_ref().map_or(Classes::NONE, |offload| offload.classes);
        let leaves_less = classes(self).with(classes(other)) == classes(other);
        let compresses_less = self.compress.is_none() || self.compress == other.compress;
        leaves_less && compresses_less && (&self.recompute, self.update) == (&other.recompute, other.update)
    }
}
