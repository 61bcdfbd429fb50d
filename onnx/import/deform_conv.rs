//! DeformConv (Dai et al., arXiv 1703.06211; with a mask: Zhu et al., arXiv 1811.11168): a convolution whose windows read their
//! elements at computed places.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use super::conv::{numbers, with_bias};
use super::sampling::{Interpolation, Outside, folded, neighbours, read};
use ir::ops::contract::Contract;
use ir::ops::elementwise::Binary;
use ir::{DType, Dim, Tensor, ValueId};

/// The sizes of a deformable convolution.
struct Sizes {
    batch: Dim,
    /// The number of groups of channels that are convolved separately.
    groups: Dim,
    /// The number of groups of channels that are read at the same places.
    sharing: Dim,
    /// The number of elements of a window.
    taps: u64,
    /// The number of windows.
    positions: u64,
    /// For each spatial dim, the places of the elements of the first window.
    first: Vec<Vec<f64>>,
    /// For each spatial dim, the distance of each window from the first window.
    windows: Vec<Vec<f64>>,
}

/// `y[n, o, t] = Σ_{i, k} x[n, i, t·stride + k·dilation - before + offset[n, k, t]] · mask[n, k, t] · weight[o, i, k]`, with
/// linear interpolation between elements, and zeros outside.
pub(super) fn deform_conv(cx: &mut Context, call: &Call) -> Outputs {
    let (x, weight, offset) = (cx.value(call, 0)?, cx.value(call, 1)?, cx.value(call, 2)?);
    let (image, kernel, moves) = (cx.ty(x).clone(), cx.ty(weight).clone(), cx.ty(offset).clone());
    let sizes = Sizes::of(cx, call, x, weight, offset)?;
    let wrong = || Problem::new(format!("image {image}, weight {kernel} and offsets {moves} do not fit"));
    let (rows, shared) =
        (sizes.batch.product(&sizes.sharing).ok_or_else(wrong)?, image.dims[1].quotient(&sizes.sharing));
    let shared = shared.ok_or_else(wrong)?;
    let space = image.dims[2..].iter().cloned();
    let grouped =
        cx.b.reshape(x, [rows.clone(), shared.clone()].into_iter().chain(space).collect::<Vec<_>>())?;
    let read = moved_columns(cx, grouped, offset, &sizes, &rows)?;
    let column = [rows, Dim::known(sizes.taps * sizes.positions), Dim::known(1)];
    let read = match cx.optional(call, 4)? {
        Some(mask) => {
            let mask = cx.b.reshape(mask, column)?;
            cx.build(read * mask)?
        }
        None => read,
    };
    let (taps, positions) = (Dim::known(sizes.taps), Dim::known(sizes.positions));
    let apart = [&sizes.batch, &sizes.sharing, &taps, &positions, &shared].map(Clone::clone);
    let apart = cx.b.reshape(read, apart)?;
    let channels = cx.b.transpose(apart, &[0, 1, 4, 2, 3])?;
    let taken = kernel.dims[1].clone();
    let columns = [&sizes.batch, &sizes.groups, &taken, &taps, &positions].map(Clone::clone);
    let columns = cx.b.reshape(channels, columns)?;
    let made = kernel.dims[0].quotient(&sizes.groups).ok_or_else(wrong)?;
    let matrix = cx.b.reshape(weight, [sizes.groups, made, taken, taps])?;
    let y = cx.b.one(Contract::new("ngikp,gmik->ngmp"), &[columns, matrix])?;
    let out = [sizes.batch, kernel.dims[0].clone()].into_iter().chain(moves.dims[2..].iter().cloned());
    let y = cx.b.reshape(y, out.collect::<Vec<_>>())?;
    let bias = cx.optional(call, 3)?;
    one(with_bias(cx, bias, y)?)
}

