//! Normalisations over dims other than the last, built from the layer norm of the IR or from several operators.

use super::arithmetic::Built;
use super::call::Call;
use super::composed_reduction::length;
use super::context::{Context, Outputs, Problem, one};
use ir::ops::Float;
use ir::ops::elementwise::{Binary, Compare, Select, Unary};
use ir::ops::norm::LayerNorm;
use ir::ops::reduce::ReduceKind;
use ir::{Dim, Type, ValueId};

/// The number that MeanVarianceNormalization adds to the standard deviation.
const DEVIATION_FLOOR: f64 = 1e-9;

/// The largest supported window of channels.
const MOST_WINDOW: u64 = 256;

/// GroupNormalization (Wu and He, arXiv 1803.08494). Scale and bias have one element per group up to opset 20, and one per channel
/// from opset 21 on.
pub(super) fn group_norm(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let groups = call.int("num_groups").and_then(|n| u64::try_from(n).ok()).filter(|&n| n > 0);
    let groups = Dim::known(groups.ok_or_else(|| Problem::new("the number of groups is missing"))?);
    let channels = channels(cx.ty(x))?;
    let width = channels.quotient(&groups);
    let width = width
        .ok_or_else(|| Problem::new(format!("{channels} channels cannot be divided into {groups} groups")))?;
    let mut affine = [cx.value(call, 1)?, cx.value(call, 2)?];
    if cx.ty(affine[0]).dims[..] == [groups.clone()] && groups != channels {
        for value in &mut affine {
            let column = cx.b.reshape(*value, [groups.clone(), Dim::known(1)])?;
            let wide = cx.b.broadcast(column, [groups.clone(), width.clone()])?;
            *value = cx.b.reshape(wide, [channels.clone()])?;
        }
    }
    one(by_groups(cx, call, x, groups, affine)?)
}

/// InstanceNormalization (Ulyanov et al., arXiv 1607.08022): each channel is a group.
pub(super) fn instance_norm(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let channels = channels(cx.ty(x))?;
    let affine = [cx.value(call, 1)?, cx.value(call, 2)?];
    one(by_groups(cx, call, x, channels, affine)?)
}

/// Returns the number of channels: the size of dim 1.
fn channels(ty: &Type) -> Result<Dim, Problem> {
    let channels = ty.dims.get(1).cloned();
    channels.ok_or_else(|| {
        Problem::new(format!("the operand needs a dim for the batch and a dim for the channels; it is {ty}"))
    })
}

/// Normalises groups of channels over all their elements, then scales and shifts each channel.
fn by_groups(cx: &mut Context, call: &Call, x: ValueId, groups: Dim, affine: [ValueId; 2]) -> Built {
    let ty = cx.ty(x).clone();
    let inner = ty.dims[1..].iter().try_fold(Dim::known(1), |n, dim| n.product(dim));
    let width = inner.and_then(|inner| inner.quotient(&groups));
    let width = width.ok_or_else(|| Problem::new(format!("{ty} cannot be divided into {groups} groups")))?;
    let flat = cx.b.reshape(x, [ty.dims[0].clone(), groups, width.clone()])?;
    let vector = Type::new(ty.dtype, [width]);
    let (unit, zero) = (cx.b.splat(vector.clone(), 1.0)?, cx.b.splat(vector, 0.0)?);
    let eps = Float::new(call.float("epsilon").unwrap_or(1e-5));
    let normal = cx.b.push(LayerNorm { eps }, &[flat, unit, zero])?[0];
    let normal = cx.b.reshape(normal, ty.dims.clone())?;
    let [scale, bias] = affine.map(|value| by_channel(cx, value, &ty));
    cx.build(normal * scale? + bias?)
}

/// Reshapes a vector over channels so that it broadcasts to `like`.
fn by_channel(cx: &mut Context, value: ValueId, like: &Type) -> Built {
    let value = cx.b.cast(value, like.dtype)?;
    let ones = std::iter::repeat_n(Dim::known(1), like.ndim() - 2);
    let dims: Vec<Dim> = [like.dims[1].clone()].into_iter().chain(ones).collect();
    Ok(cx.b.reshape(value, dims)?)
}

/// MeanVarianceNormalization: `(x - mean) / (deviation + 1e-9)` over the axes.
pub(super) fn mean_variance(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let axes = call.ints("axes").unwrap_or_else(|| vec![0, 2, 3]);
    let dims: Vec<u32> = axes.iter().map(|&axis| cx.axis(x, axis)).collect::<Result<_, _>>()?;
    let mean = cx.reduced(ReduceKind::Mean, x, &dims)?;
    let centred = cx.build(x - mean)?;
    let variance = cx.reduced(ReduceKind::Mean, centred * centred, &dims)?;
    one(cx.build(centred / (Unary::Sqrt.of(variance) + DEVIATION_FLOOR))?)
}

/// LpNormalization: division by the norm along a dim. Zeros stay zeros.
pub(super) fn lp_norm(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let dim = cx.axis(x, call.int("axis").unwrap_or(-1))?;
    let norm = match call.int("p").unwrap_or(2) {
        1 => cx.reduced(ReduceKind::Sum, Unary::Abs.of(x), &[dim])?,
        2 => length(cx, x, &[dim])?,
        p => return Err(Problem::new(format!("a norm of order {p} is not supported; 1 and 2 are"))),
    };
    one(cx.build(x / Select.of(Compare::Equal.of(norm, 0.0), 1.0, norm))?)
}

/// LRN (Krizhevsky et al. 2012, section 3.3): `x / (bias + α/size · Σ x²)^β`, where the sum is over the channels around each
/// channel.
pub(super) fn local_response(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    channels(cx.ty(x))?;
    let size = call.int("size").and_then(|n| u64::try_from(n).ok()).filter(|n| (1..=MOST_WINDOW).contains(n));
    let size = size.ok_or_else(|| {
        Problem::new(format!(
            "a window of {:?} channels is not supported; 1 to {MOST_WINDOW} channels are",
            call.int("size")
        ))
    })?;
    let square = cx.build(x * x)?;
    let (before, count) = ((size - 1) / 2, cx.ty(x).dims[1].clone());
    let around = cx.padded(square, 1, [before, size - 1 - before], 0.0)?;
    let mut sum = cx.b.slice(around, 1, 0, count.clone())?;
    for i in 1..size {
        let next = cx.b.slice(around, 1, i, count.clone())?;
        sum = cx.build(sum + next)?;
    }
    let scaled = cx.build(sum * (call.float("alpha").unwrap_or(1e-4) / size as f64))?;
    let shifted = cx.build(scaled + call.float("bias").unwrap_or(1.0))?;
    one(cx.build(x * Binary::Pow.of(shifted, -call.float("beta").unwrap_or(0.75)))?)
}
