//! Seeds shardings: the batch over the data axes and the expert axes, and weights over the tensor axes.
//!
//! Tensor parallelism is derived from the graph, as Megatron-LM (arXiv 1909.08053) cuts it by hand. In program order, each
//! contraction with a weight is split along the weight's own dim ("column") if its result stays split, through activations, heads and
//! views, up to contractions that sum over the split dim ("row"). A contraction whose operand is already split is a row and needs no
//! seed. Tables of rows that are looked up (vocabularies) are split over their rows.

use super::propagation::{Cause, Layouts, Rules, Scope, propagate};
use ir::factors::{DimFactors, FactorAxes, FactorId, FactorKind};
use ir::{AxisId, AxisRole, Definition, Module, Movement, NodeId, Op, OperandRole, Phase, ValueId};
use std::collections::BTreeSet;

/// All phases.
pub(super) const EVERYWHERE: [Phase; 5] =
    [Phase::Prepare, Phase::Forward, Phase::Backward, Phase::Weight, Phase::Update];

/// Seeds the batch over these data axes or expert axes, after the axes that split it already, and passes it on.
pub(super) fn data(rules: &Rules, layouts: &mut Layouts, axes: &[AxisId]) {
    if axes.is_empty() {
        return;
    }
    let module = rules.module;
    let batched: Vec<_> = module.inputs.iter().filter(|input| input.batched).collect();
    for input in &batched {
        for &axis in axes {
            let kind = match rules.mesh.axes[axis].role {
                AxisRole::Expert => "expert",
                AxisRole::Data | AxisRole::Tensor | AxisRole::Pipeline | AxisRole::Context => "data",
            };
            let cause =
                Cause::Seed(format!("the samples of `{}` are split over the {kind} axes", input.name));
            layouts.split(input.value, module.ty(input.value).ndim(), 0, axis, cause);
        }
    }
    let seeds: Vec<ValueId> = batched.iter().map(|input| input.value).collect();
    propagate(rules, layouts, &Scope { axes, phases: &EVERYWHERE, states: true, nodes: None }, Some(&seeds));
}

/// Seeds the addends of partial sums over the data axes, on the devices that compute them, and passes them on in the update.
pub(super) fn addends(rules: &Rules, layouts: &mut Layouts, axes: &[AxisId]) {
    let module = rules.module;
    let made = module.nodes().filter(|(_, node)| matches!(node.op, Op::Addends(_)));
    let seeds: Vec<ValueId> = made.map(|(_, node)| node.results[0]).collect();
    for &value in &seeds {
        for &axis in axes {
            let reason = "addends of a gradient stay on the device that computed them".into();
            layouts.split(value, module.ty(value).ndim(), 0, axis, Cause::Seed(reason));
        }
    }
    propagate(
        rules,
        layouts,
        &Scope { axes, phases: &[Phase::Update], states: true, nodes: None },
        Some(&seeds),
    );
}

/// Passes the user's shardings on.
pub(super) fn asked(rules: &Rules, layouts: &mut Layouts, values: &[ValueId]) {
    let axes: Vec<AxisId> = rules.mesh.axes.keys().collect();
    propagate(
        rules,
        layouts,
        &Scope { axes: &axes, phases: &EVERYWHERE, states: true, nodes: None },
        Some(values),
    );
}

/// Seeds weights over the tensor axes one after the other, and passes each on before the next one is seeded.
pub(super) fn tensor(rules: &Rules, layouts: &mut Layouts, axes: &[AxisId]) {
    let scope = Scope { axes, phases: &EVERYWHERE, states: true, nodes: None };
    for (id, node) in rules.module.nodes().filter(|(_, node)| node.phase == Phase::Forward) {
        let seed = match node.op {
            Op::Contract(_) | Op::Experts(_) => column(rules, layouts, axes, id),
            Op::Gather(_) => vocabulary(rules, layouts, axes, id),
            _ => None,
        };
        let Some(Seed { weight, dim, axes, reason }) = seed else { continue };
        for axis in axes {
            let ndim = rules.module.ty(weight).ndim();
            layouts.split(weight, ndim, dim, axis, Cause::Seed(reason.clone()));
        }
        propagate(rules, layouts, &scope, Some(&[weight]));
    }
}

/// Seeds the sequence over the tensor axes at sums over weights that these axes split (arXiv 2205.05198): such a sum is scattered over
/// the sequence, in place of a reduction on every device. These splits end where they meet splits of weights.
pub(super) fn sequence(rules: &Rules, layouts: &mut Layouts, axes: &[AxisId]) {
    let mut seeds = Vec::new();
    for (id, node) in rules.module.nodes().filter(|(_, node)| node.phase == Phase::Forward) {
        if sums_over_a_weight(rules, layouts, axes, id) {
            let results = node.results.iter().copied();
            seeds.extend(results.filter(|&result| follows_samples(rules, layouts, result, axes)));
        }
    }
    for &value in &seeds {
        for &axis in axes {
            let reason = "sequence: between regions that are split over the tensor axes".into();
            layouts.split(value, rules.module.ty(value).ndim(), 1, axis, Cause::Seed(reason));
        }
    }
    let phases = [Phase::Forward, Phase::Backward, Phase::Weight];
    propagate(rules, layouts, &Scope { axes, phases: &phases, states: false, nodes: None }, Some(&seeds));
}

