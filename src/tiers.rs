//! `--memory host=…,disk=…` and `--offload auto`: the choice of the values that leave the device, as few as possible.
//!
//! An activation may be kept, kept in few bits, computed again, or copied to the host. A candidate is a price of kept bytes, which decides
//! on each activation, and a set of classes of values that leave the device. The description of the machine gives the time of its repeated
//! nodes, its packing, its copies and its work on the host (`costs`). The candidates are lowered in the order of this time, until one fits
//! into all memories. Then as few activations as possible are computed again, and as many activations and states as fit stay on the device
//! (`search`).

mod costs;
mod search;

use crate::budget;
use crate::compilation::Compilation;
use crate::config;
use crate::config::memory::{Budget, Budgets, Tiers};
use crate::failure::Failure;
use crate::inspection::units::bytes;
use crate::training::Programs;
pub use costs::seconds_of_copies;
use ir::machine::{Cluster, Device, Node};
use ir::{Diagnostic, Module};
use passes::compress_activations::CompressActivations;
use passes::offload::Offload;
use passes::recompute::Recompute;
use passes::{Manager, Transform};
use program::{Multiprocessors, Target};
use program::{StagePrograms, UpdateTime};
use search::Search;
use std::fmt;

/// The machine and the steps for which programs must fit.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
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
/// nothing.
/// `after` sees the step after each pass.
///
/// # Errors
/// Budgets that no program fits; `--offload auto` without a budget.
pub fn fit_memory(
    compilation: &mut Compilation,
    manager: &Manager,
    flags: &config::Memory,
    place: Place,
    after: impl FnMut(&str, &Module),
) -> Result<Option<String>, Failure> {
    if let Some(tiers) = flags.tiers().filter(|tiers| !tiers.is_fixed()) {
        if tiers.budgets == Budgets::default() {
            let error = Diagnostic::new("--offload auto has no budget to fit");
            return Err(error.note("give one, such as --memory device=8GiB,host=64GiB").into());
        }
        return Ok(Some(fit(compilation, manager, &tiers, place, after)?.to_string()));
    }
    let Some(budget) = flags.device_budget() else { return Ok(None) };
    let Place { microbatches, target, multiprocessors, node, .. } = place;
    let place = budget::Place { budget, microbatches, target, multiprocessors, device: &node.device };
    Ok(Some(budget::fit(compilation, manager, place, after)?.to_string()))
}

/// Makes the programs of a compilation fit. `after` sees the step after each pass.
///
/// # Errors
/// Budgets that no candidate fits: the error has the bytes of the smallest candidate that was found.
pub fn fit(
    compilation: &mut Compilation,
    manager: &Manager,
    tiers: &Tiers,
    place: Place,
    mut after: impl FnMut(&str, &Module),
) -> Result<Fit, Failure> {
    let silent = Manager { trial: true, ..Manager::default() };
    let mut tiers = tiers.clone();
    if tiers.budgets.disk.is_some() && tiers.budgets.host.is_none() {
        // The file takes the values for which the host of the machine has no room.
        tiers.budgets.host = Some(Budget(place.node.host_memory / place.node.devices.max(1)));
    }
    let found = Search::new(compilation, &silent, &tiers, place).run()?;
    let Candidate { recompute, compress, offload, update, .. } = found.candidate.clone();
    compilation.update = update;
    if let Some(recompute) = recompute {
        compilation.recompute(manager, recompute)?;
        after(Recompute::NAME, &compilation.training);
    }
    if let Some(compress) = compress {
        compilation.compress_activations(manager, compress)?;
        after(CompressActivations::NAME, &compilation.training);
    }
    if let Some(offload) = offload {
        compilation.offload(manager, offload)?;
        after(Offload::NAME, &compilation.training);
    }
    Ok(found)
}
