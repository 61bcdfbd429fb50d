//! Keeps the place of the largest element in each window, instead of the operand of a max pooling.

use super::Candidates;
use crate::rewriting::kept::{behind_views, local_bytes};
use ir::ops::pool::{MaxPoolGradAt, MaxPoolOffsets, has_offsets};
use ir::{At, Builder, Definition, Module, Node, NodeId, Op, Phase, Type, TypeError};

/// Whether a node of backward searches for the largest elements of windows again, and could read their places instead.
pub(super) fn is_search(module: &Module, node: &Node) -> bool {
    let Op::MaxPoolGrad(pool) = &node.op else { return false };
    node.phase.is_gradient()
        && has_offsets(&pool.windows)
        && module.phase_of(node.operands[0]) == Phase::Forward
}

/// Whether the places take fewer bytes than the operand, if this has at least `least` bytes and no other reader in backward.
pub(super) fn is_freed(module: &Module, node: &Node, candidates: &Candidates, least: u64) -> bool {
    let [x, dy] = [node.operands[0], node.operands[1]];
    let source = behind_views(module, x).filter(|source| !candidates.kept.contains(source));
    let places = local_bytes(module, dy) / module.ty(dy).dtype.bytes();
    source.is_some_and(|source| {
        let bytes = local_bytes(module, source);
        bytes >= least && places < bytes
    })
}

/// Makes forward find the places, and backward read them.
pub(super) fn find_in_forward(b: &mut Builder, searches: &[NodeId]) -> Result<(), TypeError> {
    for &id in searches {
        let node = b.module().node(id).clone();
        let Op::MaxPoolGrad(pool) = &node.op else { continue };
        let [x, dy] = [node.operands[0], node.operands[1]];
        let Definition::Node(maker, _) = b.module().value(x).definition else { continue };
        // The dims that windows slide over are not split.
        let sharding = b.ty(x).sharding.clone();
        b.at(At::After(maker)).copy(0);
        let offsets = b.one(MaxPoolOffsets { windows: pool.windows.clone() }, &[x])?;
        b.shard(offsets, sharding);
        let (of_x, result) = (b.ty(x).clone(), node.results[0]);
        let sharding = b.ty(result).sharding.clone();
        b.at(At::Before(id));
        let op = MaxPoolGradAt { windows: pool.windows.clone() };
        let gradient = b.one_typed(op, &[offsets, dy], Type::new(of_x.dtype, of_x.dims))?;
        b.shard(gradient, sharding);
        b.replace(result, gradient);
        b.remove(id);
    }
    Ok(())
}