/// Whether a node sums over a dim of a weight that is split over these axes, so that its results are partial.
fn sums_over_a_weight(rules: &Rules, layouts: &Layouts, axes: &[AxisId], id: NodeId) -> bool {
    let (node, factors) = (rules.module.node(id), rules.of(id));
    let kept = |factor: &FactorId| factors.results.iter().flatten().any(|dim| dim.contains(factor));
    let summed = |factor: &FactorId| {
        matches!(factors.factors[*factor as usize].kind, FactorKind::Reduced(_)) && !kept(factor)
    };
    let weights = node.operands.iter().zip(&factors.operands);
    weights.filter(|(operand, _)| stored(rules.module, **operand).is_some()).any(|(&operand, dims)| {
        let split = |i: usize| layouts.axes(operand, i).iter().any(|axis| axes.contains(axis));
        dims.iter().enumerate().any(|(i, dim)| split(i) && dim.iter().any(summed))
    })
}

/// Whether a value has samples, positions and features, is not split over these axes, and has positions that they divide.
fn follows_samples(rules: &Rules, layouts: &Layouts, value: ValueId, axes: &[AxisId]) -> bool {
    let ty = rules.module.ty(value);
    let free = axes.iter().all(|&axis| !layouts.uses(value, axis));
    ty.ndim() >= 3 && free && divides(rules, layouts, (value, 1), axes)
}

/// A weight to split: the value, the dim, the axes, and the reason.
struct Seed {
    weight: ValueId,
    dim: usize,
    axes: FactorAxes,
    reason: String,
}

/// Returns the state behind a value, if they differ only in layout and element type.
pub(super) fn stored(module: &Module, value: ValueId) -> Option<ir::StateId> {
    match module.value(module.viewed(value, Movement::is_part_of_state)).definition {
        Definition::State(state) => Some(state),
        Definition::Node(..) | Definition::Input(_) => None,
    }
}

/// Returns the seed for a contraction of a computed value with a weight, or with a weight's matrices of experts, if neither is split over
/// these axes: the weight's own dim, if the split lasts.
fn column(rules: &Rules, layouts: &Layouts, axes: &[AxisId], id: NodeId) -> Option<Seed> {
    let (module, factors) = (rules.module, rules.of(id));
    let node = module.node(id);
    let is_weight = |operand: usize| stored(module, node.operands[operand]).is_some();
    let weight = match (is_weight(0), is_weight(1)) {
        (false, true) => 1,
        (true, false) => 0,
        _ => return None,
    };
    let split = |value: ValueId| axes.iter().any(|&axis| layouts.uses(value, axis));
    if node.operands.iter().any(|&operand| split(operand)) {
        return None;
    }
    let other = &factors.operands[1 - weight];
    let own = |factor: FactorId| !other.iter().any(|dim| dim.contains(&factor));
    let dims = factors.operands[weight].iter().enumerate();
    let dims = dims.filter_map(|(dim, factor)| match factor[..] {
        [factor] if own(factor) => Some((dim, factor)),
        _ => None,
    });
    let mut dims: Vec<(usize, FactorId)> = dims.collect();
    dims.sort_by_key(|&(dim, factor)| {
        (std::cmp::Reverse(factors.factors[factor as usize].size.size().unwrap_or(0)), dim)
    });
    for (dim, factor) in dims {
        // All tensor axes are tried first, and fewer if heads are shared.
        for count in (1..=axes.len()).rev() {
            let axes = &axes[..count];
            let result = factors.results[0].iter().position(|dim| dim[..] == [factor]);
            let place = (node.operands[weight], dim);
            let Some(result) = result.filter(|_| divides(rules, layouts, place, axes)) else { continue };
            if lasts(rules, layouts, node.results[0], result, axes) {
                let reason = "column: its result stays split up to the next contraction or the loss".into();
                return Some(Seed { weight: node.operands[weight], dim, axes: axes.into(), reason });
            }
        }
    }
    None
}

