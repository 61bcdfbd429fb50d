//! `--memory host=…,disk=…` and `--offload auto`: the memories beside the device, used as little as the run allows.
//!
//! A candidate is a price of kept activations and a set of classes of values that leave the device. The description of the machine
//! says how long its repeated nodes and its copies take. The candidates are lowered in the order of this time, until one fits into
//! all memories. Then as many states as fit stay on the device.

use crate::budget;
use crate::compilation::Compilation;
use crate::config;
use crate::config::memory::{Budget, Budgets, Tiers};
use crate::failure::Failure;
use crate::inspection::units::bytes;
use crate::training::Programs;
use ir::machine::{Cluster, Device, Node};
use ir::{Diagnostic, Module, Op, Phase, Tier};
use passes::offload::{Classes, Offload};
use passes::recompute::{Choices, Recompute};
use passes::{Manager, Transform};
use runtime::program::{StagePrograms, UpdateTime};
use runtime::target::{Multiprocessors, Target};
use std::fmt;

/// After this number of programs, bytes that stay on the device are not sought any longer.
const TRIES: usize = 4;

/// The machine and the steps that programs are made to fit.
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
    /// The values that leave the device.
    pub offload: Option<Offload>,
    /// When updates run.
    pub update: UpdateTime,
    /// Predicted picoseconds of a step's copies and repeated nodes, if nothing runs beside them.
    pub picoseconds: u64,
    /// Bytes of the device that no program of the candidate goes without: states that stay, values that live through the whole
    /// step, and gradients that wait for the update.
    pub least: u64,
}

/// Bytes that programs take of each memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// On the device, with constants.
    pub device: u64,
    /// On the host.
    pub host: u64,
    /// Of these the states that rest there.
    pub host_states: u64,
    /// In the file.
    pub disk: u64,
}

impl Peaks {
    /// Those of lowered programs.
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
    /// Its bytes.
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
        let offload = self.candidate.offload.iter().flat_map(|offload| offload.classes.names());
        let recompute = self.candidate.recompute.iter().map(|_| "some activations are computed again");
        match offload.collect::<Vec<_>>().join(", ") {
            names if names.is_empty() => f.write_str("; nothing leaves the device")?,
            names => write!(f, "; beside the device: {names}")?,
        }
        recompute.into_iter().try_for_each(|text| write!(f, ", {text}"))?;
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

/// The node of a device: that of the cluster, or the preset's of its kind.
pub fn node_of(device: &Device, cluster: Option<&Cluster>) -> Node {
    match cluster {
        Some(cluster) => Node { device: device.clone(), ..cluster.node.clone() },
        None => Node::of_device(device),
    }
}

/// Makes the programs of a compilation fit as `--memory` and `--offload` ask. Returns a line about the result; `None` if nothing is asked.
/// `after` sees the step after each pass.
///
/// # Errors
/// Budgets that no program fits; `--offload auto` without a budget.
pub fn fit_memory(
    compilation: &mut Compilation,
    manager: &Manager,
    flags: &config::Memory,
    place: Place,
    mut after: impl FnMut(&str, &Module),
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
    let fit = budget::fit(compilation, manager, place)?;
    if fit.time > 0 {
        after(Recompute::NAME, &compilation.training);
    }
    Ok(Some(fit.to_string()))
}

/// Makes the programs of a compilation fit. `after` sees the step after each pass.
///
/// # Errors
/// Budgets that no candidate fits: the bytes of the smallest that was found.
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
        // The file has what the host of the machine has no room for.
        tiers.budgets.host = Some(Budget(place.node.host_memory / place.node.devices.max(1)));
    }
    let mut search = Search { compilation, manager: &silent, tiers: &tiers, place, tries: 0 };
    let found = search.run()?;
    let Candidate { recompute, offload, update, .. } = found.candidate.clone();
    compilation.update = update;
    if let Some(recompute) = recompute {
        compilation.recompute(manager, recompute)?;
        after(Recompute::NAME, &compilation.training);
    }
    if let Some(offload) = offload {
        compilation.offload(manager, offload)?;
        after(Offload::NAME, &compilation.training);
    }
    Ok(found)
}

struct Search<'a> {
    compilation: &'a Compilation,
    manager: &'a Manager,
    tiers: &'a Tiers,
    place: Place<'a>,
    tries: usize,
}

