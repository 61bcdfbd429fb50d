//! Stage: cuts the forward graph into the stages of a pipeline, and gives the pipeline the timetable of a schedule.
//!
//! Every node and every state gets a stage. Later passes give backward nodes the stage of their forward nodes, and update nodes
//! that of their state (`settle`). Invariants: the program computes the same numbers; a value of another stage is read through a
//! transfer; a state has one owning stage, unless every stage computes its new value itself. A weight that several stages read belongs
//! to the first of them, and the others get it once a step.

mod choose;
mod cut;
mod memory;
mod prices;
pub mod schedule;
#[cfg(test)]
mod tests;
mod work;

use crate::arguments::pattern::matches;
use crate::arguments::{Arguments, Options, value_of};
use crate::pass::{PassContext, Transform};
use crate::recompute::DeviceRates;
use crate::reports::StageReport;
use crate::rewriting::settle::settle;
use ir::machine::{Device, Link};
use ir::{
    Builder, Changed, DType, Definition, Diagnostic, EVERY_STAGE, Level, Module, Movement, NodeId,
    StageTable, State, StateId, ValueId,
};
pub use memory::{AS_ESTIMATED, StageMemory};
use schedule::{Plan, ScheduleChoice};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use work::Forward;

/// The pass `stage`. `stage(ranks=4, schedule=1f1b, microbatches=8)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// The number of pipeline ranks.
    pub ranks: u32,
    /// The schedule. `None`: the synchronous schedule that is predicted to be the fastest within memory.
    pub schedule: Option<ScheduleChoice>,
    /// The number of microbatches of a step.
    pub microbatches: u32,
    /// Patterns of origins. A stage begins at the first node that matches each. Without patterns the stages are balanced.
    pub cuts: Vec<String>,
    /// The first nodes of all stages but the first, as indices among the nodes that are divided: a cut that was made before.
    pub at: Vec<usize>,
    /// The device whose times balance the stages; its link is the link between stages. `None`: [`Device::assumed`].
    pub device: Option<DeviceRates>,
    /// The type of `precision`, for the comparison of schedules and the estimate of memory.
    pub compute: DType,
    /// The price of `recompute`, for the same. `None`: nothing is recomputed.
    pub recompute: Option<u64>,
    /// The memory that the estimate of every pipeline rank should fit into.
    pub memory: Option<StageMemory>,
}

impl Stage {
    /// Makes options for stages on `ranks` pipeline ranks, with one microbatch a step.
    pub fn new(ranks: u32, schedule: Option<ScheduleChoice>) -> Self {
        let (cuts, at, device, recompute, memory) = (vec![], vec![], None, None, None);
        Self { ranks, schedule, microbatches: 1, cuts, at, device, compute: DType::F32, recompute, memory }
    }

    /// Returns the same options, with stages balanced by the times of a device.
    pub fn on(self, device: &Device) -> Self {
        Self { device: Some(DeviceRates::of(device)), ..self }
    }

    /// Returns the same options, with another link between stages.
    pub fn linked_by(self, link: Link) -> Self {
        let device = self.rates().device();
        self.on(&Device { link, ..device })
    }

    fn rates(&self) -> DeviceRates {
        self.device.clone().unwrap_or_else(|| DeviceRates::of(&Device::assumed()))
    }

    /// Returns the same options with the schedule and the cut that [`decide`] finds for a program, and a report of them. Then the pass
    /// makes the same stages of the model with any other batch.
    ///
    /// # Errors
    /// As [`decide`].
    pub fn decided(&self, module: &Module) -> Result<(Self, StageReport), Diagnostic> {
        let Decision { schedule, starts, report, .. } = decide(module, self)?;
        let decided = Self {
            schedule: Some(schedule),
            at: starts.into_iter().skip(1).collect(),
            cuts: vec![],
            ..Self::new(self.ranks, None)
        };
        Ok((Self { microbatches: self.microbatches, ..decided }, report))
    }
}

/// One rank, with a schedule that the pass chooses.
impl Default for Stage {
    fn default() -> Self {
        Self::new(1, None)
    }
}

/// The text of a schedule that the pass chooses.
const AUTO: &str = "auto";

impl Transform for Stage {
    const NAME: &'static str = "stage";
    const NEEDED: bool = false;

