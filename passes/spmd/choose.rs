//! Chooses the axes over which the factors of one node are split.

use super::propagation::{Layouts, bytes};
use super::reshard::Resharder;
use ir::factors::{DimFactors, FactorAxes, FactorId, FactorKind};
use ir::{AxisId, Factors, Node, Op, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// A tensor of a node for the choice: its bytes, and the current split of each of its factors.
struct Tensor {
    bytes: u64,
    is_operand: bool,
    splits: BTreeMap<FactorId, FactorAxes>,
}

/// Chooses the axes of each factor of a node. If all operands with a factor agree on its split, the factor has this split. If not, it
/// has the split that moves the fewest bytes, and the finer of equals. `pinned` has a factor whose axes are fixed, and `taken` the axes
/// over which operands stay partial.
pub(super) fn choose(
    r: &Resharder,
    layouts: &Layouts,
    node: &Node,
    operands: &[ValueId],
    factors: &Factors,
    pinned: Option<(FactorId, FactorAxes)>,
    taken: &BTreeSet<AxisId>,
) -> BTreeMap<FactorId, FactorAxes> {
    let now = operands.iter().zip(&factors.operands).map(|(&value, dims)| {
        tensor(r, factors, value, dims, |dim| r.ty(value).sharding.axes(dim).into(), true)
    });
    // A sum over microbatches has the sharding of its operand, since values of a microbatch enter `update` in no other way.
    let makes = node.results.iter().zip(&factors.results).filter(|_| !matches!(node.op, Op::Accumulate(_)));
    let planned = makes
        .map(|(&value, dims)| tensor(r, factors, value, dims, |dim| layouts.axes(value, dim).into(), false));
    let tensors: Vec<Tensor> = now.chain(planned).collect();
    let mut used: BTreeSet<AxisId> = taken.clone();
    // An axis that is planned for a factor of a result is not given to another factor. So the batch keeps its axis where a weight is
    // sharded over it.
    let mut reserved: BTreeMap<AxisId, FactorId> = BTreeMap::new();
    for (&factor, axes) in
        tensors.iter().filter(|tensor| !tensor.is_operand).flat_map(|tensor| &tensor.splits)
    {
        for &axis in axes {
            reserved.entry(axis).or_insert(factor);
        }
    }
    let mut splits: BTreeMap<FactorId, FactorAxes> = pinned.into_iter().collect();
    used.extend(splits.values().flatten().copied());
    let mut order: Vec<(bool, u64, FactorId)> = Vec::new();
    for factor in 0..factors.factors.len() as FactorId {
        let kind = factors.factors[factor as usize].kind;
        if matches!(kind, FactorKind::Free | FactorKind::Reduced(_)) && !splits.contains_key(&factor) {
            let split = |t: &&Tensor| t.splits.get(&factor).is_some_and(|axes| !axes.is_empty());
            let weight: u64 = tensors.iter().filter(split).map(|t| t.bytes).sum();
            order.push((agreed(&tensors, factor).is_none(), u64::MAX - weight, factor));
        }
    }
    order.sort_unstable();
    for (_, _, factor) in order {
        let unused = |axes: &FactorAxes| axes.iter().all(|axis| !used.contains(axis));
        let own = |axis: &AxisId| reserved.get(axis).is_none_or(|other| *other == factor);
        let free = |axes: &FactorAxes| unused(axes) && axes.iter().all(own);
        // A factor that all operands sum over is summed where its parts are. The sum is scattered to the planned sharding of the result.
        let summed = matches!(factors.factors[factor as usize].kind, FactorKind::Reduced(_));
        let stays = |axes: &FactorAxes| if summed { unused(axes) } else { free(axes) };
        let chosen = match agreed(&tensors, factor).filter(stays) {
            Some(axes) => axes,
            None => cheapest(&tensors, factor, free),
        };
        if !chosen.is_empty() {
            used.extend(chosen.iter().copied());
            splits.insert(factor, chosen);
        }
    }
    keep_contiguous(r, factors, &mut splits);
    splits
}

/// Leaves a factor whole if a dim merges it behind a factor that is not fully split: its parts would have holes.
fn keep_contiguous(r: &Resharder, factors: &Factors, splits: &mut BTreeMap<FactorId, FactorAxes>) {
    let split =
        |splits: &BTreeMap<FactorId, FactorAxes>, factor| splits.get(&factor).cloned().unwrap_or_default();
    let dims = || factors.operands.iter().chain(&factors.results).flatten();
    while let Some(factor) = dims().find_map(|dim| {
        let merged = factors.merge(&r.mesh, dim, |factor| split(splits, factor));
        let count = |factor: &FactorId| split(splits, *factor).len();
        let fits = dim.iter().map(count).sum::<usize>() == merged.len();
        if fits { None } else { dim.iter().rev().copied().find(|factor| splits.contains_key(factor)) }
    }) {
        splits.remove(&factor);
    }
}

fn tensor(
    r: &Resharder,
    factors: &Factors,
    value: ValueId,
    dims: &[DimFactors],
    axes: impl Fn(usize) -> FactorAxes,
    is_operand: bool,
) -> Tensor {
    let mut splits: BTreeMap<FactorId, FactorAxes> = BTreeMap::new();
    for (i, dim) in dims.iter().enumerate() {
        // Trailing axes that the dim's factors cannot express are dropped, since the operand is resharded; the axes before them stay.
        let axes = axes(i);
        let fitting =
            (0..=axes.len()).rev().find_map(|count| factors.spread(&r.mesh, dim, &axes[..count]).ok());
        for (factor, axes) in fitting.unwrap_or_default() {
            splits.insert(factor, axes);
        }
    }
    Tensor { bytes: bytes(r.ty(value)), is_operand, splits }
}

/// Returns the split of a factor, if every operand with the factor has the same one.
fn agreed(tensors: &[Tensor], factor: FactorId) -> Option<FactorAxes> {
    let mut said =
        tensors.iter().filter(|tensor| tensor.is_operand).filter_map(|tensor| tensor.splits.get(&factor));
    let first = said.next()?;
    (!first.is_empty() && said.all(|axes| axes == first)).then(|| first.clone())
}

/// Returns the split of a factor that moves the fewest bytes. The candidates are the splits in its tensors, and the leading axes of each.
fn cheapest(tensors: &[Tensor], factor: FactorId, free: impl Fn(&FactorAxes) -> bool) -> FactorAxes {
    let said = tensors.iter().filter_map(|tensor| tensor.splits.get(&factor));
    let mut ways: Vec<FactorAxes> =
        said.flat_map(|axes| (0..=axes.len()).map(|count| axes[..count].into())).collect();
    ways.push(FactorAxes::new());
    ways.sort_by_key(|axes| (std::cmp::Reverse(axes.len()), axes.clone()));
    ways.dedup();
    let cost = |way: &FactorAxes| {
        let moved = |tensor: &Tensor| match tensor.splits.get(&factor) {
            None => 0,
            Some(axes) if axes == way => 0,
            // An operand is sliced now, or a result is sliced later: no bytes move.
            Some(axes) if tensor.is_operand && way.starts_with(axes) => 0,
            Some(axes) if !tensor.is_operand && axes.starts_with(way) => 0,
            Some(_) => tensor.bytes,
        };
        tensors.iter().map(moved).sum::<u64>()
    };
    ways.into_iter().filter(free).min_by_key(cost).unwrap_or_default()
}
