//! Splits a factor of a call over more axes, and finds the types of operands and results after the split.

use super::graph::{Call, Program, Split, TypeId, TypeIds};
use ir::factors::{DimFactors, FactorId, FactorKind, Factors};
use ir::ops::collective::{Change, Collective};
use ir::{AxisId, Mesh, Op, PartialKind, Type};
use smallvec::SmallVec;

/// A tensor of a call, by its index.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tensor {
    Operand(usize),
    Result(usize),
}

/// Splits the factor that `dim` of a tensor of the call would split if these axes were added to it. Returns `None` if the operator has no
/// such factor or cannot split it, or if any tensor already differs along the axes: an axis does one thing in a call.
///
/// A result that lacks the factor becomes partial if the factor is reduced.
pub(super) fn split(
    program: &Program,
    call: &Call,
    tensor: Tensor,
    dim: usize,
    axes: &[AxisId],
) -> Option<std::rc::Rc<Split>> {
    let mesh = &program.module.mesh;
    let factors = program.factors(call);
    let (ty, dims) = match tensor {
        Tensor::Operand(i) => (program.ty(call.1[i]), &factors.operands[i]),
        Tensor::Result(i) => (program.ty(call.2[i]), &factors.results[i]),
    };
    let factor = taken(mesh, &factors, &dims[dim], ty.sharding.axes(dim), axes)?;
    program.split(call, factor, axes, || apply(program, call, &factors, factor, axes))
}

fn apply(
    program: &Program,
    call: &Call,
    factors: &Factors,
    factor: FactorId,
    axes: &[AxisId],
) -> Option<Split> {
    let kind = match factors.factors[factor as usize].kind {
        FactorKind::Free => None,
        FactorKind::Reduced(kind) => Some(kind),
        FactorKind::Whole | FactorKind::Custom => return None,
    };
    let mut split = Split { operands: SmallVec::new(), results: TypeIds::new() };
    let part = |id: TypeId, dims: &[DimFactors]| part(program, factors, factor, axes, id, dims);
    for (&id, dims) in call.1.iter().zip(&factors.operands) {
        let part = part(id, dims)?;
        split.operands.push((part != id).then_some(part));
    }
    for (&id, dims) in call.2.iter().zip(&factors.results) {
        let has = dims.iter().any(|dim| dim.contains(&factor));
        split.results.push(if has { part(id, dims)? } else { partial(program, axes, id, kind?)? });
    }
    still_changes(program, call, &split).then_some(split)
}

/// Returns a tensor with the factor split; unchanged if it lacks the factor.
fn part(
    program: &Program,
    factors: &Factors,
    factor: FactorId,
    axes: &[AxisId],
    id: TypeId,
    dims: &[DimFactors],
) -> Option<TypeId> {
    let (mesh, mut ty) = (&program.module.mesh, Type::clone(&program.ty(id)));
    if differs(&ty, axes) {
        return None;
    }
    let mut places = (0..dims.len()).filter(|&dim| dims[dim].contains(&factor));
    let Some(dim) = places.next() else { return Some(id) };
    let lands = taken(mesh, factors, &dims[dim], ty.sharding.axes(dim), axes) == Some(factor);
    if places.next().is_some() || !lands {
        return None;
    }
    add_axes(&mut ty, dim, axes);
    ty.local(mesh)?;
    Some(program.number(&ty))
}

/// Returns a tensor that becomes partial over more axes.
fn partial(program: &Program, axes: &[AxisId], id: TypeId, kind: PartialKind) -> Option<TypeId> {
    let mut ty = Type::clone(&program.ty(id));
    let (old, partial) = ty.sharding.partial.get_or_insert_with(|| (kind, SmallVec::new()));
    if *old != kind || differs(&program.ty(id), axes) {
        return None;
    }
    partial.extend_from_slice(axes);
    Some(program.number(&ty))
}

/// Whether a call that is a collective is still the same collective. Any other call passes.
fn still_changes(program: &Program, call: &Call, split: &Split) -> bool {
    let Some(Op::Collective(collective)) = call.0 else { return true };
    let (&[from], &[to]) = (&call.1[..], &split.results[..]) else { return false };
    let from = program.ty(split.operands[0].unwrap_or(from));
    let change = Change::between(&from.sharding, &program.ty(to).sharding, from.ndim());
    change.is_ok_and(|change| Collective::of(&change) == Some(collective))
}

/// Adds axes at the end of a dim's list.
pub(super) fn add_axes(ty: &mut Type, dim: usize, axes: &[AxisId]) {
    ty.sharding.dims.resize(ty.dims.len(), SmallVec::new());
    ty.sharding.dims[dim].extend_from_slice(axes);
}

/// Whether devices along any of these axes hold different data.
pub(super) fn differs(ty: &Type, axes: &[AxisId]) -> bool {
    let sharding = &ty.sharding;
    let mut used = sharding.dims.iter().flatten().chain(sharding.partial_axes());
    used.any(|axis| axes.contains(axis))
}

/// Returns the factor that takes all of these axes when they are added to a dim.
fn taken(
    mesh: &Mesh,
    factors: &Factors,
    dim: &[FactorId],
    old: &[AxisId],
    axes: &[AxisId],
) -> Option<FactorId> {
    let new: SmallVec<[AxisId; 4]> = old.iter().chain(axes).copied().collect();
    let before = factors.spread(mesh, dim, old).ok()?;
    let after = factors.spread(mesh, dim, &new).ok()?;
    let mut changed = before.iter().zip(&after).filter(|(old, new)| old != new);
    let (_, (factor, _)) = changed.next()?;
    changed.next().is_none().then_some(*factor)
}
