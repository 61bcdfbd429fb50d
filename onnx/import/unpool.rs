//! The places of the largest elements of pooling: the second output of MaxPool, and MaxUnpool.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use super::pool::{numbers, size, spatial};
use ir::ops::elementwise::Binary;
use ir::ops::pool::{MaxPoolIndices, Windows};
use ir::ops::scatter::{ScatterElements, ScatterKind};
use ir::{DType, Dim, Type, ValueId};

/// Builds the index in the whole tensor of the largest element of each window: i64. Within a plane, elements are counted in
/// row-major order or, with `storage_order`, in column-major order.
pub(super) fn indices(cx: &mut Context, call: &Call, x: ValueId, windows: Windows) -> Built {
    let sizes: Vec<u64> = spatial(cx, x)?.map(|i| size(cx, x, i)).collect::<Result<_, _>>()?;
    let elements = area(cx, x, &sizes)?;
    let mut place = cx.b.one(MaxPoolIndices { windows }, &[x])?;
    if call.int("storage_order").unwrap_or(0) != 0 {
        place = column_major(cx, place, &sizes, elements)?;
    }
    let ty = cx.ty(x).clone();
    let sample = cx.counted(DType::I64, ty.ndim(), 0, ty.dims[0].clone())?;
    let channel = cx.counted(DType::I64, ty.ndim(), 1, ty.dims[1].clone())?;
    cx.build((sample * cx.bound(x, 1, "counts")? as f64 + channel) * elements as f64 + place)
}

/// Returns the number of elements of a plane.
fn area(cx: &Context, x: ValueId, sizes: &[u64]) -> Result<u64, Problem> {
    let area = sizes.iter().try_fold(1u64, |area, &size| area.checked_mul(size));
    area.ok_or_else(|| Problem::new(format!("{} is too large", cx.ty(x))))
}

/// Converts row-major indices in a plane to column-major indices. `stride` is the number of elements of the plane.
fn column_major(cx: &mut Context, mut place: ValueId, sizes: &[u64], mut stride: u64) -> Built {
    let mut sum = cx.b.splat_like(place, 0.0)?;
    // The index along a dim is the remainder by its size; its column-major stride is the product of the sizes before it.
    for &size in sizes.iter().rev() {
        stride /= size;
        sum = cx.build(sum + Binary::Mod.of(place, size as f64) * stride as f64)?;
        place = cx.build(place / size as f64)?;
    }
    Ok(sum)
}

/// MaxUnpool: writes the elements to their indices in the tensor that was pooled, with zeros elsewhere. An index is taken within
/// the plane of its element, whatever plane it names, so samples stay separate.
pub(super) fn max_unpool(cx: &mut Context, call: &Call) -> Outputs {
    let (x, indices) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let target = cx.numbers(call, 2, "output_shape")?;
    let count = spatial(cx, x)?.len();
    let windows = numbers(call, "kernel_shape", count, None)?;
    let strides = numbers(call, "strides", count, Some(1))?;
    let pads = numbers(call, "pads", 2 * count, Some(0))?;
    let ty = cx.ty(x).clone();
    let unpooled = |i: usize| {
        let last = size(cx, x, i)?.checked_sub(1).and_then(|last| last.checked_mul(strides[i]));
        let sum = last.and_then(|last| last.checked_add(windows[i]));
        let unpadded = sum.and_then(|sum| sum.checked_sub(pads[i])?.checked_sub(pads[count + i]));
        unpadded.ok_or_else(|| Problem::new(format!("dim {} of {ty} cannot be unpooled", i + 2)))
    };
    let sizes: Vec<u64> = (0..count).map(unpooled).collect::<Result<_, _>>()?;
    let plane = area(cx, x, &sizes)?;
    let pooled = (0..count).map(|i| size(cx, x, i)).collect::<Result<Vec<_>, _>>()?;
    let leading = ty.dims[..2].to_vec();
    let flat = |elements: u64| leading.iter().cloned().chain([Dim::known(elements)]).collect::<Vec<_>>();
    let pooled = flat(area(cx, x, &pooled)?);
    let indices = cx.b.cast(indices, DType::I64)?;
    let indices = cx.build(Binary::Mod.of(indices, plane as f64))?;
    let (indices, updates) = (cx.b.reshape(indices, pooled.clone())?, cx.b.reshape(x, pooled)?);
    let zeros = cx.b.splat(Type::new(ty.dtype, flat(plane)), 0.0)?;
    let scatter = ScatterElements { dim: 2, kind: ScatterKind::Set };
    let placed = cx.b.one(scatter, &[zeros, indices, updates])?;
    let y = cx.b.reshape(placed, leading.into_iter().chain(sizes.iter().copied().map(Dim::known)))?;
    one(match target {
        Some(target) => extended(cx, y, &target)?,
        None => y,
    })
}

/// Appends zeros up to the sizes in `output_shape`.
fn extended(cx: &mut Context, mut y: ValueId, target: &[i64]) -> Built {
    let ty = cx.ty(y).clone();
    let wrong = || Problem::new(format!("the output shape {target:?} does not fit {ty}"));
    if target.len() != ty.ndim() {
        return Err(wrong());
    }
    for (i, &target) in target.iter().enumerate() {
        let more = u64::try_from(target).ok().and_then(|target| target.checked_sub(ty.dims[i].size()?));
        let more = more.filter(|&more| i >= 2 || more == 0);
        y = cx.padded(y, i as u32, [0, more.ok_or_else(wrong)?], 0.0)?;
    }
    Ok(y)
}
