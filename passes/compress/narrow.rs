//! Activations in a narrower type while they wait for backward.

use crate::rewriting::kept::{Form, local_bytes};
use ir::{Builder, DType, Definition, Module, TypeError, ValueId};

/// The f32 activations of at least so many bytes that are rounded. Only first results are: numbers beside them, such as deviations of
/// norms and logarithms of sums, are few, and gradients depend on their last bits.
pub(super) fn choose(module: &Module, activations: &[ValueId], least: u64) -> Vec<ValueId> {
    let is_rounded = |&value: &ValueId| {
        let is_first = matches!(module.value(value).definition, Definition::Node(_, 0));
        is_first && module.ty(value).dtype == DType::F32 && local_bytes(module, value) >= least
    };
    activations.iter().copied().filter(|value| is_rounded(value)).collect()
}

/// A float in another type.
pub(super) struct Narrow {
    pub(super) to: DType,
}

impl Form for Narrow {
    fn put(&self, b: &mut Builder, value: ValueId) -> Result<ValueId, TypeError> {
        cast(b, value, self.to)
    }

    fn take(&self, b: &mut Builder, kept: ValueId, value: ValueId) -> Result<ValueId, TypeError> {
        let dtype = b.ty(value).dtype;
        cast(b, kept, dtype)
    }
}

fn cast(b: &mut Builder, value: ValueId, to: DType) -> Result<ValueId, TypeError> {
    let sharding = b.ty(value).sharding.clone();
    let cast = b.cast(value, to)?;
    b.shard(cast, sharding);
    Ok(cast)
}
