//! Adapts the number of samples, where a file has it as a constant beside a reduction over the samples.
//!
//! Exporters write the unbiased variance as `mean · n / (n − 1)` and a covariance as `zᵀz / (n − 1)`, with the `n` of the export.
//! Another batch needs other numbers. A constant gets the number of the new batch if nothing else explains it. If something else may
//! explain it (a width that equals the batch, or a factor that stands alone), a warning names it.

use super::trace::Carry;
use crate::analysis::constants::{Constants, Constness};
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::{At, Builder, Changed, Diagnostic, Module, Node, NodeId, Op, TypeError, ValueId};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// The numbers that depend on the batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counts {
    /// The new number of an operand, by node and index.
    rebound: BTreeMap<(NodeId, usize), f64>,
    /// The reductions whose factors were changed.
    pub(super) settled: BTreeSet<NodeId>,
    /// Numbers that may depend on the batch.
    pub(super) warnings: Vec<Diagnostic>,
}

/// A reduction over the samples.
struct Reduction {
    node: NodeId,
    is_mean: bool,
    /// The number of elements that are combined into one.
    count: u64,
    /// The sizes of other dims. A number may stand for any of these too.
    other_sizes: BTreeSet<u64>,
}

/// A constant that multiplies or divides a reduction or its operand.
#[derive(Clone, Copy, Debug)]
struct Factor {
    node: NodeId,
    operand: usize,
    number: f64,
    divides: bool,
}

/// A formula of a number of elements, `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    /// `n`
    All,
    /// `n − 1`
    AllButOne,
    /// `n / (n − 1)`
    Bessel,
}

impl Count {
    const EACH: [Self; 3] = [Self::All, Self::AllButOne, Self::Bessel];

    fn number(self, count: f64) -> f64 {
        match self {
            Self::All => count,
            Self::AllButOne => count - 1.0,
            Self::Bessel => count / (count - 1.0),
        }
    }
}

/// A factor that equals a formula of the old number of elements.
struct Match {
    factor: Factor,
    formula: Count,
    /// Whether the factor is one divided by the formula.
    inverse: bool,
    /// The `n` of the formula: the number of elements of the reduction, or the number of samples.
    count: u64,
}

impl Match {
    /// Whether the reduction is divided by the formula.
    fn divides(&self) -> bool {
        self.factor.divides != self.inverse
    }

    /// Returns the number for a batch that is `to / from` times as large.
    fn rebound(&self, from: u64, to: u64) -> f64 {
        let number = self.formula.number((self.count / from * to) as f64);
        if self.inverse { number.recip() } else { number }
    }
}

/// Finds the numbers that change when the batch of a program changes from `from` to `to`.
pub(super) fn decide(module: &Module, carries: &BTreeMap<ValueId, Carry>, from: u64, to: u64) -> Counts {
    let mut counts = Counts::default();
    if from == to {
        return counts;
    }
    let mut search = ConstantFinder { module, constants: Constants::new(module), uses: module.uses() };
    for (id, node) in module.nodes() {
        let Some(reduction) = reduction(module, carries, id, node) else { continue };
        let mut factors = Vec::new();
        node.operands.iter().for_each(|&operand| search.before(operand, &mut factors));
        search.behind(node.results[0], &mut factors);
        let found: Vec<Match> =
            factors.iter().filter_map(|&factor| matching(factor, &reduction, from)).collect();
        if is_certain(&found, &reduction) {
            counts.settled.insert(reduction.node);
            let rebound = found
                .iter()
                .map(|found| ((found.factor.node, found.factor.operand), found.rebound(from, to)));
            counts.rebound.extend(rebound);
        } else {
            counts.warnings.extend(found.iter().map(|found| warning(module, node, found, from)));
        }
    }
    counts
}

/// Replaces the numbers by those of the new batch.
pub(super) fn apply(module: &mut Module, counts: &Counts) -> Result<Changed, TypeError> {
    let mut b = Builder::new(module, <super::Bind as crate::pass::Transform>::NAME);
    for (&(node, operand), &number) in &counts.rebound {
        let reader = b.module().node(node);
        let (origin, old) = (reader.origin.clone(), reader.operands[operand]);
        let ty = b.ty(old).clone();
        b.at(At::Before(node)).origin(origin);
        let new = b.splat(ty, number)?;
        b.set_operand(node, operand, new);
    }
    Ok(b.finish())
}

