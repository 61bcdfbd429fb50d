//! The states that leave the device, and the tier where each rests.

use super::embeddings::Embeddings;
use super::{Classes, Offload};
use ir::{Module, Op, Phase, Role, State, StateId, Tier, ValueId};
use std::collections::BTreeSet;

/// Chooses the states of the classes that leave. In the order of the state table, the first ones stay up to `keep` bytes, the next
/// ones rest on the host up to `host` bytes, and the others rest in a file.
pub(super) fn choose(module: &Module, options: &Offload, embeddings: &Embeddings) -> Vec<(StateId, Tier)> {
    let narrowed = Narrowed::of(module);
    let leaves = |(id, state): &(StateId, &State)| {
        embeddings.states.contains(id) || leaves(state, options.classes, &narrowed)
    };
    let (mut keep, mut host) = (options.keep, options.host.unwrap_or(u64::MAX));
    let mut chosen = vec![];
    for (id, state) in module.states.iter().filter(leaves) {
        let bytes = state.ty.local_bytes(&module.mesh).unwrap_or(u64::MAX);
        if bytes < options.least {
            continue;
        }
        let take = |room: &mut u64| match room.checked_sub(bytes) {
            Some(rest) => {
                *room = rest;
                true
            }
            None => false,
        };
        // The nodes of an embedding are on the host, whatever room there is.
        if embeddings.states.contains(&id) {
            chosen.push((id, Tier::Host));
        } else if !take(&mut keep) {
            chosen.push((id, if take(&mut host) { Tier::Host } else { Tier::Disk }));
        }
    }
    chosen
}

/// Whether a state is of a class that leaves.
fn leaves(state: &State, classes: Classes, narrowed: &Narrowed) -> bool {
    match state.role {
        Role::Optimizer => classes.optimizer,
        Role::Parameter => classes.parameters || classes.optimizer && narrowed.has(state.input),
        // Frozen weights; statistics of batch norm change in every microbatch.
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
