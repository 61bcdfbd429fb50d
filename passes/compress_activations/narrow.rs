//! Activations in a narrower type while they wait for backward.

use crate::rewriting::kept::{Form, behind_views, local_bytes};
use ir::{Builder, DType, Definition, Module, Op, TypeError, ValueId};
use std::collections::BTreeSet;

/// The f32 activations of at least so many bytes that are rounded. Means, deviations of norms and logarithms of sums are not: they are
/// few, and gradients depend on their last bits. Neither are activations that backward compares with each other.
pub(super) fn choose(module: &Module, activations: &[ValueId], least: u64) -> Vec<ValueId> {
    let compared = compared(module);
    let is_rounded = |&value: &ValueId| {
        let Definition::Node(maker, 0) = module.value(value).definition else { return false };
        let is_statistic = matches!(module.node(maker).op, Op::BatchStatistics(_) | Op::InTraining(_));
        let is_float = module.ty(value).dtype == DType::F32 && local_bytes(module, value) >= least;
        is_float && !is_statistic && !compared.contains(&value)
    };
    activations.iter().copied().filter(|value| is_rounded(value)).collect()
}

/// The activations whose elements backward compares with those of activations: the largest of a window is sought again, or of two
/// tensors. Rounding would make ties, and a gradient would go to another element.
fn compared(module: &Module) -> BTreeSet<ValueId> {
    let operands = module.nodes().filter(|(_, node)| node.phase.is_gradient()).flat_map(|(_, node)| {
        let count = match node.op {
            Op::MaxPoolGrad(_) => 1,
            Op::Compare(_) => node.operands.len(),
            _ => 0,
        };
        node.operands[..count].iter().filter_map(|&operand| behind_views(module, operand))
    });
    operands.collect()
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
