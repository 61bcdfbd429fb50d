//! Chooses the states that leave the device, and their tiers.

use super::embeddings::Embeddings;
use super::{Classes, Offload};
use ir::{Definition, Module, Op, Phase, Role, State, StateId, Tier, ValueId};
use std::collections::BTreeSet;

/// Chooses the states of the classes that leave. In the order of the state table, the first weights stay with the states of their
/// optimizer, up to `keep` bytes; the next states rest on the host, up to `host` bytes, and all others rest in a file.
pub(super) fn choose(module: &Module, options: &Offload, embeddings: &Embeddings) -> Vec<(StateId, Tier)> {
    let narrowed = Narrowed::of(module);
    let bytes = |id: StateId| module.states[id].ty.local_bytes(&module.mesh).unwrap_or(u64::MAX);
    let leaves = |&id: &StateId| {
        let is_asked =
            embeddings.states.contains(&id) || leaves(&module.states[id], options.classes, &narrowed);
        is_asked && bytes(id) >= options.least
    };
    let (mut keep, mut host) = (options.keep, options.host.unwrap_or(u64::MAX));
    let take = |room: &mut u64, bytes: u64| {
        let rest = room.checked_sub(bytes);
        *room = rest.unwrap_or(*room);
        rest.is_some()
    };
    let mut chosen = vec![];
    for group in updated_together(module) {
        // Embeddings rest on the host however little room there is, since their nodes compute there.
        let group = group.into_iter().filter(leaves);
        let (looked_up, others): (Vec<_>, Vec<_>) = group.partition(|id| embeddings.states.contains(id));
        chosen.extend(looked_up.into_iter().map(|id| (id, Tier::Host)));
        let size = others.iter().map(|&id| bytes(id)).fold(0, u64::saturating_add);
        if !take(&mut keep, size) {
            let mut tier = |id| if take(&mut host, bytes(id)) { Tier::Host } else { Tier::Disk };
            chosen.extend(others.into_iter().map(|id| (id, tier(id))));
        }
    }
    chosen
}

/// Returns the states in groups: a weight, and the states that its update reads. If one state of a group is on the host, the update
/// computes there, and needs the gradient there too.
fn updated_together(module: &Module) -> Vec<Vec<StateId>> {
    let weights = module.states.iter().filter(|(_, state)| state.role == Role::Parameter);
    let mut groups: Vec<Vec<StateId>> = weights.map(|(id, _)| vec![id]).collect();
    let mut known: BTreeSet<StateId> = groups.iter().flatten().copied().collect();
    for group in &mut groups {
        let mut read = read_by_update(module, group[0]);
        read.retain(|&id| known.insert(id));
        group.extend(read);
    }
    groups.extend(module.states.keys().filter(|id| !known.contains(id)).map(|id| vec![id]));
    groups
}

/// Returns the states with tensors that the new value of a state depends on within the update.
fn read_by_update(module: &Module, state: StateId) -> Vec<StateId> {
    let mut pending: Vec<ValueId> = module.states[state].output.into_iter().collect();
    let mut seen: BTreeSet<ValueId> = BTreeSet::new();
    let mut found = vec![];
    while let Some(value) = pending.pop() {
        // Scalars, such as the norm of all gradients, connect all updates.
        if module.ty(value).ndim() == 0 || !seen.insert(value) {
            continue;
        }
        match module.value(value).definition {
            Definition::State(id) => found.push(id),
            Definition::Node(id, result) if module.node(id).phase == Phase::Update => {
                let node = module.node(id);
                // Each result of a collective depends only on the operand with the same index.
                match node.op {
                    Op::Collective(_) => pending.push(node.operands[result as usize]),
                    _ => pending.extend(&node.operands),
                }
            }
            Definition::Node(..) | Definition::Input(_) => {}
        }
    }
    found.sort_unstable();
    found
}

/// Whether a state belongs to a class that leaves.
fn leaves(state: &State, classes: Classes, narrowed: &Narrowed) -> bool {
    match state.role {
        Role::Optimizer => classes.optimizer,
        Role::Parameter => classes.parameters || classes.optimizer && narrowed.has(state.input),
        // Frozen weights leave; statistics of batch norm change in every microbatch, and stay.
        Role::Buffer => classes.parameters && state.output.is_none(),
        Role::Scaler | Role::Rng | Role::Counter | Role::Version | Role::Compression => false,
    }
}

/// The weights that a step reads, before its update, only through casts to a narrower type.
struct Narrowed(BTreeSet<ValueId>);

impl Narrowed {
    fn of(module: &Module) -> Self {
        let uses = module.uses();
        let is_narrowed = |input: ValueId| {
            let mut before_update = uses[input].iter().map(|&reader| module.node(reader));
            let mut casts = 0;
            let all = before_update.all(|reader| match &reader.op {
                _ if reader.phase == Phase::Update => true,
                Op::Cast(cast) => {
                    casts += 1;
                    cast.to.is_float() && cast.to.bytes() < module.ty(input).dtype.bytes()
                }
                _ => false,
            });
            all && casts > 0
        };
        Self(module.states.values().map(|state| state.input).filter(|&input| is_narrowed(input)).collect())
    }

    fn has(&self, input: ValueId) -> bool {
        self.0.contains(&input)
    }
}