/// Returns the node as a reduction over the samples; `None` if it is none.
fn reduction(
    module: &Module,
    carries: &BTreeMap<ValueId, Carry>,
    id: NodeId,
    node: &Node,
) -> Option<Reduction> {
    let sizes = |value: ValueId| module.ty(value).sizes();
    let (is_mean, reduced, others): (bool, Vec<u64>, Vec<u64>) = match &node.op {
        Op::Reduce(Reduce { kind, dims, .. }) if matches!(kind, ReduceKind::Mean | ReduceKind::Sum) => {
            let x = node.operands[0];
            let carry = carries.get(&x).filter(|carry| dims.contains(&(carry.dim as u32)))?;
            let (mut reduced, mut others) = (vec![], vec![]);
            for (dim, size) in sizes(x)?.into_iter().enumerate() {
                if dims.contains(&(dim as u32)) {
                    reduced.push(size)
                } else {
                    others.push(size)
                }
                if dim == carry.dim && carry.minor > 1 {
                    others.push(carry.minor);
                }
            }
            (*kind == ReduceKind::Mean, reduced, others)
        }
        Op::Contract(contract) => {
            let summed = contract.roles().summed;
            let sides = [(&contract.lhs, node.operands[0]), (&contract.rhs, node.operands[1])];
            let is_over_samples = sides.iter().any(|(labels, operand)| {
                carries.get(operand).is_some_and(|carry| summed.contains(&labels.0[carry.dim]))
            });
            if !is_over_samples {
                return None;
            }
            let mut dims: BTreeMap<u8, u64> = BTreeMap::new();
            for (labels, operand) in sides {
                dims.extend(labels.0.iter().copied().zip(sizes(operand)?));
            }
            let (reduced, others): (Vec<_>, Vec<_>) =
                dims.into_iter().partition(|(label, _)| summed.contains(label));
            let size = |dims: Vec<(u8, u64)>| dims.into_iter().map(|(_, size)| size).collect();
            (false, size(reduced), size(others))
        }
        _ => return None,
    };
    let is_float = module.ty(node.results[0]).dtype.is_float();
    let count = reduced.iter().try_fold(1u64, |count, &size| count.checked_mul(size))?;
    is_float.then(|| Reduction { node: id, is_mean, count, other_sizes: others.into_iter().collect() })
}

/// Returns the formula that a factor equals. The number of elements of the reduction is tried before the number of samples.
fn matching(factor: Factor, reduction: &Reduction, samples: u64) -> Option<Match> {
    let equal = |a: f64, b: f64| b.is_finite() && (a - b).abs() <= 1e-6 * b.abs();
    let counts = [reduction.count, samples];
    let forms = [false, true].into_iter().flat_map(|inverse| Count::EACH.map(|formula| (inverse, formula)));
    let all = counts.into_iter().flat_map(|count| forms.clone().map(move |form| (count, form)));
    all.filter(|(count, _)| *count > 1).find_map(|(count, (inverse, formula))| {
        let number = if inverse { factor.number.recip() } else { factor.number };
        // A factor of 1 equals `n - 1` only as a divisor, and no other formula.
        let is_one = number == 1.0 && !(factor.divides && formula == Count::AllButOne);
        let is_it = !is_one && equal(number, formula.number(count as f64));
        is_it.then_some(Match { factor, formula, inverse, count })
    })
}

/// Whether the matches can only be numbers of samples.
fn is_certain(found: &[Match], reduction: &Reduction) -> bool {
    let multiplies =
        |formula: Count| found.iter().filter(|it| it.formula == formula && !it.divides()).count();
    let divides = |formula: Count| found.iter().filter(|it| it.formula == formula && it.divides()).count();
    let may_be_a_width = found.iter().any(|it| reduction.other_sizes.contains(&(it.factor.number as u64)));
    match (reduction.is_mean, found) {
        // A product with n and a quotient by n - 1 have no other reason.
        (true, [_, _]) => multiplies(Count::All) == 1 && divides(Count::AllButOne) == 1,
        (true, [one]) => one.formula == Count::Bessel && !one.divides() && one.count > 2,
        (false, [one]) => one.divides() && one.formula != Count::Bessel && !may_be_a_width,
        _ => false,
    }
}

