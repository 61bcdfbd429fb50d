//! Keeps masks as bits, and comparisons of activations in place of the activations.

use super::Candidates;
use crate::rewriting::kept::{Form, behind_views, local_bytes};
use ir::ops::elementwise::{Binary, Compare, Select, Unary};
use ir::ops::packing::{BITS, PackBits, UnpackBits};
use ir::{
    At, Builder, DType, Definition, Dim, Mesh, Module, Node, NodeId, Op, Phase, Sharding, Type, TypeError,
    ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// A node of backward that only compares activations: a comparison, or the gradient of a ReLU, which compares with 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Test {
    /// The node.
    pub(super) node: NodeId,
    /// The ReLU's result, if backward reads it anyway: it is positive where the operand is positive. `None`: forward compares, and a bit
    /// for each element is kept.
    pub(super) output: Option<ValueId>,
}

/// Whether a test frees at least `least` bytes of activations that no other node reads, and its bits take fewer bytes.
pub(super) fn is_freed(module: &Module, node: &Node, candidates: &Candidates, least: u64) -> bool {
    let sources = tested(node).iter().filter_map(|&operand| behind_views(module, operand));
    let freed: BTreeSet<ValueId> = sources.filter(|source| !candidates.kept.contains(source)).collect();
    let freed = freed.into_iter().map(|source| local_bytes(module, source)).fold(0, u64::saturating_add);
    let result = node.results[0];
    let bits = local_bytes(module, result) / module.ty(result).dtype.bytes() / BITS;
    let is_smaller =
        kept_output(module, node, candidates).is_some() || (bits < freed && is_packed(module, node));
    freed >= least.max(1) && is_smaller
}

/// Returns the test of a node.
pub(super) fn test(module: &Module, node: NodeId, candidates: &Candidates) -> Test {
    Test { node, output: kept_output(module, module.node(node), candidates) }
}

/// Returns the results of the ReLUs of forward, by their operands.
pub(super) fn relus(module: &Module) -> BTreeMap<ValueId, Vec<ValueId>> {
    let mut results: BTreeMap<ValueId, Vec<ValueId>> = BTreeMap::new();
    let is_relu = |node: &Node| node.phase == Phase::Forward && matches!(node.op, Op::Unary(Unary::Relu));
    for (_, node) in module.nodes().filter(|(_, node)| is_relu(node)) {
        results.entry(node.operands[0]).or_default().push(node.results[0]);
    }
    results
}

/// Returns the bools of at least `least` bytes that can be packed.
pub(super) fn bools(module: &Module, activations: &[ValueId], least: u64) -> Vec<ValueId> {
    let is_mask = |value: &ValueId| {
        let ty = module.ty(*value);
        ty.dtype == DType::Bool && local_bytes(module, *value) >= least && rows(ty, &module.mesh).is_some()
    };
    activations.iter().copied().filter(is_mask).collect()
}

/// Returns the operands of a test that it only compares.
pub(super) fn tested(node: &Node) -> &[ValueId] {
    match node.op {
        Op::Binary(Binary::ReluGrad) => &node.operands[..1],
        Op::Compare(_) => &node.operands,
        _ => &[],
    }
}

/// Whether a node of backward is a test whose comparison forward could compute.
pub(super) fn is_test(module: &Module, node: &Node) -> bool {
    let is_known = |&operand: &ValueId| {
        module.phase_of(operand) <= Phase::Forward || module.splat_number(operand).is_some()
    };
    node.phase.is_gradient() && !tested(node).is_empty() && tested(node).iter().all(is_known)
}

/// Whether the bits of a test's comparison can be kept. They cannot if the gradient is partial: it would need partial zeros beside it.
fn is_packed(module: &Module, node: &Node) -> bool {
    let is_whole = module.ty(node.results[0]).sharding.partial.is_none();
    let ty = match node.op {
        Op::Compare(_) => module.ty(node.results[0]),
        _ => module.ty(node.operands[0]),
    };
    is_whole && rows(ty, &module.mesh).is_some()
}

/// Returns the result of the ReLU whose gradient a node computes, if backward keeps it anyway.
fn kept_output(module: &Module, node: &Node, candidates: &Candidates) -> Option<ValueId> {
    let Op::Binary(Binary::ReluGrad) = node.op else { return None };
    let x = node.operands[0];
    let is_kept = |&&output: &&ValueId| {
        let is_alike = module.ty(output) == module.ty(x) && module.stage_of(output) == node.stage;
        is_alike && behind_views(module, output).is_some_and(|source| candidates.kept.contains(&source))
    };
    candidates.relus.get(&x)?.iter().find(is_kept).copied()
}

