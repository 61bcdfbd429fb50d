//! Programs that fit into memory.
//!
//! `--recompute`, `--offload` and the other flags of memory choose passes. Where the flags leave a choice open, a `Search` decides. The search
//! tries candidates until a program fits. A [`Candidate`] has the options of the passes after the placed step. `measure` makes its step, predicts
//! its time and lowers its programs. Two searches differ in the order of the candidates:
//!
//! - `recompute`: `--memory BYTES` has the cheapest recomputation that fits, with activations kept in few bits before any is computed again.
//! - `tiers`: `--memory host=…,disk=…` and `--offload auto` choose the values that leave the device, as few as possible.
//!
//! `stages` makes the stages of a pipeline again where their plans do not fit. Where nothing fits, `cli/advice` tries other flags by the same
//! steps.

mod costs;
mod measure;
mod recompute;
pub(crate) mod stages;
mod tiers;

use crate::compilation::Compilation;
use crate::config;
use crate::config::memory::{Budget, Budgets, Tiers};
use crate::failure::Failure;
use crate::training::Programs;
pub use costs::seconds_of_copies;
use ir::machine::{Cluster, Device, Node};
use ir::units::bytes;
use ir::{Diagnostic, Module};
pub use measure::Lower;
use measure::{Lowered, Measure, Tried};
use passes::compress_activations::CompressActivations;
use passes::offload::Offload;
use passes::recompute::Recompute;
use passes::{Manager, Pass, Pipeline, Transform};
use program::{Multiprocessors, Target};
use program::{StagePrograms, UpdateTime};
use std::fmt;

/// The steps and the machine for which programs must fit.
#[derive(Clone, Copy, Debug)]
pub struct Conditions<'a> {
    /// Microbatches of a step.
    pub microbatches: u64,
    /// The kind of the device.
    pub target: Target,
    /// The size of a GPU.
    pub multiprocessors: Multiprocessors,
    /// Whether updates may run before all gradients are there.
    pub may_update_early: bool,
    /// The node of the device, whose links are the costs of copies.
    pub node: &'a Node,
}

/// A way to use the memories: the options of the passes that run on a placed step, in their order, and the time of updates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidate {
    /// The activations that are computed again.
    pub recompute: Option<Recompute>,
    /// The forms in which activations are kept without loss.
    pub compress: Option<CompressActivations>,
    /// The values that leave the device.
    pub offload: Option<Offload>,
    /// The time of updates.
    pub update: UpdateTime,
}

impl Candidate {
    /// The passes.
    fn passes(&self) -> Pipeline {
        let recompute = self.recompute.clone().map(Pass::from);
        let compress = self.compress.clone().map(Pass::from);
        let offload = self.offload.clone().map(Pass::from);
        Pipeline { passes: recompute.into_iter().chain(compress).chain(offload).collect() }
    }
}

/// Bytes that programs take of each memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// On the device, with constants.
    pub device: u64,
    /// On the host.
    pub host: u64,
    /// States that rest on the host; a part of `host`.
    pub host_states: u64,
    /// In the file.
    pub disk: u64,
}

impl Peaks {
    /// The bytes of lowered programs.
    pub fn of(programs: &Programs) -> Self {
        let all = programs.all();
        let memories = || all.iter().flat_map(StagePrograms::iter).map(|program| program.memory);
        Self {
            device: programs.peak(),
            host: memories().map(|memory| memory.host.total).max().unwrap_or(0),
            host_states: memories().map(|memory| memory.host.states).max().unwrap_or(0),
            disk: memories().map(|memory| memory.disk.total).max().unwrap_or(0),
        }
    }

    /// Whether they fit into these budgets.
    fn fit(&self, budgets: &Budgets) -> bool {
        let disk = match &budgets.disk {
            Some(disk) => is_within(self.disk, disk.bytes),
            None => self.disk == 0,
        };
        is_within(self.device, budgets.device) && is_within(self.host, budgets.host) && disk
    }
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The candidate that was taken.
    pub candidate: Candidate,
    /// The bytes of its programs.
    pub peaks: Peaks,
    /// Predicted picoseconds of a step's copies, work on the host, repeated nodes and packing, if nothing runs beside them.
    pub picoseconds: u64,
    /// The number of programs that were lowered.
    pub tries: usize,
    /// Further numbers of a search in which no value may leave the device.
    pub on_device: Option<OnDevice>,
}

