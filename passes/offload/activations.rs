//! Activations on the host: each leaves the device after its last reader in forward, and comes back before its first reader in
//! backward.

use super::copy_to;
use crate::rewriting::kept::{self, Form};
use ir::{Builder, Module, Tier, TypeError, ValueId};

/// The results of forward of at least so many bytes that backward reads, behind their views.
pub(super) fn choose(module: &Module, least: u64) -> Vec<ValueId> {
    let leaves = |value: &ValueId| kept::local_bytes(module, *value) >= least;
    kept::activations(module).into_iter().filter(leaves).collect()
}

/// Adds the copies of these activations. Backward reads what came back, or the same views of it.
pub(super) fn offload(b: &mut Builder, activations: &[ValueId]) -> Result<(), TypeError> {
    kept::keep(b, activations, &OnHost)?;
    Ok(())
}

/// The activation on the host.
struct OnHost;

impl Form for OnHost {
    fn put(&self, b: &mut Builder, value: ValueId) -> Result<ValueId, TypeError> {
        // Rows of an embedding are there already.
        if b.module().tier_of(value) == Tier::Host { Ok(value) } else { copy_to(b, value, Tier::Host) }
    }

    fn take(&self, b: &mut Builder, kept: ValueId, _: ValueId) -> Result<ValueId, TypeError> {
        copy_to(b, kept, Tier::Device)
    }
}
