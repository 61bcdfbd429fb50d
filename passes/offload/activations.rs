//! Activations on the host: each leaves the device after its last reader in forward, and is copied back before its first reader in
//! backward.

use super::{Offload, copy_to};
use crate::rewriting::kept::{self, Form};
use ir::{Builder, Module, Tier, TypeError, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the activations that leave: results of forward of at least `least` bytes that backward reads, behind their views. In each
/// stage the last ones stay, up to `stay` bytes: backward reads them first, so their copies would have the least time.
pub(super) fn choose(module: &Module, options: &Offload) -> Vec<ValueId> {
    let bytes = |value: ValueId| kept::local_bytes(module, value);
    let large = kept::activations(module).into_iter().filter(|&value| bytes(value) >= options.least);
    let mut leaving: BTreeSet<ValueId> = large.collect();
    let mut rooms: BTreeMap<u32, u64> = BTreeMap::new();
    for &id in module.order().iter().rev() {
        for value in module.node(id).results.iter().filter(|_| options.stay > 0) {
            let room = rooms.entry(module.stage_of(*value)).or_insert(options.stay);
            if leaving.contains(value) && bytes(*value) <= *room {
                *room -= bytes(*value);
                leaving.remove(value);
            }
        }
    }
    leaving.into_iter().collect()
}

/// Adds the copies of these activations. Backward reads the copy on the device, or the same views of it.
pub(super) fn offload(b: &mut Builder, activations: &[ValueId]) -> Result<(), TypeError> {
    kept::keep(b, activations, &OnHost)?;
    Ok(())
}

/// The form of an activation that rests on the host.
struct OnHost;

impl Form for OnHost {
    fn put(&self, b: &mut Builder, value: ValueId) -> Result<ValueId, TypeError> {
        // Rows of an embedding are on the host already.
        if b.module().tier_of(value) == Tier::Host { Ok(value) } else { copy_to(b, value, Tier::Host) }
    }

    fn take(&self, b: &mut Builder, kept: ValueId, _: ValueId) -> Result<ValueId, TypeError> {
        copy_to(b, kept, Tier::Device)
    }
}