fn warning(module: &Module, reduction: &Node, found: &Match, from: u64) -> Diagnostic {
    let Factor { node, operand, number, divides } = found.factor;
    let verb = if divides { "divides" } else { "multiplies" };
    let node = module.node(node);
    let name = match &module.producer(node.operands[operand]).map(|node| &node.op) {
        Some(Op::Constant(constant)) => format!("`{}` ({number})", module.data[constant.data].name),
        _ => format!("the number {number}"),
    };
    let message = format!(
        "{name} {verb} a `{}` over the samples, and may be made of the batch of {from} that the file was exported with",
        reduction.op.name()
    );
    let warning = Diagnostic::new(message);
    let warning = if node.origin.is_empty() { warning } else { warning.at(node.origin.to_string()) };
    warning.note(format!("the number stays as it is; keep the batch at {from}, or export the model with the batch of the training"))
}

/// Finds the constants around reductions.
struct ConstantFinder<'m> {
    module: &'m Module,
    constants: Constants<'m>,
    uses: cranelift_entity::SecondaryMap<ValueId, SmallVec<[NodeId; 2]>>,
}

/// The longest chain of products that is searched. An author's formulas are shorter.
const LONGEST: usize = 8;

impl ConstantFinder<'_> {
    /// Collects the factors of an operand.
    fn before(&mut self, value: ValueId, factors: &mut Vec<Factor>) {
        let mut value = value;
        for _ in 0..LONGEST {
            let Some(node) = self.module.producer(value) else { return };
            let ir::Definition::Node(id, _) = self.module.value(value).definition else { return };
            // A value that has other readers is divided for another reason.
            let is_read_once = self.uses[value].len() == 1;
            match self.step(id, node).filter(|_| is_read_once) {
                Some((next, factor)) => {
                    factors.extend(factor);
                    value = next;
                }
                None => return,
            }
        }
    }

    /// Collects the factors of a result, as long as each value has one reader.
    fn behind(&mut self, value: ValueId, factors: &mut Vec<Factor>) {
        let mut value = value;
        for _ in 0..LONGEST {
            let [reader] = self.uses[value][..] else { return };
            let node = self.module.node(reader);
            match self.step(reader, node) {
                Some((from, factor)) if from == value => {
                    factors.extend(factor);
                    value = node.results[0];
                }
                _ => return,
            }
        }
    }

    /// Returns the operand that a node multiplies, divides, moves or negates, with the constant factor if there is one.
    fn step(&mut self, id: NodeId, node: &Node) -> Option<(ValueId, Option<Factor>)> {
        match &node.op {
            op if op.movement().is_view() => Some((node.operands[0], None)),
            Op::Unary(Unary::Neg) => Some((node.operands[0], None)),
            Op::Binary(Binary::Div) => {
                let factor = self.factor(id, node, 1, true)?;
                Some((node.operands[0], Some(factor)))
            }
            Op::Binary(Binary::Mul) => {
                let operand = [1, 0].into_iter().find(|&i| self.factor(id, node, i, false).is_some())?;
                let factor = self.factor(id, node, operand, false);
                Some((node.operands[1 - operand], factor))
            }
            _ => None,
        }
    }

    /// Returns an operand as a factor, if it is a constant of one positive element.
    fn factor(&mut self, node: NodeId, of: &Node, operand: usize, divides: bool) -> Option<Factor> {
        let value = of.operands[operand];
        if self.constants.known(value) != Constness::Constant || self.module.ty(value).numel() != Some(1) {
            return None;
        }
        let number = *self.constants.value(value)?.numbers().first()?;
        (number.is_finite() && number > 0.0).then_some(Factor { node, operand, number, divides })
    }
}
