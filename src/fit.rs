//! Programs that fit into memory.
//!
//! `--recompute`, `--offload` and the other flags of memory say what is done. Where the flags leave a choice open, a search decides:
//!
//! - `recompute`: `--memory BYTES` has the cheapest recomputation that fits, with activations kept in few bits before any is computed again.
//! - `tiers`: `--memory host=…,disk=…` and `--offload auto` choose the values that leave the device, as few as possible.
//! - `stages` makes the stages of a pipeline again where their plans do not fit.
//!
//! A [`Candidate`] is a way to use the memories, and `measure` lowers candidates. `costs` has their predicted times. Where nothing fits,
//! `cli/advice` tries other flags by the same steps.

mod costs;
mod measure;
pub mod recompute;
pub(crate) mod stages;
mod tiers;

use crate::compilation::Compilation;
use crate::config;
use crate::config::memory::{Budget, Budgets, Tiers};
use crate::failure::Failure;
use crate::training::Programs;
use crate::units::bytes;
pub use costs::seconds_of_copies;
use ir::machine::{Cluster, Device, Node};
use ir::{Diagnostic, Module};
use passes::compress_activations::{self, CompressActivations};
use passes::offload::Offload;
use passes::recompute::Recompute;
use passes::{Manager, Transform};
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

/// A way to use the memories.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The activations that are computed again.
    pub recompute: Option<Recompute>,
    /// The forms in which activations are kept without loss.
    pub compress: Option<CompressActivations>,
    /// The values that leave the device.
    pub offload: Option<Offload>,
    /// The time of updates.
    pub update: UpdateTime,
    /// Predicted picoseconds of a step's copies, work on the host, repeated nodes and packing, if nothing runs beside them.
    pub picoseconds: u64,
    /// Bytes of the device that every program of the candidate needs: states that stay, values that live through the whole step, and
    /// gradients that wait for the update.
    pub least: u64,
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
        let fits = |own: u64, budget: Option<Budget>| budget.is_none_or(|Budget(bytes)| own <= bytes);
        let disk = match &budgets.disk {
            Some(disk) => fits(self.disk, disk.bytes),
            None => self.disk == 0,
        };
        fits(self.device, budgets.device) && fits(self.host, budgets.host) && disk
    }
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The candidate that was taken.
    pub candidate: Candidate,
    /// The bytes of its programs.
    pub peaks: Peaks,
    /// The number of programs that were lowered.
    pub tries: usize,
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        let milliseconds = self.candidate.picoseconds as f64 / 1e9;
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
    if let Some(tiers) = flags.tiers().filter(|tiers| !tiers.is_fixed()) {
        if tiers.budgets == Budgets::default() {
            let error = Diagnostic::new("--offload auto has no budget to fit");
            return Err(error.note("give one, such as --memory device=8GiB,host=64GiB").into());
        }
        return Ok(Some(fit(compilation, manager, &tiers, conditions, after)?.to_string()));
    }
    let Some(budget) = flags.device_budget() else { return Ok(None) };
    Ok(Some(recompute::fit(compilation, manager, budget, conditions, after)?.to_string()))
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
    let mut tiers = tiers.clone();
    if tiers.budgets.disk.is_some() && tiers.budgets.host.is_none() {
        // The file takes the values for which the host of the machine has no room.
        tiers.budgets.host = Some(Budget(conditions.node.host_memory / conditions.node.devices.max(1)));
    }
    let trial = Manager { trial: true, ..Manager::default() };
    let found = tiers::Search::new(compilation, &trial, &tiers, conditions).run()?;
    found.candidate.run_passes(compilation, manager, after)?;
    Ok(found)
}

impl Candidate {
    /// The candidate that changes nothing.
    fn unchanged(update: UpdateTime) -> Self {
        Self { recompute: None, compress: None, offload: None, update, picoseconds: 0, least: 0 }
    }

    /// Runs the passes of the candidate on a compilation. `after` sees the step after each pass.
    fn run_passes(
        &self,
        compilation: &mut Compilation,
        manager: &Manager,
        mut after: impl FnMut(&str, &Module),
    ) -> Result<(), Failure> {
        compilation.update = self.update;
        if let Some(recompute) = &self.recompute {
            compilation.recompute(manager, recompute.clone())?;
            after(Recompute::NAME, &compilation.training);
        }
        // All activations that have such a form may already be computed again.
        let has_form = |forms: &&CompressActivations| {
            !compress_activations::decide(&compilation.training, forms).is_empty()
        };
        if let Some(compress) = self.compress.as_ref().filter(has_form) {
            compilation.compress_activations(manager, compress.clone())?;
            after(CompressActivations::NAME, &compilation.training);
        }
        if let Some(offload) = &self.offload {
            compilation.offload(manager, offload.clone())?;
            after(Offload::NAME, &compilation.training);
        }
        Ok(())
    }
}