/// The numbers of a search in which no value may leave the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDevice {
    /// The budget, in bytes.
    pub budget: u64,
    /// Bytes of the program that keeps all activations.
    pub unconstrained: u64,
    /// Picoseconds of a microbatch's repeated nodes.
    pub time: u64,
    /// The Lagrangian bound in picoseconds: no choice of nodes that keeps as few bytes takes less.
    pub least_time: u64,
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.on_device {
            Some(numbers) => self.write_on_device(f, numbers),
            None => self.write_places(f),
        }
    }
}

impl Fit {
    /// Compares the program with the budget, and with the program that keeps all activations.
    fn write_on_device(&self, f: &mut fmt::Formatter<'_>, numbers: &OnDevice) -> fmt::Result {
        let OnDevice { budget, unconstrained, time, least_time } = *numbers;
        let [budget, unconstrained, peak] = [budget, unconstrained, self.peaks.device].map(bytes);
        let is_compressed = self.candidate.compress.is_some();
        let forms = if is_compressed { "activations are compressed without loss, and " } else { "" };
        if self.candidate.recompute.is_none() {
            return write!(f, "memory: {peak} of {budget}; {forms}nothing is computed again");
        }
        write!(
            f,
            "memory: {peak} of {budget}, {unconstrained} if all activations are kept; {forms}{:.3} ms of a microbatch are computed \
             again, at least {:.3} ms ({} programs tried)",
            time as f64 / 1e9,
            least_time as f64 / 1e9,
            self.tries
        )
    }

    /// Tells the memories, and the values that rest in them.
    fn write_places(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Peaks { device, host, disk, .. } = self.peaks;
        write!(f, "memory: {} on the device", bytes(device))?;
        for (size, place) in [(host, "on the host"), (disk, "on the disk")] {
            if size > 0 {
                write!(f, ", {} {place}", bytes(size))?;
            }
        }
        let beside = self.candidate.offload.iter().flat_map(|offload| {
            offload.classes.names().map(move |name| match name {
                "activations" if offload.stay > 0 => {
                    format!("{name}, of which up to {} stay", bytes(offload.stay))
                }
                _ => name.to_string(),
            })
        });
        match beside.collect::<Vec<_>>().join(", ") {
            names if names.is_empty() => f.write_str("; nothing leaves the device")?,
            names => write!(f, "; beside the device: {names}")?,
        }
        if self.candidate.recompute.is_some() {
            f.write_str(", some activations are computed again")?;
        }
        if self.candidate.compress.is_some() {
            f.write_str(", activations are compressed without loss")?;
        }
        if self.candidate.update == UpdateTime::Early {
            f.write_str(", updates are early")?;
        }
        let milliseconds = self.picoseconds as f64 / 1e9;
        write!(
            f,
            "; at most {milliseconds:.1} ms of a step are predicted for it ({} programs tried)",
            self.tries
        )
    }
}

/// The node of a device: the cluster's, or that of the preset for the device's kind.
pub fn node_of(device: &Device, cluster: Option<&Cluster>) -> Node {
    match cluster {
        Some(cluster) => Node { device: device.clone(), ..cluster.node.clone() },
        None => Node::of_device(device),
    }
}

/// Makes the programs of a compilation fit as `--memory` and `--offload` ask. Returns a line about the result; `None` if the flags ask for
/// nothing. `after` sees the step after each pass.
///
/// # Errors
/// Budgets that no program fits; `--offload auto` without a budget.
pub fn fit_memory(
    compilation: &mut Compilation,
    manager: &Manager,
    flags: &config::Memory,
    conditions: Conditions,
    after: impl FnMut(&str, &Module),
) -> Result<Option<String>, Failure> {
    let tiers = flags.tiers().unwrap_or_else(|| Tiers::within(flags.device_budget()));
    if tiers.is_fixed() {
        return Ok(None);
    }
    if tiers.budgets == Budgets::default() {
        let error = Diagnostic::new("--offload auto has no budget to fit");
        return Err(error.note("give one, such as --memory device=8GiB,host=64GiB").into());
    }
    Ok(Some(fit(compilation, manager, &tiers, conditions, after)?.to_string()))
}

