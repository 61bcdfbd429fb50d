//! `--memory host=…,disk=…` and `--offload auto`: the choice of the values that leave the device, as few as possible.
//!
//! An activation may be kept, kept in few bits, computed again, or copied to the host. A candidate is a price of kept bytes, which decides
//! on each activation, and a set of classes of values that leave the device. The description of the machine gives the time of its repeated
//! nodes, its packing, its copies and its work on the host (`costs`). The candidates are lowered in the order of this time, until one fits
//! into all memories. Then as few activations as possible are computed again, and as many activations and states as fit stay on the device,
//! value by value.

use super::measure::Tried;
use super::recompute::one_by_one;
use super::{Candidate, Conditions, Fit, Peaks, Search, costs};
use crate::config::memory::Budget;
use crate::failure::Failure;
use ir::Diagnostic;
use ir::units::bytes;
use passes::Transform;
use passes::offload::{Classes, Offload};
use passes::recompute::Recompute;
use program::UpdateTime;
use std::collections::BTreeMap;

/// The most programs with which a choice of values is improved.
const TRIES: usize = 4;

/// A budget is used well enough if at most one part in `NEAR` of it is unused.
const NEAR: u64 = 64;

/// Candidates wait in this order: late updates first, then predicted time, then the order in which they were listed.
type Waiting = BTreeMap<(bool, u64, Listed), Candidate>;

/// The place of a candidate in the list.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Listed {
    /// The candidate has this number. It stands for all candidates that differ from it in the values that leave the device, none of which
    /// takes less time.
    Standing(usize),
    /// The number of the candidate that stood for this one, the number among the candidates for which it stood, and the bytes of the
    /// device that all programs of this one need.
    Own(usize, usize, u64),
}

