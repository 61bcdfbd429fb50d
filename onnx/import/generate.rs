//! Tensors that are determined by sizes: ranges, windows of signals, grids of coordinates.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use super::shape;
use ir::ops::constant::Iota;
use ir::ops::contract::Contract;
use ir::{DType, Dim, Tensor, Type, ensure};
use std::f64::consts::TAU;

/// Range. Integers are built by `shape`, floats as `start + i·delta`.
pub(super) fn range(cx: &mut Context, call: &Call) -> Outputs {
    if (0..3).all(|i| cx.ints(call, i).is_some()) {
        return shape::range(cx, call);
    }
    let mut bounds = [0.0; 3];
    let mut dtype = DType::F32;
    for (i, bound) in bounds.iter_mut().enumerate() {
        let value = cx.value(call, i)?;
        dtype = cx.ty(value).dtype;
        *bound = super::constant_number(cx, value).ok_or_else(|| {
            Problem::new("the bounds of the range are computed from data").note("export with static shapes")
        })?;
    }
    let [start, limit, delta] = bounds;
    let count = ((limit - start) / delta).ceil().max(0.0);
    ensure!(
        count.is_finite() && count < u32::MAX.into(),
        "the range from {start} to {limit} by {delta} has too many elements"
    );
    let places = cx.b.one_typed(Iota { dim: 0 }, &[], Type::of(dtype, &[count as u64]))?;
    one(cx.build(places * delta + start)?)
}

/// BlackmanWindow, HammingWindow and HannWindow: sums of cosines, over a period (by default) or symmetric.
pub(super) fn window(cx: &mut Context, call: &Call) -> Outputs {
    let size = cx.numbers(call, 0, "size")?.and_then(|size| size.first().copied());
    let size = size.and_then(|size| u64::try_from(size).ok()).filter(|&size| size <= Context::MOST_COMPUTED);
    let size = size.ok_or_else(|| Problem::new("the size of the window is 0 or too large"))?;
    let weights: [f64; 3] = match call.op() {
        "BlackmanWindow" => [0.42, -0.5, 0.08],
        "HammingWindow" => [25.0 / 46.0, -21.0 / 46.0, 0.0],
        "HannWindow" => [0.5, -0.5, 0.0],
        other => return Err(Problem::new(format!("`{other}` is not a window function"))),
    };
    let dtype =
        if call.int("output_datatype").is_some() { call.dtype("output_datatype")? } else { DType::F32 };
    let periodic = call.int("periodic").unwrap_or(1) != 0;
    let period = (if periodic { size } else { size.saturating_sub(1) }).max(1) as f64;
    let at = |i: u64| {
        let angle = TAU * i as f64 / period;
        weights.iter().zip(0u8..).map(|(weight, n)| weight * (angle * f64::from(n)).cos()).sum()
    };
    let numbers: Vec<f64> = (0..size).map(at).collect();
    let window = cx.computed(Tensor::float(DType::F64, vec![numbers.len()], numbers))?;
    one(cx.b.cast(window, dtype)?)
}

/// AffineGrid: the source of each position of an image (or volume), computed by a matrix per sample.
pub(super) fn affine_grid(cx: &mut Context, call: &Call) -> Outputs {
    let theta = cx.value(call, 0)?;
    let ty = cx.ty(theta).clone();
    let size = cx.numbers(call, 1, "size")?.ok_or_else(|| Problem::new("needs `size`"))?;
    let wrong = || Problem::new(format!("a grid of {size:?} does not fit {ty}"));
    let sizes: Vec<u64> =
        size.iter().map(|&n| u64::try_from(n)).collect::<Result<_, _>>().map_err(|_| wrong())?;
    let space = sizes.get(2..).filter(|space| matches!(space.len(), 2 | 3)).ok_or_else(wrong)?;
    let (depth, count) = (space.len() as u64, space.iter().try_fold(1u64, |n, &size| n.checked_mul(size)));
    let count = count.filter(|count| count.saturating_mul(depth + 1) <= Context::MOST_COMPUTED);
    let count = count.ok_or_else(wrong)?;
    if ty.dims[..] != [Dim::known(sizes[0]), Dim::known(depth), Dim::known(depth + 1)] {
        return Err(wrong());
    }
    let grid = positions(space, call.int("align_corners").unwrap_or(0) != 0);
    let grid = Tensor::float(DType::F64, vec![count as usize, depth as usize + 1], grid);
    let grid = computed_as(cx, grid, ty.dtype)?;
    let moved = cx.b.one(Contract::new("pk,nik->npi"), &[grid, theta])?;
    let dims = [sizes[0]].into_iter().chain(space.iter().copied()).chain([depth]).map(Dim::known);
    one(cx.b.reshape(moved, dims)?)
}

/// Returns, for each position in row-major order, its coordinates in -1..1, the last dim first, followed by 1.
fn positions(space: &[u64], align_corners: bool) -> Vec<f64> {
    let coordinate = |i: u64, size: u64| match (align_corners, size) {
        (true, 1) => -1.0,
        (true, size) => -1.0 + 2.0 * i as f64 / (size - 1) as f64,
        (false, size) => -1.0 + (2.0 * i as f64 + 1.0) / size as f64,
    };
    let mut out = Vec::new();
    for position in 0..space.iter().product::<u64>() {
        let mut rest = position;
        for &size in space.iter().rev() {
            out.push(coordinate(rest % size, size));
            rest /= size;
        }
        out.push(1.0);
    }
    out
}

/// Adds a computed tensor, converted to an element type.
fn computed_as(cx: &mut Context, tensor: Tensor, dtype: DType) -> Built {
    let value = cx.computed(tensor)?;
    Ok(cx.b.cast(value, dtype)?)
}