/// Makes tests read other activations, or bools that forward computes. Returns these bools, which must still be packed.
pub(super) fn compare_in_forward(b: &mut Builder, tests: &[Test]) -> Result<Vec<ValueId>, TypeError> {
    let mut compared = Vec::new();
    for Test { node: id, output } in tests {
        if let Some(output) = output {
            b.set_operand(*id, 0, *output);
            continue;
        }
        let node = b.module().node(*id).clone();
        let (compare, operands) = match node.op {
            Op::Compare(compare) => (compare, node.operands.to_vec()),
            _ => (Compare::Greater, vec![node.operands[0]]),
        };
        let Some(maker) = last_maker(b.module(), &operands) else { continue };
        // The last operand may be a constant of every stage, so the stage is the node's.
        b.at(At::After(maker)).copy(0).stage(node.stage);
        let mut known = Vec::new();
        for &operand in &operands {
            known.push(in_forward(b, operand)?);
        }
        if known.len() == 1 {
            known.push(b.splat_like(operands[0], 0.0)?);
        }
        let bools = b.one(compare, &known)?;
        let sharding = match node.op {
            Op::Compare(_) => b.ty(node.results[0]).sharding.clone(),
            _ => b.ty(operands[0]).sharding.clone(),
        };
        b.shard(bools, sharding);
        let result = match node.op {
            Op::Compare(_) => bools,
            _ => chosen(b, *id, bools, node.operands[1])?,
        };
        b.replace(node.results[0], result);
        b.remove(*id);
        compared.push(bools);
    }
    Ok(compared)
}

/// Replaces a node of backward by the gradient where a mask is true, and 0 elsewhere.
fn chosen(b: &mut Builder, node: NodeId, mask: ValueId, gradient: ValueId) -> Result<ValueId, TypeError> {
    let sharding = b.ty(b.module().node(node).results[0]).sharding.clone();
    b.at(At::Before(node));
    let chosen = b.build(Select.of(mask, gradient, 0.0))?;
    b.shard(chosen, sharding);
    Ok(chosen)
}

/// Returns the last node in program order that makes an activation among these values.
fn last_maker(module: &Module, values: &[ValueId]) -> Option<NodeId> {
    let makes = |value: &ValueId| match module.value(*value).definition {
        Definition::Node(id, _) if module.phase_of(*value) == Phase::Forward => Some(id),
        _ => None,
    };
    let makers: BTreeSet<NodeId> = values.iter().filter_map(makes).collect();
    module.nodes().rev().map(|(id, _)| id).find(|id| makers.contains(id))
}

/// Returns a form of a value that forward can read: the value itself, or an equal splat.
fn in_forward(b: &mut Builder, value: ValueId) -> Result<ValueId, TypeError> {
    if b.module().phase_of(value) <= Phase::Forward {
        return Ok(value);
    }
    let (ty, number) = (b.ty(value).clone(), b.module().splat_number(value).unwrap_or_default());
    let splat = b.splat(Type::new(ty.dtype, ty.dims), number)?;
    b.shard(splat, ty.sharding);
    Ok(splat)
}

/// Returns the type in whose rows bools are packed: the last dims are merged, as many as lie one after the other on a device. `None` if
/// each element would take a byte.
fn rows(ty: &Type, mesh: &Mesh) -> Option<Type> {
    let (sizes, local) = (ty.sizes()?, ty.local(mesh)?);
    let split = (0..sizes.len()).rev().find(|&dim| !ty.sharding.axes(dim).is_empty());
    let is_whole_bytes = |&dim: &usize| local[dim..].iter().product::<u64>().is_multiple_of(BITS);
    // A split dim is merged with the dims after it if the parts are whole bytes.
    let first = match split {
        None => 0,
        Some(dim) => Some(dim).filter(is_whole_bytes).unwrap_or(dim + 1),
    };
    if first >= sizes.len() || local[first..].iter().product::<u64>() < 2 {
        return None;
    }
    let row = Dim::known(sizes[first..].iter().product());
    let mut rows = Type::new(ty.dtype, ty.dims[..first].iter().cloned().chain([row]));
    if split.is_some() {
        let dims = (0..=first).map(|dim| ty.sharding.axes(dim).iter().copied().collect());
        rows.sharding = Sharding { dims: dims.collect(), partial: None };
    }
    Some(rows)
}

/// The form that keeps a bool in a bit.
pub(super) struct Bits;

impl Form for Bits {
    fn put(&self, b: &mut Builder, value: ValueId) -> Result<ValueId, TypeError> {
        let rows = self.rows(b, value)?;
        let flat = b.reshape(value, rows.dims)?;
        b.shard(flat, rows.sharding.clone());
        let bytes = b.one(PackBits, &[flat])?;
        b.shard(bytes, rows.sharding);
        Ok(bytes)
    }

    fn take(&self, b: &mut Builder, kept: ValueId, value: ValueId) -> Result<ValueId, TypeError> {
        let (rows, ty) = (self.rows(b, value)?, b.ty(value).clone());
        let flat = b.one_typed(UnpackBits, &[kept], Type::new(rows.dtype, rows.dims))?;
        b.shard(flat, rows.sharding);
        let bools = b.reshape(flat, ty.dims)?;
        b.shard(bools, ty.sharding);
        Ok(bools)
    }
}

impl Bits {
    fn rows(&self, b: &Builder, value: ValueId) -> Result<Type, TypeError> {
        let ty = b.ty(value);
        rows(ty, &b.module().mesh).ok_or_else(|| TypeError::new(format!("{ty} has no rows of bits")))
    }
}