/// Returns the elements that windows read, by linear interpolation: `[rows, taps·positions, channels]`.
fn moved_columns(cx: &mut Context, x: ValueId, offset: ValueId, sizes: &Sizes, rows: &Dim) -> Built {
    let (taps, positions, depth) = (sizes.taps, sizes.positions, sizes.first.len());
    let dtype = cx.ty(offset).dtype;
    let offsets =
        cx.b.reshape(offset, [rows.clone(), taps.into(), Dim::known(depth as u64), positions.into()])?;
    let places = [rows.clone(), Dim::known(taps * positions)];
    let mut along = Vec::new();
    for dim in 0..depth {
        let offset = cx.b.slice(offsets, 2, dim as u64, Dim::known(1))?;
        let offset = cx.without(offset, 2)?;
        let first =
            cx.computed(Tensor::float(DType::F64, vec![taps as usize, 1], sizes.first[dim].clone()))?;
        let windows =
            cx.computed(Tensor::float(DType::F64, vec![1, positions as usize], sizes.windows[dim].clone()))?;
        let (first, windows) = (cx.b.cast(first, dtype)?, cx.b.cast(windows, dtype)?);
        let place = cx.b.reshape(offset + (first + windows), places.clone())?;
        let size = cx.bound(x, dim as u32 + 2, "samples")?;
        along.push(neighbours(cx, place, size, Interpolation::Linear, Outside::Zeros)?);
    }
    let terms = read(cx, x, None, &along, &places)?;
    folded(cx, Binary::Add, terms)
}

impl Sizes {
    fn of(cx: &Context, call: &Call, x: ValueId, weight: ValueId, offset: ValueId) -> Result<Self, Problem> {
        let (image, kernel, moves) = (cx.ty(x), cx.ty(weight), cx.ty(offset));
        let wrong = || Problem::new(format!("image {image}, weight {kernel} and offsets {moves} do not fit"));
        let depth = image.ndim().checked_sub(2).filter(|&depth| depth > 0).ok_or_else(wrong)?;
        if kernel.ndim() != image.ndim() || moves.ndim() != image.ndim() || moves.dims[0] != image.dims[0] {
            return Err(wrong());
        }
        let group = |name: &str| match call.int(name) {
            None => Ok(Dim::known(1)),
            Some(n) => u64::try_from(n).ok().filter(|&n| n > 0).map(Dim::known).ok_or_else(wrong),
        };
        let (groups, sharing) = (group("group")?, group("offset_group")?);
        if call.ints("kernel_shape").is_some_and(|given| {
            !given.iter().map(|&size| u64::try_from(size).ok()).eq(kernel.dims[2..].iter().map(Dim::size))
        }) {
            return Err(wrong());
        }
        let (strides, dilations) =
            (numbers(call, "strides", depth, 1)?, numbers(call, "dilations", depth, 1)?);
        let pads = numbers(call, "pads", 2 * depth, 0)?;
        let bound = |value: ValueId| {
            (0..depth).map(|dim| cx.bound(value, dim as u32 + 2, "convolves")).collect::<Result<Vec<_>, _>>()
        };
        let (space, windows, out) = (bound(x)?, bound(weight)?, bound(offset)?);
        for dim in 0..depth {
            let extent =
                windows[dim].checked_sub(1).and_then(|n| n.checked_mul(dilations[dim])?.checked_add(1));
            let padded = space[dim].checked_add(pads[dim]).and_then(|n| n.checked_add(pads[dim + depth]));
            let room = padded.and_then(|padded| padded.checked_sub(extent?));
            if room.map(|room| room / strides[dim] + 1) != Some(out[dim]) {
                return Err(wrong());
            }
        }
        let count = |sizes: &[u64]| {
            let count = sizes.iter().try_fold(1u64, |n, &size| n.checked_mul(size));
            count.filter(|&n| n > 0 && n <= Context::MOST_COMPUTED).ok_or_else(wrong)
        };
        let (taps, positions) = (count(&windows)?, count(&out)?);
        let asked = sharing.product(&Dim::known(taps * depth as u64));
        if asked.as_ref() != Some(&moves.dims[1])
            || kernel.dims[1].product(&groups).as_ref() != Some(&image.dims[1])
        {
            return Err(wrong());
        }
        let tap = |dim: usize| coordinates(&windows, dim, |k| (k * dilations[dim]) as f64 - pads[dim] as f64);
        let window = |dim: usize| coordinates(&out, dim, |t| (t * strides[dim]) as f64);
        let (first, windows) = ((0..depth).map(tap).collect(), (0..depth).map(window).collect());
        Ok(Self { batch: image.dims[0].clone(), groups, sharing, taps, positions, first, windows })
    }
}

/// Returns `number` of the coordinate in a dim, for each position in row-major order.
fn coordinates(sizes: &[u64], dim: usize, number: impl Fn(u64) -> f64) -> Vec<f64> {
    let (count, inner): (u64, u64) = (sizes.iter().product(), sizes[dim + 1..].iter().product());
    (0..count).map(|position| number(position / inner % sizes[dim])).collect()
}