impl Search<'_> {
    fn run(&mut self) -> Result<Fit, Failure> {
        let mut smallest: Option<(Candidate, Peaks)> = None;
        let (mut failed, mut least): (Vec<Candidate>, u64) = (vec![], u64::MAX);
        for candidate in self.candidates()? {
            let is_hopeless = self.tiers.budgets.device.is_some_and(|Budget(bytes)| candidate.least > bytes);
            if is_hopeless || failed.iter().any(|failed| candidate.takes_as_much(failed)) {
                least = least.min(candidate.least);
                continue;
            }
            let (mut candidate, peaks) = self.settled(candidate)?;
            if peaks.fit(&self.tiers.budgets) {
                let (module, repeated) = self.repeated(candidate.recompute.as_ref())?;
                let step = candidate.offload.as_ref().map(|offload| offloaded(&module, offload));
                candidate.picoseconds = repeated + step.transpose()?.map_or(0, |step| self.copies(&step));
                return Ok(Fit { candidate, peaks, tries: self.tries });
            }
            if smallest.as_ref().is_none_or(|(_, known)| peaks.device < known.device) {
                smallest = Some((candidate.clone(), peaks));
            }
            failed.push(candidate);
        }
        Err(self.too_small(smallest, least).into())
    }

    /// All candidates, those that take the least time first.
    fn candidates(&self) -> Result<Vec<Candidate>, Failure> {
        let device = &self.place.node.device;
        let given = self.compilation.pipeline.passes.iter().any(|pass| pass.name() == "recompute");
        let prices = [Recompute::SELECTIVE.on(device), Recompute::FULL.on(device)];
        let prices = prices.into_iter().map(Some).filter(|_| self.tiers.budgets.device.is_some() && !given);
        let mut all = vec![];
        for recompute in [None].into_iter().chain(prices) {
            let (module, repeated) = self.repeated(recompute.as_ref())?;
            for classes in self.class_sets() {
                let offload = Offload { classes, ..self.tiers.offload.clone() };
                let step = offloaded(&module, &offload)?;
                let picoseconds = repeated.saturating_add(self.copies(&step));
                let offload = (classes != Classes::NONE).then_some(offload);
                for update in self.update_times() {
                    let least = least_of_device(&step, update);
                    let (recompute, offload) = (recompute.clone(), offload.clone());
                    all.push(Candidate { recompute, offload, update, picoseconds, least });
                }
            }
        }
        all.sort_by_key(|candidate| (candidate.update == UpdateTime::Early, candidate.picoseconds));
        Ok(all)
    }

    /// The sets of classes that may leave the device.
    fn class_sets(&self) -> Vec<Classes> {
        let mut sets = vec![self.tiers.offload.classes];
        if self.tiers.is_open {
            // Embeddings leave when they are asked to: few models have large ones apart from their heads.
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

    /// The times at which updates may run: early ones only if nothing waits for all gradients.
    fn update_times(&self) -> Vec<UpdateTime> {
        let given = self.compilation.update;
        let may_be_early =
            given == UpdateTime::Late && self.place.may_update_early && self.place.microbatches == 1;
        [given].into_iter().chain(may_be_early.then_some(UpdateTime::Early)).collect()
    }

    /// The step with its repeated nodes, and the predicted picoseconds of these nodes.
    fn repeated(&self, recompute: Option<&Recompute>) -> Result<(Module, u64), Failure> {
        let mut module = self.compilation.training.clone();
        let Some(options) = recompute else { return Ok((module, 0)) };
        let decision = Choices::of(&module, &options.rates()).decide(options);
        passes::recompute::apply(&mut module, &decision)?;
        Ok((module, decision.picoseconds().saturating_mul(self.place.microbatches)))
    }

    /// Predicted picoseconds of the copies of a step.
    fn copies(&self, module: &Module) -> u64 {
        let [host, disk] = seconds_of_copies(module, self.place.microbatches, self.place.node);
        ((host + disk) * 1e12) as u64
    }

    /// A candidate with as many states on the device as fit, and then as many on the host.
    fn settled(&mut self, candidate: Candidate) -> Result<(Candidate, Peaks), Failure> {
        let peaks = self.lower(&candidate)?;
        let (candidate, peaks) = self.keep(candidate, peaks)?;
        self.within_host(candidate, peaks)
    }

    /// Keeps as many states on the device as fit.
    fn keep(&mut self, candidate: Candidate, peaks: Peaks) -> Result<(Candidate, Peaks), Failure> {
        let (Some(Budget(budget)), Some(offload)) = (self.tiers.budgets.device, &candidate.offload) else {
            return Ok((candidate, peaks));
        };
        let mut keep = budget.saturating_sub(peaks.device);
        for _ in 0..TRIES {
            if keep == 0 || peaks.host_states == 0 {
                break;
            }
            let tried = Candidate { offload: Some(Offload { keep, ..offload.clone() }), ..candidate.clone() };
            let peaks = self.lower(&tried)?;
            if peaks.device <= budget {
                return Ok((tried, peaks));
            }
            keep = keep.saturating_sub((peaks.device - budget).max(keep / 8));
        }
        Ok((candidate, peaks))
    }

    /// Moves as many states from the host into the file as its budget asks for.
    fn within_host(
        &mut self,
        mut candidate: Candidate,
        mut peaks: Peaks,
    ) -> Result<(Candidate, Peaks), Failure> {
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
            peaks = self.lower(&candidate)?;
        }
        Ok((candidate, peaks))
    }

    /// The bytes of a candidate's programs.
    fn lower(&mut self, candidate: &Candidate) -> Result<Peaks, Failure> {
        self.tries += 1;
        let mut compilation = self.compilation.clone();
        compilation.update = candidate.update;
        if let Some(recompute) = &candidate.recompute {
            compilation.recompute(self.manager, recompute.clone())?;
        }
        if let Some(offload) = &candidate.offload {
            compilation.offload(self.manager, offload.clone())?;
        }
        let Place { microbatches, target, multiprocessors, .. } = self.place;
        let lowering = &mut compilation.lowering(self.manager);
        let programs = Programs::lower_by(lowering, &compilation, microbatches, target, multiprocessors)?;
        Ok(Peaks::of(&programs))
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
    /// Whether this candidate takes at least as much memory of the device as another, which repeats the same and leaves the device with
    /// more.
    fn takes_as_much(&self, other: &Self) -> bool {
        let classes = |own: &Self| own.offload.as_ref().map_or(Classes::NONE, |offload| offload.classes);
        let leaves_less = classes(self).with(classes(other)) == classes(other);
        leaves_less && (&self.recompute, self.update) == (&other.recompute, other.update)
    }
}

/// The step with values beside the device.
fn offloaded(module: &Module, options: &Offload) -> Result<Module, Failure> {
    let mut module = module.clone();
    let decision = passes::offload::decide(&module, options);
    passes::offload::apply(&mut module, options, &decision)?;
    Ok(module)
}

/// Predicted seconds of a step's copies over the link to the host, and to and from the file.
pub fn seconds_of_copies(module: &Module, microbatches: u64, node: &Node) -> [f64; 2] {
    let disk_rate = node.disk_rate(module.mesh.devices());
    let mut seconds = [0.0; 2];
    for (_, copy) in module.nodes().filter(|(_, copy)| matches!(copy.op, Op::Copy(_))) {
        let bytes = module.ty(copy.results[0]).local_bytes(&module.mesh).unwrap_or(0);
        let is_in_file = [copy.result_tier(), module.tier_of(copy.operands[0])].contains(&Tier::Disk);
        let runs = if copy.phase.is_microbatch() { microbatches } else { 1 };
        let (link, rate) = match is_in_file {
            true => (&node.disk, disk_rate),
            false => (&node.host_link, node.host_link.rate()),
        };
        seconds[usize::from(is_in_file)] += (link.latency + bytes as f64 / rate) * runs as f64;
    }
    seconds
}

/// Bytes of the device that no plan of a step goes without.
fn least_of_device(module: &Module, update: UpdateTime) -> u64 {
    let bytes = |value| module.ty(value).local_bytes(&module.mesh).unwrap_or(u64::MAX);
    let states = module.states.values().filter(|state| state.tier == Tier::Device).map(|state| state.input);
    let lasting = module.nodes().filter(|(_, node)| match &node.op {
        Op::Copy(copy) => node.phase == Phase::Prepare && copy.to == Tier::Device,
        Op::Accumulate(_) => update == UpdateTime::Late && node.place == Tier::Device,
        _ => false,
    });
    states.chain(lasting.map(|(_, node)| node.results[0])).map(bytes).fold(0, u64::saturating_add)
}
