//! Rounds activations to a narrower type while they wait for backward.

use crate::rewriting::kept::{Form, behind_views, local_bytes};
use ir::ops::elementwise::Compare;
use ir::{Builder, DType, Definition, Module, Movement, Op, TypeError, ValueId};
use std::collections::BTreeSet;

/// Returns the f32 activations of at least `least` bytes that are rounded. Means, deviations of norms and logarithms of sums are not
/// rounded: they are few, and gradients depend on their last bits. Nor are activations that backward compares with each other.
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

/// Returns the activations that backward compares with other activations, to find the largest element of a window, or the larger of two
/// tensors, again. Rounding would make ties, and a gradient would go to another element. A rounded maximum would equal no element.
fn compared(module: &Module) -> BTreeSet<ValueId> {
    let mut compared = BTreeSet::new();
    for (_, node) in module.nodes().filter(|(_, node)| node.phase.is_gradient()) {
        let count = match node.op {
            Op::MaxPoolGrad(_) => 1,
            Op::Compare(_) => node.operands.len(),
            _ => 0,
        };
        let is_exact = matches!(node.op, Op::Compare(Compare::Equal));
        node.operands[..count].iter().for_each(|&operand| sources(module, operand, is_exact, &mut compared));
    }
    compared
}

/// Adds the activations whose elements backward moves into a value. With `repeats`, also adds the activations from which repeated nodes
/// in backward compute the value: with rounded operands they would compute other numbers than forward did.
fn sources(module: &Module, value: ValueId, repeats: bool, found: &mut BTreeSet<ValueId>) {
    let (mut pending, mut seen) = (vec![value], BTreeSet::new());
    while let Some(value) = pending.pop() {
        found.extend(behind_views(module, value));
        let Some(node) = module.producer(value).filter(|node| node.phase.is_gradient()) else { continue };
        let gathers = matches!(node.op, Op::Gather(_) | Op::GatherElements(_) | Op::Transfer(_));
        let moves = gathers || node.op.movement() != Movement::Computed;
        if seen.insert(value) && (moves || repeats && node.copy > 0) {
            pending.extend(&node.operands);
        }
    }
}

/// The form that keeps a float in another type.
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