/// Returns the seed for a table of weights whose rows are looked up and that has many more rows than columns.
fn vocabulary(rules: &Rules, layouts: &Layouts, axes: &[AxisId], id: NodeId) -> Option<Seed> {
    let (module, node) = (rules.module, rules.module.node(id));
    let Op::Gather(gather) = &node.op else { return None };
    let table = node[OperandRole::Data];
    stored(module, table)?;
    let (dim, ty) = (gather.dim as usize, module.ty(table));
    let (rows, all) = (ty.dims[dim].size()?, ty.numel()?);
    let split = axes.iter().any(|&axis| layouts.uses(table, axis));
    if split || rows < 2 * (all / rows.max(1)) || !divides(rules, layouts, (table, dim), axes) {
        return None;
    }
    let factor = *rules.of(id).operands[0][dim].first()?;
    if !matches!(rules.of(id).factors[factor as usize].kind, FactorKind::Reduced(_)) {
        return None;
    }
    let reason = "vocabulary: each device looks up the rows it has".into();
    Some(Seed { weight: table, dim, axes: axes.into(), reason })
}

/// Whether the axes, and those that already split a dim, divide it together.
fn divides(rules: &Rules, layouts: &Layouts, (value, dim): (ValueId, usize), axes: &[AxisId]) -> bool {
    let parts = rules.mesh.size(layouts.axes(value, dim)) * rules.mesh.size(axes);
    rules.module.ty(value).dims[dim].size().is_some_and(|size| size.is_multiple_of(parts))
}

/// Whether a dim can stay split from its node through all nodes of the forward phase that depend on it, up to nodes that sum over it:
/// contractions, or a loss that needs only its sum.
fn lasts(rules: &Rules, layouts: &Layouts, value: ValueId, dim: usize, axes: &[AxisId]) -> bool {
    let mut pending = vec![(value, dim)];
    let mut seen: BTreeSet<(ValueId, usize)> = BTreeSet::new();
    let mut taken_up = false;
    while let Some((value, dim)) = pending.pop() {
        if !seen.insert((value, dim)) {
            continue;
        }
        for &reader in
            rules.readers(value).iter().filter(|&&node| rules.module.node(node).phase == Phase::Forward)
        {
            match follow(rules, layouts, reader, (value, dim), axes) {
                Next::Stops => return false,
                Next::Summed => taken_up = true,
                Next::Goes(on) => pending.extend(on),
            }
        }
    }
    taken_up
}

/// The fate of a split dim at a node.
enum Next {
    /// The dim must be whole there.
    Stops,
    /// The node sums over the dim.
    Summed,
    /// These dims of the results get the same split.
    Goes(Vec<(ValueId, usize)>),
}

fn follow(
    rules: &Rules,
    layouts: &Layouts,
    id: NodeId,
    (value, dim): (ValueId, usize),
    axes: &[AxisId],
) -> Next {
    let (node, factors) = (rules.module.node(id), rules.of(id));
    let mut found: Option<FactorId> = None;
    for (operand, dims) in
        node.operands.iter().zip(&factors.operands).filter(|(operand, _)| **operand == value)
    {
        let Ok(spread) = factors.spread(rules.mesh, &dims[dim], axes) else { return Next::Stops };
        // Several factors of a dim (heads and groups of heads) stay together: the first one decides.
        let Some((factor, _)) = spread.into_iter().find(|(_, axes)| !axes.is_empty()) else {
            return Next::Stops;
        };
        let other_use = layouts.of(*operand).iter().any(|own| own.iter().any(|axis| axes.contains(axis)));
        if other_use || found.replace(factor).is_some_and(|other| other != factor) {
            return Next::Stops;
        }
    }
    let Some(factor) = found else { return Next::Stops };
    let in_result = |dims: &[DimFactors]| dims.iter().position(|dim| dim.first() == Some(&factor));
    let inside = |dims: &[DimFactors]| dims.iter().any(|dim| dim.contains(&factor));
    let on: Vec<(ValueId, usize)> = node
        .results
        .iter()
        .zip(&factors.results)
        .filter_map(|(&result, dims)| Some((result, in_result(dims)?)))
        .collect();
    let lost =
        node.results.iter().zip(&factors.results).any(|(_, dims)| inside(dims) && in_result(dims).is_none());
    match factors.factors[factor as usize].kind {
        _ if lost => Next::Stops,
        FactorKind::Whole => Next::Stops,
        FactorKind::Custom if on.is_empty() => Next::Summed,
        FactorKind::Custom => Next::Stops,
        FactorKind::Reduced(_) if on.is_empty() => Next::Summed,
        FactorKind::Free | FactorKind::Reduced(_) => {
            // The results must be able to express the split: a merged dim starts with the factor, and the axes divide its size.
            let says = |&(result, dim): &(ValueId, usize)| {
                let index =
                    node.results.iter().position(|&other| other == result).expect("a result of the node");
                factors.spread(rules.mesh, &factors.results[index][dim], axes).is_ok()
            };
            if on.iter().all(says) { Next::Goes(on) } else { Next::Stops }
        }
    }
}
