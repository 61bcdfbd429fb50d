//! Experts: splits weights with a matrix for each expert over the expert axes, and multiplies rows on the devices of their matrices.
//!
//! The expert axes split the batch as well, so rows and matrices compete for them at a product. The matrices keep them there:
//!
//! - Rows with a dim of experts (`becn`: the capacity form of Lepikhin et al., GShard, arXiv 2006.16668) are split over the experts
//!   instead of the samples, and over the samples again after the last product: one `all_to_all` each way. Between two products
//!   they stay split over the experts.
//! - Rows that choose a matrix by an index (the operator `experts`) have no such dim. They are gathered over the expert axes. Each
//!   device makes zeros for rows of other devices' experts, and the results are summed and scattered. This moves rows, but never
//!   matrices or their gradients, so a device needs room for its own experts only.

use super::propagation::{Cause, Layouts, Rules, Scope, propagate};
use super::strategy::{EVERYWHERE, stored};
use ir::factors::{DimFactors, FactorId, FactorKind};
use ir::ops::elementwise::Binary;
use ir::{AxisId, Diagnostic, Module, NodeId, Op, OperandRole, Phase, StateId, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// A dim of a value.
type ValueDim = (ValueId, usize);

/// Splits the experts' weights with their gradients and optimizer states, and the values between their products. Pins the axes to the
/// products' factor of the experts.
///
/// # Errors
/// The model has no experts; the expert axes do not divide the number of experts.
pub(super) fn seed(rules: &Rules, layouts: &mut Layouts, axes: &[AxisId]) -> Result<(), Diagnostic> {
    if axes.is_empty() {
        return Ok(());
    }
    let weights = weights(rules);
    if weights.is_empty() {
        return Err(without_experts(rules, axes));
    }
    let nodes = along_states(rules.module);
    let scope = Scope { axes, phases: &EVERYWHERE, states: true, nodes: Some(&nodes) };
    split_stored(rules, layouts, &scope, &weights, "experts: each device has its share of the matrices")?;
    let products = products(rules, layouts, axes);
    let between = Between::of(rules, axes, &products);
    for &(value, dim) in &between.places {
        let reason = "experts: rows stay with their matrices up to the next product";
        split(rules, layouts, axes, (value, dim), reason);
    }
    split_stored(rules, layouts, &scope, &between.biases(rules), "experts: it is read beside their matrices")
}

fn split(rules: &Rules, layouts: &mut Layouts, axes: &[AxisId], (value, dim): ValueDim, reason: &str) {
    for &axis in axes {
        layouts.split(value, rules.module.ty(value).ndim(), dim, axis, Cause::Seed(reason.into()));
    }
}

/// Splits dims of tensors that states hold, and passes the splits on. States that the user fixed stay as they are.
fn split_stored(
    rules: &Rules,
    layouts: &mut Layouts,
    scope: &Scope,
    tensors: &[(ValueDim, StateId)],
    reason: &str,
) -> Result<(), Diagnostic> {
    let axes = scope.axes;
    for &((value, dim), state) in tensors {
        let state = &rules.module.states[state];
        if layouts.is_closed(state.input) {
            continue;
        }
        let count = rules.module.ty(value).dims[dim].size().unwrap_or(0);
        if !count.is_multiple_of(rules.mesh.size(axes)) {
            return Err(does_not_divide(rules, axes, &state.name, count));
        }
        split(rules, layouts, axes, (value, dim), reason);
    }
    let from: Vec<ValueId> = tensors.iter().map(|((value, _), _)| *value).collect();
    propagate(rules, layouts, scope, Some(&from));
    Ok(())
}

/// Returns the axes in the form of `--mesh`: `ep.outer=2,ep.inner=4`.
fn described(rules: &Rules, axes: &[AxisId]) -> String {
    let axis = |&axis: &AxisId| format!("{}={}", rules.mesh.axes[axis].name, rules.mesh.axes[axis].size);
    axes.iter().map(axis).collect::<Vec<_>>().join(",")
}

fn does_not_divide(rules: &Rules, axes: &[AxisId], state: &str, count: u64) -> Diagnostic {
    let axes = described(rules, axes);
    let legal: Vec<String> =
        (2..=count.min(64)).filter(|parts| count.is_multiple_of(*parts)).map(|n| format!("ep={n}")).collect();
    let error =
        Diagnostic::new(format!("the {count} experts of `{state}` cannot be divided equally over {axes}"));
    match &legal[..] {
        [] => error.note("a single expert cannot be divided: use dp in place of ep"),
        legal => error.note(format!("the experts can be divided by {}", legal.join(", "))),
    }
}

fn without_experts(rules: &Rules, axes: &[AxisId]) -> Diagnostic {
    let (named, size) = (described(rules, axes), rules.mesh.size(axes));
    Diagnostic::new(format!("--mesh {named} divides the experts of a model, and this model has none"))
        .note(format!("to split the batch alone, use dp={size}"))
        .note("a model has experts where rows are multiplied by matrices of their own choice, as in Mixtral")
}

/// Finds the weights of the forward phase that have one matrix for each expert, with the dim of the experts.
fn weights(rules: &Rules) -> Vec<(ValueDim, StateId)> {
    let nodes = rules.module.nodes().filter(|(_, node)| node.phase == Phase::Forward);
    nodes.filter_map(|(id, _)| weight(rules, id)).collect()
}

fn weight(rules: &Rules, id: NodeId) -> Option<(ValueDim, StateId)> {
    let (module, node) = (rules.module, rules.module.node(id));
    match &node.op {
        Op::Experts(_) => {
            let weight = node[OperandRole::Weight];
            Some(((weight, 0), stored(module, weight)?))
        }
        Op::Contract(_) => {
            let states = [0, 1].map(|operand| stored(module, node.operands[operand]));
            let (operand, state) = match states {
                [Some(state), None] => (0, state),
                [None, Some(state)] => (1, state),
                _ => return None,
            };
            let dims = &rules.of(id).operands[operand];
            let dim =
                dims.iter().position(|dim| matches!(dim[..], [factor] if is_batch(rules, id, factor)))?;
            Some(((node.operands[operand], dim), state))
        }
        _ => None,
    }
}

/// Whether all operands and results of a node have a factor as a dim of its own, so that each of its steps is a separate product.
fn is_batch(rules: &Rules, id: NodeId, factor: FactorId) -> bool {
    rules.tensors(id).all(|(_, dims)| dims.iter().any(|dim| dim[..] == [factor]))
}

/// Returns the nodes through which a state, its gradient and its optimizer's states get equal splits: nodes that run once a step, views
/// of parts of one tensor, and the additions of a gradient's terms.
fn along_states(module: &Module) -> BTreeSet<NodeId> {
    let along = |node: &ir::Node| match node.phase {
        Phase::Prepare | Phase::Update => true,
        Phase::Forward | Phase::Backward | Phase::Weight => {
            node.op.movement().is_part_of_state() || matches!(node.op, Op::Binary(Binary::Add))
        }
    };
    module.nodes().filter(|(_, node)| along(node)).map(|(id, _)| id).collect()
}

/// Pins the nodes that multiply rows by matrices that are split over the expert axes, or that make the gradients of such matrices. Returns
/// these nodes, each with its factor of the experts, which has the axes.
fn products(rules: &Rules, layouts: &mut Layouts, axes: &[AxisId]) -> BTreeMap<NodeId, FactorId> {
    let mut products = BTreeMap::new();
    for (id, node) in rules.module.nodes().filter(|(_, node)| node.phase.is_microbatch()) {
        let multiplies = |factor: FactorId| match node.op {
            Op::Experts(_) | Op::ExpertsGrad(_) => true,
            Op::Contract(_) => is_batch(rules, id, factor),
            _ => false,
        };
        // At this point only the experts' weights, gradients and optimizer states are split over these axes.
        let split = rules.tensors(id).find_map(|(value, dims)| {
            let on = |(dim, factors): (usize, &DimFactors)| {
                let own = layouts.axes(value, dim);
                match factors[..] {
                    [factor] if own.iter().any(|axis| axes.contains(axis)) => Some((factor, own.into())),
                    _ => None,
                }
            };
            dims.iter().enumerate().find_map(on)
        });
        let Some((factor, own)) = split.filter(|(factor, _)| multiplies(*factor)) else { continue };
        layouts.pin(id, factor, own);
        products.insert(id, factor);
    }
    products
}

/// The dims of experts on paths from the result of a product to an operand of another product.
struct Between {
    places: BTreeSet<ValueDim>,
    /// The nodes on these paths, with their factor of the experts.
    nodes: BTreeMap<NodeId, FactorId>,
}

impl Between {
    fn of(rules: &Rules, axes: &[AxisId], products: &BTreeMap<NodeId, FactorId>) -> Self {
        let mut made = Walk { rules, axes, products, seen: BTreeMap::new() };
        let mut read = Walk { rules, axes, products, seen: BTreeMap::new() };
        for (&id, &factor) in products {
            let (node, factors) = (rules.module.node(id), rules.of(id));
            made.walk(places(&node.results, &factors.results, factor), Direction::ToReaders);
            read.walk(places(&node.operands, &factors.operands, factor), Direction::ToMakers);
        }
        let both = made.seen.keys().filter(|place| read.seen.contains_key(place));
        let places: BTreeSet<ValueDim> = both.copied().collect();
        let through = places.iter().filter_map(|place| made.seen[place]);
        Self { nodes: through.collect(), places }
    }

    /// Returns the tensors of states that these nodes read along the experts, such as biases.
    fn biases(&self, rules: &Rules) -> Vec<(ValueDim, StateId)> {
        let of_node = |(&id, &factor): (&NodeId, &FactorId)| {
            let operands = places(&rules.module.node(id).operands, &rules.of(id).operands, factor);
            operands.into_iter().filter_map(|place| Some((place, stored(rules.module, place.0)?)))
        };
        self.nodes.iter().flat_map(of_node).collect()
    }
}

/// Returns the dims of a node's operands or results that begin with a factor.
fn places(values: &[ValueId], dims: &[Vec<DimFactors>], factor: FactorId) -> Vec<ValueDim> {
    let of_value = |(&value, dims): (&ValueId, &Vec<DimFactors>)| {
        dims.iter().position(|dim| dim.first() == Some(&factor)).map(|dim| (value, dim))
    };
    values.iter().zip(dims).filter_map(of_value).collect()
}

#[derive(Clone, Copy)]
enum Direction {
    ToReaders,
    ToMakers,
}

/// The node through which a walk reaches a dim, with the node's factor of that dim; `None` where the walk begins.
type Through = Option<(NodeId, FactorId)>;

/// A dim that a walk reaches.
type Reached = (ValueDim, Through);

/// A walk from dim to dim through nodes that compute each expert by itself, other than products.
struct Walk<'r, 'm> {
    rules: &'r Rules<'m>,
    axes: &'r [AxisId],
    products: &'r BTreeMap<NodeId, FactorId>,
    /// The dims that were reached.
    seen: BTreeMap<ValueDim, Through>,
}

impl Walk<'_, '_> {
    fn walk(&mut self, from: Vec<ValueDim>, direction: Direction) {
        let mut pending: Vec<Reached> = from.into_iter().map(|place| (place, None)).collect();
        while let Some((place, through)) = pending.pop() {
            if self.seen.contains_key(&place) {
                continue;
            }
            self.seen.insert(place, through);
            let next: Vec<NodeId> = match direction {
                Direction::ToReaders => self.rules.readers(place.0).to_vec(),
                Direction::ToMakers => self.rules.maker(place.0).into_iter().collect(),
            };
            for id in next {
                pending.extend(self.step(id, place, direction).into_iter().flatten());
            }
        }
    }

    /// Returns the dims on the other side of a node; `None` if the node does not compute each expert by itself.
    fn step(&self, id: NodeId, (value, dim): ValueDim, direction: Direction) -> Option<Vec<Reached>> {
        let (node, factors) = (self.rules.module.node(id), self.rules.of(id));
        if self.products.contains_key(&id) || !node.phase.is_microbatch() {
            return None;
        }
        let operands = (&node.operands[..], &factors.operands[..]);
        let results = (&node.results[..], &factors.results[..]);
        let (near, far) = match direction {
            Direction::ToReaders => (operands, results),
            Direction::ToMakers => (results, operands),
        };
        let (_, dims) = near.0.iter().zip(near.1).find(|(near, _)| **near == value)?;
        let spread = factors.spread(self.rules.mesh, &dims[dim], self.axes).ok()?;
        let (factor, own) = spread.into_iter().find(|(_, own)| !own.is_empty())?;
        let is_free = factors.factors[factor as usize].kind == FactorKind::Free;
        let far = places(far.0, far.1, factor).into_iter().map(|place| (place, Some((id, factor))));
        (is_free && own.len() == self.axes.len()).then(|| far.collect())
    }
}
