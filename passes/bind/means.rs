//! Rewrites means that are written as sums: `Σ x / n`, where n is a multiple of the exported batch, is the mean over the samples at any
//! batch. As a mean it stays correct when constants are merged.

use super::Bind;
use super::trace::{Carry, batch, find_samples};
use crate::analysis::constants::Constants;
use crate::pass::Transform;
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::{At, Builder, Changed, Module, NodeId, Op, TypeError, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// A scalar made of sums over samples, divided by their number.
struct MeanOfSums {
    division: NodeId,
    /// The sums over samples in the dividend, each with the place of the samples in its operand.
    sums: BTreeMap<ValueId, Carry>,
    /// The values between the sums and the division, sums included.
    inner: BTreeSet<ValueId>,
    /// The divisor without the number of samples in it.
    each: f64,
}

/// Rewrites every sum over samples that is divided by their number.
pub(super) fn run(module: &mut Module) -> Result<Changed, TypeError> {
    let (Ok(Some(batch)), Ok(samples)) = (batch(module), find_samples(module)) else {
        return Ok(Changed::No);
    };
    let found = decide(module, batch, &samples.carries);
    let mut b = Builder::new(module, Bind::NAME);
    for mean in found {
        let node = b.module().node(mean.division).clone();
        b.at(At::Before(mean.division)).origin(node.origin);
        let mut value = build(&mut b, &mean, batch, node.operands[0], &mut BTreeMap::new())?;
        if mean.each != 1.0 {
            value = b.build(value * (1.0 / mean.each))?;
        }
        let dims = b.ty(node.results[0]).dims.clone();
        value = b.reshape(value, dims)?;
        b.replace(node.results[0], value);
        b.remove(mean.division);
    }
    Ok(b.finish())
}

/// Finds the means. Only a division can be by the number of samples: a constant that multiplies is the author's.
fn decide(module: &Module, batch: u64, carries: &BTreeMap<ValueId, Carry>) -> Vec<MeanOfSums> {
    let mut constants = Constants::new(module);
    let mut found = Vec::new();
    for (division, node) in module.nodes() {
        let single =
            |value: ValueId| module.ty(value).numel() == Some(1) && module.ty(value).dtype.is_float();
        if node.op != Op::Binary(Binary::Div) || !node.operands.iter().all(|&value| single(value)) {
            continue;
        }
        let number = constants.value(node.operands[1]).and_then(|tensor| tensor.numbers().first().copied());
        let Some(number) = number.filter(|number| number.is_finite() && *number > 1.0) else { continue };
        let (mut sums, mut inner) = (BTreeMap::new(), BTreeSet::new());
        if !collect(module, &mut constants, carries, node.operands[0], &mut sums, &mut inner) {
            continue;
        }
        let each = number / batch as f64;
        let fits = |&sum: &ValueId| {
            let Some(elements) = operand(module, sum).and_then(|x| module.ty(x).numel()) else {
                return false;
            };
            let of_sample = elements / batch;
            // Every number is a multiple of 1, so at a batch of 1 the number must equal the number of elements.
            if batch == 1 { each == of_sample as f64 } else { of_sample.is_multiple_of(each as u64) }
        };
        if each >= 1.0 && each.fract() == 0.0 && !sums.is_empty() && sums.keys().all(fits) {
            found.push(MeanOfSums { division, sums, inner, each });
        }
    }
    found
}

/// Returns the first operand of the node that computes `value`.
fn operand(module: &Module, value: ValueId) -> Option<ValueId> {
    module.producer(value).map(|node| node.operands[0])
}

/// Finds the sums over samples in a scalar, through additions, reshapes, signs and constant factors. Returns false if the scalar has
/// any other part.
fn collect(
    module: &Module,
    constants: &mut Constants,
    carries: &BTreeMap<ValueId, Carry>,
    value: ValueId,
    sums: &mut BTreeMap<ValueId, Carry>,
    inner: &mut BTreeSet<ValueId>,
) -> bool {
    if !inner.insert(value) {
        return true;
    }
    let Some(node) = module.producer(value) else { return false };
    let parts: &[ValueId] = match &node.op {
        Op::Reduce(Reduce { kind: ReduceKind::Sum, dims, .. }) => {
            let carry = carries.get(&node.operands[0]).copied();
            let carry = carry.filter(|carry| dims.contains(&(carry.dim as u32)));
            let carry = carry.filter(|_| module.ty(value).dtype.is_float());
            return carry.map(|carry| sums.insert(value, carry)).is_some();
        }
        Op::Binary(Binary::Add | Binary::Sub) => &node.operands,
        Op::Reshape(_) | Op::Unary(Unary::Neg) => &node.operands,
        Op::Binary(Binary::Mul | Binary::Div) if constants.value(node.operands[1]).is_some() => {
            &node.operands[..1]
        }
        Op::Binary(Binary::Mul) if constants.value(node.operands[0]).is_some() => &node.operands[1..],
        _ => return false,
    };
    parts.iter().all(|&part| collect(module, constants, carries, part, sums, inner))
}

/// Builds a value in which each sum over samples is replaced by the mean of the samples' own sums. `built` has the finished values.
fn build(
    b: &mut Builder,
    mean: &MeanOfSums,
    batch: u64,
    value: ValueId,
    built: &mut BTreeMap<ValueId, ValueId>,
) -> Result<ValueId, TypeError> {
    if !mean.inner.contains(&value) {
        return Ok(value);
    }
    if let Some(&done) = built.get(&value) {
        return Ok(done);
    }
    let Some(node) = b.module().producer(value).cloned() else { return Ok(value) };
    if let (Some(carry), Op::Reduce(reduce)) = (mean.sums.get(&value), &node.op) {
        let dim = carry.dim as u32;
        let others = reduce.dims.iter().copied().filter(|&other| other != dim);
        let others = Reduce { kind: ReduceKind::Sum, dims: others.collect(), keep: true };
        let x = node.operands[0];
        let along = b.ty(x).dims[carry.dim].size().unwrap_or(batch) / batch;
        let summed = if others.dims.is_empty() { x } else { b.one(others, &[x])? };
        let over = Reduce { kind: ReduceKind::Mean, dims: [dim].into_iter().collect(), keep: true };
        let each = b.one(over, &[summed])?;
        let each = if along == 1 { each } else { b.build(each * along as f64)? };
        let dims = b.ty(value).dims.clone();
        let done = b.reshape(each, dims)?;
        built.insert(value, done);
        return Ok(done);
    }
    let operands = node.operands.iter().map(|&operand| build(b, mean, batch, operand, built));
    let operands: Vec<ValueId> = operands.collect::<Result<_, _>>()?;
    let ty = b.ty(value).clone();
    let done = b.one_typed(node.op, &operands, ty)?;
    built.insert(value, done);
    Ok(done)
}
