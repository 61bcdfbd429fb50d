//! Operators that rearrange elements: blocks of space and depth, reversed sequences, triangles, borders.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use super::shape;
use ir::ops::elementwise::{Compare, Select};
use ir::ops::indexing::{Gather, GatherElements};
use ir::{DType, Dim, Tensor, Type, ValueId, ensure};

/// SpaceToDepth and DepthToSpace: `blocksize` × `blocksize` positions become channels, or the reverse.
pub(super) fn space_and_depth(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let ty = cx.ty(x).clone();
    let blocksize = call.int("blocksize").ok_or_else(|| Problem::new("the node has no `blocksize`"))?;
    let wrong = || Problem::new(format!("{ty} cannot be divided into blocks of {blocksize}"));
    let block = u64::try_from(blocksize).ok().filter(|&n| n > 0).map(Dim::known).ok_or_else(wrong)?;
    let [batch, channels, height, width] = &ty.dims[..] else { return Err(wrong()) };
    let depth_first = match call.string("mode").unwrap_or("DCR") {
        "DCR" => true,
        "CRD" => false,
        other => return Err(Problem::new(format!("the mode `{other}` is neither DCR nor CRD"))),
    };
    let area = block.product(&block).ok_or_else(wrong)?;
    let (split, permutation, merged) = if call.op() == "DepthToSpace" {
        let rest = channels.quotient(&area).ok_or_else(wrong)?;
        let larger = |dim: &Dim| dim.product(&block).ok_or_else(wrong);
        let merged = [batch.clone(), rest.clone(), larger(height)?, larger(width)?];
        let (block, height, width) = (block.clone(), height.clone(), width.clone());
        if depth_first {
            ([batch.clone(), block.clone(), block, rest, height, width], [0, 3, 4, 1, 5, 2], merged)
        } else {
            ([batch.clone(), rest, block.clone(), block, height, width], [0, 1, 4, 2, 5, 3], merged)
        }
    } else {
        let (height, width) =
            (height.quotient(&block).ok_or_else(wrong)?, width.quotient(&block).ok_or_else(wrong)?);
        let merged =
            [batch.clone(), channels.product(&area).ok_or_else(wrong)?, height.clone(), width.clone()];
        let split = [batch.clone(), channels.clone(), height, block.clone(), width, block.clone()];
        (split, if depth_first { [0, 3, 5, 1, 2, 4] } else { [0, 1, 3, 5, 2, 4] }, merged)
    };
    let apart = cx.b.reshape(x, split)?;
    let moved = cx.b.transpose(apart, &permutation)?;
    one(cx.b.reshape(moved, merged)?)
}

/// ReverseSequence: reverses the first `sequence_lens` elements in time of each batch entry.
pub(super) fn reverse_sequence(cx: &mut Context, call: &Call) -> Outputs {
    let (x, lengths) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let ty = cx.ty(x).clone();
    let batch = cx.axis(x, call.int("batch_axis").unwrap_or(1))?;
    let time = cx.axis(x, call.int("time_axis").unwrap_or(0))?;
    let mut along: Vec<Dim> = vec![Dim::known(1); ty.ndim()];
    along[batch as usize] = ty.dims[batch as usize].clone();
    let lengths = cx.b.cast(lengths, DType::I64)?;
    let lengths = cx.b.reshape(lengths, along)?;
    let places = cx.counted(DType::I64, ty.ndim(), time, ty.dims[time as usize].clone())?;
    let places = cx.build(Select.of(Compare::Less.of(places, lengths), lengths - 1.0 - places, places))?;
    let places = cx.b.broadcast(places, ty.dims)?;
    one(cx.b.one(GatherElements { dim: time }, &[x, places])?)
}

/// Trilu: keeps one side of the diagonal `k` in the last two dims, with zeros elsewhere.
pub(super) fn triangle(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let k = cx.numbers(call, 1, "k")?.and_then(|k| k.first().copied()).unwrap_or(0);
    let upper = call.int("upper").unwrap_or(1) != 0;
    let distance = distance(cx, &cx.ty(x).clone(), k)?;
    let side = if upper { Compare::GreaterEqual } else { Compare::LessEqual };
    let kept = cx.build(side.of(distance, 0.0))?;
    one(cx.build(Select.of(kept, x, 0.0))?)
}