    fn options(&mut self, options: &mut Options) {
        options.written("ranks", &mut self.ranks);
        let read = |arguments: &mut Arguments| match arguments.take("schedule").as_deref() {
            Some(AUTO) => Ok(None),
            Some(name) => name.parse().map(Some),
            None => Err("`schedule` is missing".into()),
        };
        options.custom(&mut self.schedule, read, |schedule, arguments| match schedule {
            Some(schedule) => arguments.push("schedule", schedule),
            None => arguments.push("schedule", AUTO),
        });
        options.written("microbatches", &mut self.microbatches);
        options.list("cut", &mut self.cuts);
        options.joined("at", '/', &mut self.at, |text| value_of("at", text));
        options.optional("device", &mut self.device, str::parse);
        options.value("compute", &mut self.compute, DType::F32);
        let mut recompute = self.recompute.unwrap_or(0);
        options.value("recompute", &mut recompute, 0);
        self.recompute = Some(recompute).filter(|&price| price > 0);
        StageMemory::options(&mut self.memory, options);
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<Changed, Diagnostic> {
        let decision = decide(module, self)?;
        apply(module, self, decision)
    }
}

/// The stages of a program.
pub struct Decision {
    plan: Plan,
    schedule: ScheduleChoice,
    /// The stage of each forward node that is divided.
    nodes: BTreeMap<NodeId, u32>,
    /// The index of the first node of each stage.
    starts: Vec<usize>,
    /// Nodes that depend only on weights.
    of_weights: BTreeSet<NodeId>,
    report: StageReport,
}

/// Divides the forward nodes into stages, and chooses the schedule if none is given.
///
/// # Errors
/// The program has stages or a backward phase; it has fewer nodes than stages; the schedule refuses its numbers; a pattern leaves a stage
/// empty.
pub fn decide(module: &Module, options: &Stage) -> Result<Decision, Diagnostic> {
    if module.level != Level::Imported || module.pipeline.is_some() {
        let error = Diagnostic::new("the program has a backward phase or stages already");
        return Err(error.note("run `stage` once, before `autodiff`"));
    }
    let forward = Forward::of(module);
    let (chosen, report) = choose::choose(module, &forward, options)?;
    let mut nodes = BTreeMap::new();
    for (stage, run) in (0..).zip(&chosen.runs) {
        forward.divided[run.clone()].iter().for_each(|&id| {
            nodes.insert(id, stage);
        });
    }
    let starts = chosen.runs.iter().map(|run| run.start).collect();
    let (plan, schedule) = (chosen.plan, chosen.schedule);
    Ok(Decision { plan, schedule, nodes, starts, of_weights: forward.of_weights, report })
}

/// Cuts before the first node that matches each pattern, by its name in the file or by the name of a parameter that it reads.
fn by_hand(
    module: &Module,
    divided: &[NodeId],
    cuts: &[String],
    stages: usize,
) -> Result<Vec<Range<usize>>, Diagnostic> {
    if cuts.len() + 1 != stages {
        let (count, needed) = (cuts.len(), stages - 1);
        let error =
            Diagnostic::new(format!("{count} cuts make {} stages, and there are {stages}", count + 1));
        return Err(error.note(format!("{stages} stages need {needed} patterns of --cut")));
    }
    let mut starts = vec![0];
    for cut in cuts {
        let found = divided.iter().position(|&id| fits(module, id, cut));
        let at = found.ok_or_else(|| {
            let error = Diagnostic::new(format!("no node of the model fits the pattern `{cut}` of --cut"));
            error.note(
                "a pattern is compared with the names of nodes and of the parameters that they read; `trainyard inspect` \
                 lists both",
            )
        })?;
        starts.push(at);
    }
    if let Some(pair) = starts.windows(2).position(|pair| pair[0] >= pair[1]) {
        let error = Diagnostic::new(format!("the cut `{}` leaves a stage empty", cuts[pair]));
        return Err(
            error.note("the nodes of each cut must come after those of the cut before, in the model's order")
        );
    }
    Ok(runs_from(&starts, divided.len()))
}

/// Returns the runs of nodes that begin at these indices.
fn runs_from(starts: &[usize], nodes: usize) -> Vec<Range<usize>> {
    let ends = starts.iter().skip(1).copied().chain([nodes]);
    starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

/// Whether a pattern matches the name of a node in its file, as its origin quotes it, the whole origin, or the name of a parameter that
/// the node reads.
fn fits(module: &Module, id: NodeId, pattern: &str) -> bool {
    let node = module.node(id);
    let quoted = node.origin.split('"').skip(1).step_by(2);
    let parameters = node.operands.iter().filter_map(|&value| {
        match module.value(module.viewed(value, Movement::is_layout)).definition {
            Definition::State(state) => Some(module.states[state].name.as_str()),
            _ => None,
        }
    });
    quoted.chain([&*node.origin]).chain(parameters).any(|name| matches(pattern, name))
}

/// Writes the stages into the program, and adds the transfers.
///
/// # Errors
/// A node that cannot be built: a bug.
pub fn apply(module: &mut Module, options: &Stage, decision: Decision) -> Result<Changed, Diagnostic> {
    let Decision { plan, schedule, nodes, of_weights, .. } = decision;
    let last = plan.placement.len() as u32 - 1;
    module.pipeline = Some(StageTable {
        schedule: schedule.to_string(),
        microbatches: options.microbatches,
        placement: plan.placement,
        delays: plan.delays,
        timetable: plan.timetable,
    });
    let mut b = Builder::new(module, Stage::NAME);
    for (id, node) in b.module().nodes().map(|(id, node)| (id, node.results.len())).collect::<Vec<_>>() {
        debug_assert!(node > 0);
        b.set_stage(id, nodes.get(&id).copied().unwrap_or(EVERY_STAGE));
    }
    share_weights(&mut b, &of_weights, last)?;
    renew_together(&mut b);
    b.finish();
    own_states(module);
    settle(module, Stage::NAME)?;
    Ok(Changed::Yes)
}

/// Gives each stage that reads a node of weights its own copy of the node. A walk from the last node to the first finds the stages that
/// read each node, directly or through other such nodes. The node itself goes to the first of these stages, and the others get copies.
fn share_weights(b: &mut Builder, of_weights: &BTreeSet<NodeId>, last: u32) -> Result<(), Diagnostic> {
    let uses = b.module().uses();
    let roots: BTreeSet<ValueId> = b.module().roots().collect();
    let mut wanted: BTreeMap<NodeId, BTreeSet<u32>> = BTreeMap::new();
    for &id in of_weights.iter().rev() {
        let mut stages = BTreeSet::new();
        for &value in &b.module().node(id).results {
            for &reader in &uses[value] {
                match wanted.get(&reader) {
                    Some(others) => stages.extend(others.iter().copied()),
                    None => stages.extend(
                        [b.module().node(reader).stage].iter().filter(|&&stage| stage != EVERY_STAGE),
                    ),
                }
            }
            // A result that is reported, or that has no reader, belongs to the last stage.
            if roots.contains(&value) || stages.is_empty() {
                stages.insert(last);
            }
        }
        wanted.insert(id, stages);
    }
    // The copies of each result on all stages that want it, except the first one.
    let mut copies: BTreeMap<(ValueId, u32), ValueId> = BTreeMap::new();
    for (&id, stages) in &wanted {
        let node = b.module().node(id).clone();
        for (index, &stage) in stages.iter().enumerate() {
            let on = |value: ValueId| copies.get(&(value, stage)).copied().unwrap_or(value);
            if index == 0 {
                b.set_stage(id, stage);
                let operands: Vec<ValueId> = node.operands.iter().map(|&value| on(value)).collect();
                (0..).zip(operands).for_each(|(operand, value)| b.set_operand(id, operand, value));
                continue;
            }
            let operands: Vec<ValueId> = node.operands.iter().map(|&value| on(value)).collect();
            let types: Vec<_> = node.results.iter().map(|&value| b.ty(value).clone()).collect();
            b.at(ir::At::After(id)).stage(stage);
            let results = b.push_typed(node.op.clone(), &operands, &types)?;
            for (&old, new) in node.results.iter().zip(results) {
                copies.insert((old, stage), new);
            }
        }
    }
    let readers: Vec<NodeId> =
        b.module().order().iter().copied().filter(|id| !of_weights.contains(id)).collect();
    for id in readers {
        let node = b.module().node(id).clone();
        for (index, &value) in node.operands.iter().enumerate() {
            if let Some(&copy) = copies.get(&(value, node.stage)) {
                b.set_operand(id, index, copy);
            }
        }
    }
    Ok(())
}

/// Moves nodes that read a state which forward updates to the stage that updates it, if no earlier stage reads their results. Otherwise
/// the state would be sent back from this stage to an earlier one, between two microbatches.
fn renew_together(b: &mut Builder) {
    let uses = b.module().uses();
    let renewed = |state: &State| Some((state.input, b.module().stage_of(state.output?)));
    let renewed: Vec<(ValueId, u32)> = b.module().states.values().filter_map(renewed).collect();
    for (input, stage) in renewed.into_iter().filter(|(_, stage)| *stage != EVERY_STAGE) {
        for &reader in &uses[input] {
            let module = b.module();
            let is_late = |&later: &NodeId| module.node(later).stage >= stage;
            let is_read_late = |value: &ValueId| uses[*value].iter().all(is_late);
            let node = module.node(reader);
            if node.stage < stage && node.results.iter().all(is_read_late) {
                b.set_stage(reader, stage);
            }
        }
    }
}

/// Gives each state to the stage that makes its new value, or else to the first stage that reads it.
fn own_states(module: &mut Module) {
    let mut first: BTreeMap<StateId, u32> = BTreeMap::new();
    for (_, node) in module.nodes().filter(|(_, node)| node.stage != EVERY_STAGE) {
        for &value in &node.operands {
            if let Definition::State(id) = module.value(value).definition {
                let stage = first.entry(id).or_insert(node.stage);
                *stage = node.stage.min(*stage);
            }
        }
    }
    let ids: Vec<StateId> = module.states.keys().collect();
    for id in ids {
        let made = module.states[id].output.map(|value| module.stage_of(value));
        let made = made.filter(|&stage| stage != EVERY_STAGE);
        module.states[id].stage = made.or(first.get(&id).copied()).unwrap_or(0);
    }
}
