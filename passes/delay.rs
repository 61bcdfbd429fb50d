//! Delay: forward and backward of an asynchronous pipeline read the weights of earlier updates.
//!
//! A trained state with a delay of d gets d earlier versions as states, `NAME.version.1` to `NAME.version.d`. All phases but `update`
//! read the oldest version. The update reads and writes the newest one, and copies each version to the next older one. The delay of a
//! state is that of its pipeline stage; a weight that several stages read has the delay of its owner.
//!
//! In a pipeline, forward may run ahead of its step, while the values of `prepare` are still those of the step before. So nodes of
//! `prepare` that depend on states become nodes of forward.
//!
//! Invariants: the update's own nodes stay as they are; with no delay, nothing changes.

use crate::arguments::{Arguments, Options};
use crate::pass::{PassContext, Transform};
use ir::ops::transfer::Transfer;
use ir::{
    At, Builder, Changed, Definition, Diagnostic, Initializer, Level, Module, NodeId, Phase, Role, State,
    StateId, TypeError, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// The pass. `delay`, or for a program without stages `delay(state=fc.weight:2)`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// The delays of trained states, by name, in place of those of the stages. Names of no state are ignored.
    pub states: Vec<(String, u32)>,
}

impl Transform for Delay {
    const NAME: &'static str = "delay";
    const NEEDED: bool = true;

    fn options(&mut self, options: &mut Options) {
        let read = |arguments: &mut Arguments| {
            let state = |text: &String| {
                let (name, delay) = text.rsplit_once(':')?;
                Some((name.to_owned(), delay.parse().ok()?))
            };
            let delayed = |text: &String| {
                state(text)
                    .ok_or_else(|| format!("`{text}` is not of the form STATE:UPDATES, such as fc.weight:2"))
            };
            arguments.take_all("state").iter().map(delayed).collect()
        };
        options.custom(&mut self.states, read, |states, arguments| {
            let text = |(name, delay): &(String, u32)| format!("{name}:{delay}");
            states.iter().for_each(|state| arguments.push("state", text(state)));
        });
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<Changed, Diagnostic> {
        let decision = decide(module, self)?;
        Ok(apply(module, &decision)?)
    }
}

/// Returns the name of the version of a state from `age` updates ago.
pub fn version_name(state: &str, age: u32) -> String {
    format!("{state}.version.{age}")
}

/// The delays of trained states, without those of 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    delays: BTreeMap<StateId, u32>,
}

/// Finds the delays of a program with its update.
///
/// # Errors
/// The program has earlier versions of states already, or no update.
pub fn decide(module: &Module, options: &Delay) -> Result<Decision, Diagnostic> {
    let delay = |state: &State| match (&options.states[..], &module.pipeline) {
        ([], Some(pipeline)) => pipeline.delay_of(state.stage),
        (given, _) => given.iter().find(|(name, _)| *name == state.name).map_or(0, |(_, delay)| *delay),
    };
    let trained =
        module.states.iter().filter(|(_, state)| state.role == Role::Parameter && state.output.is_some());
    let delays: BTreeMap<StateId, u32> =
        trained.map(|(id, state)| (id, delay(state))).filter(|(_, delay)| *delay > 0).collect();
    let is_delayed = module.states.values().any(|state| state.role == Role::Version);
    if is_delayed || (module.level == Level::Imported && !delays.is_empty()) {
        let error = Diagnostic::new("the program has no update, or its states have earlier versions already");
        return Err(error.note("run `delay` once, after `optimizer`"));
    }
    Ok(Decision { delays })
}

/// Adds the versions, and makes forward and backward read the oldest.
///
/// # Errors
/// A node that cannot be built: a bug.
pub fn apply(module: &mut Module, decision: &Decision) -> Result<Changed, TypeError> {
    if decision.delays.is_empty() {
        return Ok(Changed::No);
    }
    let mut b = Builder::new(module, Delay::NAME);
    let mut oldest = BTreeMap::new();
    for (&id, &delay) in &decision.delays {
        let newest = b.module().states[id].input;
        oldest.insert(newest, versions(&mut b, id, delay)?);
    }
    for id in b.module().order().to_vec() {
        let node = b.module().node(id).clone();
        if node.phase == Phase::Update {
            continue;
        }
        for (index, operand) in node.operands.iter().enumerate() {
            if let Some(&version) = oldest.get(operand) {
                b.set_operand(id, index, version);
            }
        }
    }
    if b.module().pipeline.is_some() {
        of_states(b.module()).into_iter().for_each(|id| b.move_to_start(id, Phase::Forward));
    }
    Ok(b.finish())
}

/// Adds the versions of a state, and returns the oldest. The copies from each version to the next older one stand at the start of the
/// update, the oldest first. So each version is read before it is overwritten.
fn versions(b: &mut Builder, id: StateId, delay: u32) -> Result<ValueId, TypeError> {
    let state = b.module().states[id].clone();
    let mut all = vec![(id, state.input)];
    for age in 1..=delay {
        let name = version_name(&state.name, age);
        let version = b.tables().add_state(&name, state.ty.clone(), Role::Version, Initializer::CopyOf(id));
        let added = &mut b.tables().states[version];
        (added.view, added.tier, added.stage) = (state.view.clone(), state.tier, state.stage);
        all.push((version, b.module().states[version].input));
    }
    b.at(At::Start(Phase::Update)).stage(state.stage).origin(state.name.as_str());
    for pair in all.windows(2).rev() {
        let [(_, newer), (version, _)] = *pair else { continue };
        let copy = b.one_typed(Transfer, &[newer], state.ty.clone())?;
        b.shard(copy, state.ty.sharding.clone());
        b.tables().states[version].output = Some(copy);
    }
    Ok(all.last().map_or(state.input, |(_, oldest)| *oldest))
}

/// Returns the nodes of `prepare` that depend on a state that steps change.
fn of_states(module: &Module) -> Vec<NodeId> {
    let changes: BTreeSet<ValueId> =
        module.states.values().filter(|state| state.output.is_some()).map(|state| state.input).collect();
    let mut found = BTreeSet::new();
    let mut order = vec![];
    for (id, node) in module.nodes().filter(|(_, node)| node.phase == Phase::Prepare) {
        let depends = |&value: &ValueId| match module.value(value).definition {
            Definition::Node(maker, _) => found.contains(&maker),
            _ => changes.contains(&value),
        };
        if node.operands.iter().any(depends) {
            found.insert(id);
            order.push(id);
        }
    }
    order
}