impl Search<'_> {
    /// Finds the first candidate that fits, and improves it value by value.
    pub(super) fn over_tiers(&mut self) -> Result<Fit, Failure> {
        let mut smallest: Option<Tried> = None;
        let (mut failed, mut least): (Vec<Candidate>, u64) = (vec![], u64::MAX);
        let mut waiting = self.candidates_on_device()?;
        while let Some(((.., listed), candidate)) = waiting.pop_first() {
            let own = match listed {
                Listed::Standing(number) => {
                    waiting.extend(self.candidates_off_device(&candidate, number)?);
                    continue;
                }
                Listed::Own(_, _, bytes) => bytes,
            };
            if own > self.device_budget() || failed.iter().any(|failed| candidate.takes_as_much(failed)) {
                least = least.min(own);
                continue;
            }
            let tried = self.settled(&candidate)?;
            if tried.peaks.fit(&self.tiers.budgets) {
                return self.found(tried, None);
            }
            // A candidate that fits the device but not the host says nothing about candidates that leave less on the host.
            if tried.peaks.device > self.device_budget() {
                failed.push(tried.candidate.clone());
            }
            if smallest.as_ref().is_none_or(|known| tried.peaks.device < known.peaks.device) {
                smallest = Some(tried);
            }
        }
        Err(self.no_program_fits(smallest, least).into())
    }

    /// The candidates of which no value leaves the device, each in place of those with its recomputation and its forms.
    fn candidates_on_device(&mut self) -> Result<Waiting, Failure> {
        let mut all = Waiting::new();
        let forms = self.forms()?;
        for recompute in [None].into_iter().chain(self.prices(true).into_iter().map(Some)) {
            for compress in forms.iter().cloned().map(Some).chain([None]) {
                let candidate = Candidate { recompute: recompute.clone(), compress, ..self.unchanged() };
                let made = self.measure.made(&candidate)?;
                if candidate.compress.is_none() || made.is_compressed() {
                    all.insert((false, made.picoseconds, Listed::Standing(all.len())), candidate);
                }
            }
        }
        Ok(all)
    }

    /// The candidates for which one stands, which has this number.
    fn candidates_off_device(&mut self, standing: &Candidate, number: usize) -> Result<Waiting, Failure> {
        let mut all = Waiting::new();
        for classes in self.class_sets() {
            let is_tried = |options: &Recompute| self.prices(classes.activations).contains(options);
            if !standing.recompute.as_ref().is_none_or(is_tried) {
                continue;
            }
            let offload = Offload { classes, ..self.tiers.offload.clone() };
            let offload = Some(offload).filter(|_| classes != Classes::NONE);
            let candidate = Candidate { offload, ..standing.clone() };
            let made = self.measure.made(&candidate)?;
            for update in self.update_times() {
                let least = costs::least_of_device(&made.step, update);
                let listed = Listed::Own(number, all.len(), least);
                let turn = (update == UpdateTime::Early, made.picoseconds, listed);
                all.insert(turn, Candidate { update, ..candidate.clone() });
            }
        }
        Ok(all)
    }

    /// The prices of kept bytes that are tried first, in ascending order; none if the flags decide the recomputation. The price of copies
    /// is added if activations may leave the device.
    fn prices(&self, may_leave: bool) -> Vec<Recompute> {
        let Conditions { node, .. } = self.conditions;
        if self.tiers.budgets.device.is_none() || self.given.has(Recompute::NAME) {
            return vec![];
        }
        let mut prices = vec![Recompute::SELECTIVE.on(&node.device)];
        prices.extend(may_leave.then(|| costs::price_of_copies(node)));
        prices.sort_by_key(|options| options.price);
        prices.dedup();
        prices.push(Recompute::FULL.on(&node.device));
        prices
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
        let given = self.update;
        let may_be_early = given == UpdateTime::Late
            && self.conditions.may_update_early
            && self.conditions.microbatches == 1;
        [given].into_iter().chain(may_be_early.then_some(UpdateTime::Early)).collect()
    }

    /// Reduces the repeated nodes and the copies of a candidate. First, as few activations as possible are computed again; then as many of
    /// them as fit stay on the device, and then as many states. States for which the host has no room go into the file. If activations take
    /// room that states need, the states come first.
    fn settled(&mut self, candidate: &Candidate) -> Result<Tried, Failure> {
        let first = self.measure.tried(candidate)?;
        if first.peaks.device > self.device_budget() {
            return Ok(first);
        }
        let less = self.less_repeated(first.clone())?;
        let stayed = self.with_most(less, |offload, _, bytes| {
            offload.stay = bytes;
            offload.classes.activations
        })?;
        let is_changed = stayed.candidate != first.candidate;
        let settled = self.with_states(stayed)?;
        if settled.peaks.fit(&self.tiers.budgets) || !is_changed {
            return Ok(settled);
        }
        self.with_states(first)
    }

    /// A candidate with as many states on the device as fit, and then as many of the others on the host.
    fn with_states(&mut self, found: Tried) -> Result<Tried, Failure> {
        let most = self.with_most(found, |offload, peaks, bytes| {
            offload.keep = bytes;
            peaks.host_states > 0
        })?;
        self.within_host(most)
    }

    /// A candidate that repeats as little as fits. The search goes block by block, between the candidate's price and the next lower price,
    /// which does not fit. It ends early, since an activation that is not repeated may be copied instead, which may take longer.
    fn less_repeated(&mut self, found: Tried) -> Result<Tried, Failure> {
        let Some(highest) = found.candidate.recompute.clone().filter(|_| self.fits(&found)) else {
            return Ok(found);
        };
        let may_leave = found.candidate.offload.as_ref().is_some_and(|offload| offload.classes.activations);
        let lower = self.prices(may_leave).into_iter().rfind(|options| options.price < highest.price);
        let lowest = lower.unwrap_or(Recompute { price: 0, ..highest.clone() });
        let options = one_by_one(&self.measure.choices().prices(&lowest, &highest));
        let (mut below, mut above, mut found) = (0, options.len() - 1, found);
        for _ in 0..TRIES {
            if above <= below + 1 {
                break;
            }
            let middle = below + (above - below) / 2;
            let recompute = Some(options[middle].clone());
            let tried = self.measure.tried(&Candidate { recompute, ..found.candidate.clone() })?;
            if self.fits(&tried) {
                (above, found) = (middle, tried);
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
        mut found: Tried,
        stay: impl Fn(&mut Offload, &Peaks, u64) -> bool,
    ) -> Result<Tried, Failure> {
        let Some(Budget(budget)) = self.tiers.budgets.device else { return Ok(found) };
        let (mut most, mut more) = (0, budget.saturating_sub(found.peaks.device));
        for _ in 0..TRIES {
            let (mut candidate, known) = (found.candidate.clone(), found.peaks);
            let has_more =
                candidate.offload.as_mut().is_some_and(|offload| stay(offload, &known, most + more));
            if more == 0 || !has_more {
                break;
            }
            let tried = self.measure.tried(&candidate)?;
            match tried.peaks.device.checked_sub(budget).filter(|&excess| excess > 0) {
                Some(excess) => more = more.saturating_sub(excess.max(more / 8)),
                // Either no more values can stay, or the added values are not alive at the position where the host is fullest.
                None if tried.peaks.host >= known.host => break,
                None => {
                    most += more;
                    more = budget - tried.peaks.device;
                    found = tried;
                    if more < budget / NEAR {
                        break;
                    }
                }
            }
        }
        Ok(found)
    }

    /// Moves states from the host into the file, as many as the budget of the host requires.
    fn within_host(&mut self, mut found: Tried) -> Result<Tried, Failure> {
        let Some((Budget(budget), _)) = self.tiers.budgets.host.zip(self.tiers.budgets.disk.as_ref()) else {
            return Ok(found);
        };
        for _ in 0..TRIES {
            let Peaks { host, host_states, .. } = found.peaks;
            let Some(offload) = found.candidate.offload.as_mut().filter(|_| host > budget) else { break };
            let states = offload.host.unwrap_or(host_states).min(host_states);
            if states == 0 {
                break;
            }
            offload.host = Some(states.saturating_sub(host - budget));
            found = self.measure.tried(&found.candidate)?;
        }
        Ok(found)
    }

    /// The error for budgets that no candidate fits.
    fn no_program_fits(&self, smallest: Option<Tried>, least: u64) -> Diagnostic {
        let error =
            Diagnostic::new(format!("--memory {}: no program that was found fits", self.tiers.budgets));
        let Some(Tried { candidate, peaks, .. }) = smallest else {
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