/// EyeLike: a matrix with the dims of another, with ones on the diagonal `k`.
pub(super) fn eye_like(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let ty = cx.ty(x).clone();
    let dtype = if call.int("dtype").is_some() { call.dtype("dtype")? } else { ty.dtype };
    let distance = distance(cx, &ty, call.int("k").unwrap_or(0))?;
    one(cx.build(Compare::Equal.of(distance, 0.0).cast(dtype))?)
}

/// Builds the distance of each element of a matrix to the right of the diagonal `k`: i64, with leading dims of size one.
fn distance(cx: &mut Context, ty: &Type, k: i64) -> Built {
    let ndim = ty.ndim();
    ensure!(ndim >= 2, "the operand must be a matrix; it is {ty}");
    let row = cx.counted(DType::I64, ndim, ndim as u32 - 2, ty.dims[ndim - 2].clone())?;
    let column = cx.counted(DType::I64, ndim, ndim as u32 - 1, ty.dims[ndim - 1].clone())?;
    cx.build(column - row - k as f64)
}

/// CenterCropPad: cuts or pads each dim evenly on both sides; padding is zeros.
pub(super) fn center_crop_pad(cx: &mut Context, call: &Call) -> Outputs {
    let mut x = cx.value(call, 0)?;
    let target = cx.numbers(call, 1, "shape")?.ok_or_else(|| Problem::new("needs `shape`"))?;
    let axes = call.ints("axes").unwrap_or_else(|| (0..cx.ty(x).ndim() as i64).collect());
    ensure!(axes.len() == target.len(), "there are {} sizes for {} axes", target.len(), axes.len());
    for (&axis, &target) in axes.iter().zip(&target) {
        let dim = cx.axis(x, axis)?;
        let size = cx.bound(x, dim, "crops")?;
        let target = u64::try_from(target)
            .map_err(|_| Problem::new(format!("the target size {target} is not valid")))?;
        x = if target <= size {
            cx.b.slice(x, dim, (size - target) / 2, Dim::known(target))?
        } else {
            let more = target - size;
            cx.padded(x, dim, [more / 2, more - more / 2], 0.0)?
        };
    }
    one(x)
}

/// Pad: with a constant, the border's element (`edge`), the mirrored elements (`reflect`), or the elements from the other end
/// (`wrap`).
pub(super) fn pad(cx: &mut Context, call: &Call) -> Outputs {
    let mode = call.string("mode").unwrap_or("constant");
    let source: fn(i64, i64) -> i64 = match mode {
        "constant" => return shape::pad(cx, call),
        "edge" => |i, size| i.clamp(0, size - 1),
        "reflect" => |i, size| {
            let period = (2 * (size - 1)).max(1);
            let i = i.rem_euclid(period);
            i.min(period - i).min(size - 1)
        },
        "wrap" => i64::rem_euclid,
        other => return Err(Problem::new(format!("the padding mode `{other}` is unknown"))),
    };
    let mut x = cx.value(call, 0)?;
    for (axis, pads) in shape::pads(cx, call, x)? {
        let dim = cx.axis(x, axis)?;
        x = bordered(cx, x, dim, pads, source)?;
    }
    one(x)
}

/// Reads a dim with a border; `source` returns the place to read for a place in the border.
fn bordered(
    cx: &mut Context,
    x: ValueId,
    dim: u32,
    [before, after]: [i64; 2],
    source: fn(i64, i64) -> i64,
) -> Built {
    if [before, after] == [0, 0] {
        return Ok(x);
    }
    let size = cx.bound(x, dim, "pads")?;
    let wrong = || {
        Problem::new(format!(
            "dim {dim} of {} cannot be padded by {before} before and {after} after",
            cx.ty(x)
        ))
    };
    let size = i64::try_from(size).ok().filter(|&size| size > 0).ok_or_else(wrong)?;
    let start = before.checked_neg().ok_or_else(wrong)?;
    let end = size.checked_add(after).ok_or_else(wrong)?;
    let count = end.checked_sub(start).and_then(|count| u64::try_from(count).ok());
    if count.is_none_or(|count| count > Context::MOST_COMPUTED) {
        return Err(wrong());
    }
    let places: Vec<i64> = (start..end).map(|i| source(i, size)).collect();
    let places = cx.computed(Tensor::int(DType::I64, vec![places.len()], places))?;
    Ok(cx.b.one(Gather { dim }, &[x, places])?)
}