/// Makes the programs of a compilation fit into the memories of a device and its host. `after` sees the step after each pass.
///
/// # Errors
/// Budgets that no candidate fits: the error has the bytes of the smallest candidate that was found.
pub fn fit(
    compilation: &mut Compilation,
    manager: &Manager,
    tiers: &Tiers,
    conditions: Conditions,
    after: impl FnMut(&str, &Module),
) -> Result<Fit, Failure> {
    let trial = manager.for_trials();
    let mut lowered = Lowered::new(compilation, &trial, conditions);
    let lower = &mut |step: Module, candidate: &Candidate| lowered.peaks(step, candidate);
    let given = (&compilation.pipeline, compilation.update);
    let found = search(&compilation.training, given, tiers, conditions, lower)?;
    compilation.update = found.candidate.update;
    compilation.extend_step(manager, found.candidate.passes(), after)?;
    Ok(found)
}

/// Searches for the first candidate that fits, improved block by block and value by value. The passes of the `step`, and the time of its
/// updates, are given. `lower` lowers the candidates.
///
/// # Errors
/// Budgets that no candidate fits: the error has the bytes of the smallest candidate that was found.
pub fn search<'a>(
    step: &'a Module,
    (given, update): (&'a Pipeline, UpdateTime),
    tiers: &Tiers,
    conditions: Conditions<'a>,
    lower: Lower<'a>,
) -> Result<Fit, Failure> {
    let mut tiers = tiers.clone();
    if tiers.budgets.disk.is_some() && tiers.budgets.host.is_none() {
        // The file takes the values for which the host of the machine has no room.
        tiers.budgets.host = Some(Budget(conditions.node.host_memory / conditions.node.devices.max(1)));
    }
    let may_leave = tiers.may_leave();
    let measure = Measure::new(step, conditions, lower);
    let mut search = Search { given, update, tiers, conditions, measure };
    if may_leave { search.over_tiers() } else { search.on_device() }
}

/// A search for a candidate that fits.
struct Search<'a> {
    /// The passes of the step.
    given: &'a Pipeline,
    /// The time of updates that is given.
    update: UpdateTime,
    tiers: Tiers,
    conditions: Conditions<'a>,
    measure: Measure<'a>,
}

impl Search<'_> {
    /// The candidate that changes nothing.
    fn unchanged(&self) -> Candidate {
        Candidate { update: self.update, ..Candidate::default() }
    }

    /// The forms in which activations may be kept without loss; `None` if the flags decide the forms, or if no activation has such a form.
    fn forms(&mut self) -> Result<Option<CompressActivations>, Failure> {
        if self.given.has(CompressActivations::NAME) || self.tiers.budgets.device.is_none() {
            return Ok(None);
        }
        let compress = Some(CompressActivations::LOSSLESS);
        let made = self.measure.made(&Candidate { compress: compress.clone(), ..self.unchanged() })?;
        Ok(compress.filter(|_| made.is_compressed()))
    }

    /// Bytes that the programs may take on the device.
    fn device_budget(&self) -> u64 {
        self.tiers.budgets.device.map_or(u64::MAX, |Budget(bytes)| bytes)
    }

    /// Whether a program fits, if all its states on the host move into the file.
    fn fits(&self, tried: &Tried) -> bool {
        let Peaks { device, host, host_states, .. } = tried.peaks;
        let to_file = if self.tiers.budgets.disk.is_some() { host_states } else { 0 };
        is_within(device, self.tiers.budgets.device)
            && is_within(host.saturating_sub(to_file), self.tiers.budgets.host)
    }

    /// The result for a candidate.
    fn found(&mut self, tried: Tried, on_device: Option<OnDevice>) -> Result<Fit, Failure> {
        let Tried { candidate, peaks, .. } = tried;
        let made = self.measure.made(&candidate)?;
        let candidate = made.without_idle(&candidate);
        let (picoseconds, tries) = (made.picoseconds, self.measure.tried.len());
        Ok(Fit { candidate, peaks, picoseconds, tries, on_device })
    }
}

/// Whether bytes are within a budget.
fn is_within(bytes: u64, budget: Option<Budget>) -> bool {
    budget.is_none_or(|Budget(most)| bytes <= most)
}
