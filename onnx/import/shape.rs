//! Operators that move elements: reshape and similar operators, transpose, slices, concatenation, padding; and operators that make
//! tensors from shapes.

use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem, dim, one};
use super::integers::{Int, Ints};
use ir::ops::Float;
use ir::ops::constant::Iota;
use ir::ops::shape::{Concat, Pad, Slice};
use ir::{DType, Dim, Dims, Type, ValueId, ensure};
use std::collections::BTreeSet;

/// Shape, with its range of dims (opset 15).
pub(super) fn shape(cx: &mut Context, call: &Call) -> Outputs {
    let dims: Vec<Int> = match cx.entry(call, 0)? {
        Entry::Ints(ints, _) => ints.sizes().iter().map(|&size| Int::Known(size as i64)).collect(),
        _ => {
            let x = cx.value(call, 0)?;
            cx.ty(x).dims.iter().map(Int::of).collect()
        }
    };
    let bound = |name: &str, default: i64| {
        let at = call.int(name).unwrap_or(default);
        (if at < 0 { at + dims.len() as i64 } else { at }).clamp(0, dims.len() as i64) as usize
    };
    let (start, end) = (bound("start", 0), bound("end", dims.len() as i64));
    Ok(vec![Entry::Ints(Ints::vector(dims[start..end.max(start)].to_vec()), DType::I64)])
}

/// Size: the number of elements.
pub(super) fn size(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let ty = cx.ty(x);
    let size = ty.dims.iter().try_fold(Dim::known(1), |n, dim| n.product(dim));
    let size = size.ok_or_else(|| Problem::new(format!("{ty} has too many elements to count")))?;
    Ok(vec![Entry::Ints(Ints::scalar(Int::of(&size)), DType::I64)])
}

/// Reshape: 0 keeps a dim (unless `allowzero`), and a single -1 is computed from the other sizes.
pub(super) fn reshape(cx: &mut Context, call: &Call) -> Outputs {
    let target = match call.ints("shape") {
        Some(shape) => shape.iter().map(|&n| Int::Known(n)).collect(), // opset < 5
        None => cx.shape(call, 1)?,
    };
    let allow_zero = call.int("allowzero") == Some(1);
    if let Some(ints) = cx.ints(call, 0) {
        let dtype = cx.known_dtype(call, 0);
        let from = Type::new(dtype, ints.sizes().iter().map(|&size| Dim::known(size as u64)));
        let dims = target_dims(&from, &target, allow_zero)?;
        if let Some(ints) = known_sizes(&dims).and_then(|sizes| ints.reshaped(sizes)) {
            return Ok(vec![Entry::Ints(ints, dtype)]);
        }
    }
    let x = cx.value(call, 0)?;
    let dims = target_dims(cx.ty(x), &target, allow_zero)?;
    one(cx.b.reshape(x, dims)?)
}

fn known_sizes(dims: &[Dim]) -> Option<Vec<usize>> {
    dims.iter().map(|dim| usize::try_from(dim.size()?).ok()).collect()
}

fn target_dims(from: &Type, target: &[Int], allow_zero: bool) -> Result<Dims, Problem> {
    let size = |int: &Int| int.dim().map_or_else(|| format!("{int:?}"), |dim| dim.to_string());
    let text = || target.iter().map(size).collect::<Vec<_>>().join(", ");
    let wrong = || Problem::new(format!("{from} cannot be reshaped to [{}]", text()));
    let mut dims: Vec<Option<Dim>> = Vec::new();
    for (i, int) in target.iter().enumerate() {
        dims.push(match int {
            Int::Known(-1) => None,
            Int::Known(0) if !allow_zero => Some(from.dims.get(i).ok_or_else(wrong)?.clone()),
            int => Some(int.dim().ok_or_else(wrong)?),
        });
    }
    let total = from.dims.iter().try_fold(Dim::known(1), |n, dim| n.product(dim)).ok_or_else(wrong)?;
    let given = dims.iter().flatten().try_fold(Dim::known(1), |n, dim| n.product(dim)).ok_or_else(wrong)?;
    if dims.iter().filter(|dim| dim.is_none()).count() > 1 {
        return Err(wrong());
    }
    let rest = total.quotient(&given);
    dims.into_iter().map(|dim| dim.or_else(|| rest.clone()).ok_or_else(wrong)).collect()
}

/// Flatten: reshapes to a matrix, split at `axis`.
pub(super) fn flatten(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let ty = cx.ty(x).clone();
    let axis = call.int("axis").unwrap_or(1);
    let at = if axis < 0 { axis + ty.ndim() as i64 } else { axis };
    let wrong = || Problem::new(format!("{ty} cannot be flattened at axis {axis}"));
    let at = usize::try_from(at).ok().filter(|&at| at <= ty.ndim()).ok_or_else(wrong)?;
    let product =
        |dims: &[Dim]| dims.iter().try_fold(Dim::known(1), |n, dim| n.product(dim)).ok_or_else(wrong);
    one(cx.b.reshape(x, [product(&ty.dims[..at])?, product(&ty.dims[at..])?])?)
}

/// Unsqueeze: inserts dims of size one at these places of the result.
pub(super) fn unsqueeze(cx: &mut Context, call: &Call) -> Outputs {
    let axes = cx.attribute_or_input(call, "axes", 1)?.ok_or_else(|| Problem::new("needs `axes`"))?;
    let known = cx.ints(call, 0);
    let ndim = match &known {
        Some(ints) => ints.sizes().len(),
        None => {
            let x = cx.value(call, 0)?;
            cx.ty(x).ndim()
        }
    };
    let total = ndim + axes.len();
    let places: Option<BTreeSet<u32>> = axes.iter().map(|&axis| dim(axis, total)).collect();
    let places = places.filter(|places| places.len() == axes.len());
    let places = places.ok_or_else(|| Problem::new(format!("axes {axes:?} are not dims of the result")))?;
    let is_new = |i: usize| places.contains(&(i as u32));
    if let Some(ints) = known {
        let mut old = ints.sizes().iter().copied();
        let sizes = (0..total).map(|i| if is_new(i) { 1 } else { old.next().unwrap_or(1) }).collect();
        if let Some(ints) = ints.reshaped(sizes) {
            return Ok(vec![Entry::Ints(ints, cx.known_dtype(call, 0))]);
        }
    }
    let x = cx.value(call, 0)?;
    let mut old = cx.ty(x).dims.clone().into_iter();
    let dims: Dims = (0..total)
        .map(|i| if is_new(i) { Dim::known(1) } else { old.next().unwrap_or(Dim::known(1)) })
        .collect();
    one(cx.b.reshape(x, dims)?)
}

/// Squeeze: removes these dims of size one, or all.
pub(super) fn squeeze(cx: &mut Context, call: &Call) -> Outputs {
    let axes = cx.attribute_or_input(call, "axes", 1)?;
    if let Some(ints) = cx.ints(call, 0) {
        let ty = Type::new(cx.known_dtype(call, 0), ints.sizes().iter().map(|&size| Dim::known(size as u64)));
        let kept = squeezed(&ty, axes.as_deref())?;
        if let Some(ints) = known_sizes(&kept).and_then(|sizes| ints.reshaped(sizes)) {
            return Ok(vec![Entry::Ints(ints, cx.known_dtype(call, 0))]);
        }
    }
    let x = cx.value(call, 0)?;
    let kept = squeezed(cx.ty(x), axes.as_deref())?;
    one(cx.b.reshape(x, kept)?)
}

/// Returns the dims without those at `axes`, or without all of size one.
fn squeezed(ty: &Type, axes: Option<&[i64]>) -> Result<Dims, Problem> {
    let ones = || (0..ty.ndim() as u32).filter(|&i| ty.dims[i as usize].is_one()).collect();
    let gone: BTreeSet<u32> = match axes {
        Some(axes) => axes.iter().filter_map(|&axis| dim(axis, ty.ndim())).collect(),
        None => ones(),
    };
    if let Some(axes) = axes
        && (gone.len() != axes.len() || !gone.is_subset(&ones()))
    {
        return Err(Problem::new(format!("axes {axes:?} of {ty} are not dims of size 1")));
    }
    Ok((0..ty.ndim()).filter(|&i| !gone.contains(&(i as u32))).map(|i| ty.dims[i].clone()).collect())
}

/// Transpose. Without `perm` the dims are reversed.
pub(super) fn transpose(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let ndim = cx.ty(x).ndim();
    let permutation: Vec<u32> = match call.ints("perm") {
        Some(perm) => {
            let dims = perm.iter().map(|&axis| dim(axis, ndim)).collect::<Option<_>>();
            dims.ok_or_else(|| {
                Problem::new(format!("perm {perm:?} is not a permutation of the dims of {}", cx.ty(x)))
            })?
        }
        None => (0..ndim as u32).rev().collect(),
    };
    if let Some(ints) = cx.ints(call, 0).and_then(|ints| ints.transposed(&permutation)) {
        return Ok(vec![Entry::Ints(ints, cx.known_dtype(call, 0))]);
    }
    one(cx.b.transpose(x, &permutation)?)
}

/// Expand: broadcasts in both directions.
pub(super) fn expand(cx: &mut Context, call: &Call) -> Outputs {
    let target = cx.shape(call, 1)?;
    let wrong = || Problem::new("the target shape has negative sizes");
    let dims: Dims = target.iter().map(|int| int.dim().ok_or_else(wrong)).collect::<Result<_, _>>()?;
    let ones = known_sizes(&dims).and_then(|sizes| Ints::filled(sizes, Int::Known(1)));
    if let (Some(ints), Some(ones)) = (cx.ints(call, 0), ones)
        && let Some(wide) = ints.zip(&ones, |x, _| Some(x.clone()))
    {
        return Ok(vec![Entry::Ints(wide, cx.known_dtype(call, 0))]);
    }
    let x = cx.value(call, 0)?;
    let dims = ir::types::broadcast(&cx.ty(x).dims, &dims)?;
    one(cx.b.broadcast(x, dims)?)
}

/// Imports Concat.
pub(super) fn concat(cx: &mut Context, call: &Call) -> Outputs {
    let axis = call.int("axis").unwrap_or(0);
    if let Some(ints) = joined(cx, call) {
        return Ok(vec![Entry::Ints(ints, cx.known_dtype(call, 0))]);
    }
    let values = (0..call.input_count()).map(|i| cx.value(call, i)).collect::<Result<Vec<_>, _>>()?;
    let first = *values.first().ok_or_else(|| Problem::new("the node needs at least one input"))?;
    let dim = cx.axis(first, axis)?;
    one(if values.len() == 1 { first } else { cx.b.one(Concat { dim }, &values)? })
}

/// Returns the concatenation of the inputs, if they are known vectors with few elements.
fn joined(cx: &Context, call: &Call) -> Option<Ints> {
    let mut elements = Vec::new();
    for i in 0..call.input_count() {
        let part = cx.ints(call, i).filter(|part| part.sizes().len() == 1)?;
        elements.extend_from_slice(part.elements());
        if elements.len() > Ints::LIMIT {
            return None;
        }
    }
    Ints::new(vec![elements.len()], elements)
}

/// Split: cuts parts of given or equal sizes, as slices.
pub(super) fn split(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let dim = cx.axis(x, call.int("axis").unwrap_or(0))?;
    let size = bound_size(cx, x, dim)?;
    let sizes = cx.attribute_or_input(call, "split", 1)?;
    let count = call.output_count().max(1) as u64;
    if let Some(given) = call.int("num_outputs").filter(|&given| u64::try_from(given) != Ok(count)) {
        return Err(Problem::new(format!("the node has {count} outputs, and num_outputs is {given}")));
    }
    let sizes: Vec<u64> = match sizes {
        Some(sizes) => sizes.iter().map(|&size| u64::try_from(size).unwrap_or(u64::MAX)).collect(),
        None => {
            let part = size.div_ceil(count);
            (0..count).map(|i| part.min(size.saturating_sub(i * part))).collect()
        }
    };
    ensure!(
        sizes.iter().try_fold(0u64, |sum, &part| sum.checked_add(part)) == Some(size),
        "the sizes {sizes:?} of the parts do not add up to dim {dim} of {}",
        cx.ty(x)
    );
    slices(cx, x, dim, &sizes)
}

fn slices(cx: &mut Context, x: ValueId, dim: u32, sizes: &[u64]) -> Outputs {
    let mut start = 0;
    let mut parts = Vec::new();
    for &size in sizes {
        parts.push(Entry::Value(cx.b.slice(x, dim, start, Dim::known(size))?));
        start += size;
    }
    Ok(parts)
}

fn bound_size(cx: &Context, x: ValueId, dim: u32) -> Result<u64, Problem> {
    let ty = cx.ty(x);
    ty.dims[dim as usize].size().ok_or_else(|| {
        Problem::new(format!("the slice needs the size of dim {dim} of {ty}, which is not bound"))
            .note("bind the size with --bind NAME=SIZE")
    })
}

/// Slice: starts, ends, axes and steps are attributes (before opset 10) or inputs; ends are clamped.
pub(super) fn slice(cx: &mut Context, call: &Call) -> Outputs {
    let missing = || Problem::new("the slice needs `starts` and `ends`");
    let starts = cx.attribute_or_input(call, "starts", 1)?.ok_or_else(missing)?;
    // The end may be an unbound size, if it is the whole dim.
    let ends = match call.ints("ends") {
        Some(ends) => ends.into_iter().map(Int::Known).collect(),
        None => cx.shape(call, 2)?,
    };
    let axes = cx.attribute_or_input(call, "axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = cx.attribute_or_input(call, "steps", 4)?.unwrap_or_else(|| vec![1; starts.len()]);
    ensure!(
        [ends.len(), axes.len(), steps.len()] == [starts.len(); 3],
        "starts, ends, axes and steps have different lengths"
    );
    if let Some(ints) = cx.ints(call, 0) {
        let spans = starts.iter().zip(&ends).zip(&axes).zip(&steps);
        let spans = spans.map(|(((&start, end), &axis), &step)| (start, end.known(), axis, step));
        if let Some(ints) = slice_ints(ints, spans)? {
            return Ok(vec![Entry::Ints(ints, cx.known_dtype(call, 0))]);
        }
    }
    let mut x = cx.value(call, 0)?;
    for (((&start, end), &axis), &step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
        let dim = cx.axis(x, axis)?;
        x = slice_dim(cx, x, dim, start, end, step)?;
    }
    one(x)
}

/// Slices known integers along some axes; `None` if an end is not known.
fn slice_ints(
    mut ints: Ints,
    spans: impl Iterator<Item = (i64, Option<i64>, i64, i64)>,
) -> Result<Option<Ints>, Problem> {
    for (start, end, axis, step) in spans {
        let (Some(end), Some(dim)) = (end, dim(axis, ints.sizes().len())) else { return Ok(None) };
        let (first, step, count) = span(start, end, step, ints.sizes()[dim as usize] as u64)?;
        let places: Vec<usize> = (0..count).map(|i| (first + step * i as i64) as usize).collect();
        let Some(picked) = ints.picked(dim as usize, &places) else { return Ok(None) };
        ints = picked;
    }
    Ok(Some(ints))
}

fn slice_dim(
    cx: &mut Context,
    x: ValueId,
    dim: u32,
    start: i64,
    end: &Int,
    step: i64,
) -> Result<ValueId, Problem> {
    let size = cx.ty(x).dims[dim as usize].clone();
    let whole = match end {
        Int::Known(end) => *end >= i64::from(i32::MAX),
        Int::Size(end) => *end == size,
    };
    if start == 0 && step == 1 && whole {
        return Ok(x);
    }
    let size = bound_size(cx, x, dim)?;
    let end = end.known().ok_or_else(|| {
        Problem::new("the end of the slice is a size that is not bound")
            .note("bind the size with --bind NAME=SIZE")
    })?;
    let (start, step, count) = span(start, end, step, size)?;
    let mut ty = cx.ty(x).clone();
    if step == 1 {
        return Ok(cx.b.slice(x, dim, start as u64, Dim::known(count))?);
    }
    ty.dims[dim as usize] = Dim::known(count);
    Ok(cx.b.one_typed(Slice { dim, start, step }, &[x], ty)?)
}

/// Returns the first element, the step and the number of elements of a slice of a dim, clamped as in ONNX.
fn span(start: i64, end: i64, step: i64, size: u64) -> Result<(i64, i64, u64), Problem> {
    let size = i64::try_from(size).map_err(|_| Problem::new("the dim to slice is too large"))?;
    ensure!(step != 0, "the step is 0");
    let from_end = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
    let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
    let start = from_end(start).clamp(low.max(0), high.max(0));
    let end = if step < 0 && end < -size { -1 } else { from_end(end).clamp(low, high) };
    let distance = if step > 0 { end - start } else { start - end };
    let count = if distance <= 0 { 0 } else { (distance as u64).div_ceil(step.unsigned_abs()) };
    Ok((start.min(size), step, count))
}

/// Returns the axes that a Pad changes, each with the numbers of elements that it adds before and after. Negative numbers remove elements.
pub(super) fn pads(cx: &Context, call: &Call, x: ValueId) -> Result<Vec<(i64, [i64; 2])>, Problem> {
    let pads = cx.attribute_or_input(call, "pads", 1)?.ok_or_else(|| Problem::new("needs `pads`"))?;
    let axes = cx.numbers(call, 3, "axes")?.unwrap_or_else(|| (0..cx.ty(x).ndim() as i64).collect());
    ensure!(pads.len() == 2 * axes.len(), "there are {} pads for {} dims", pads.len(), axes.len());
    let (before, after) = pads.split_at(axes.len());
    Ok(axes.into_iter().zip(before.iter().zip(after).map(|(&before, &after)| [before, after])).collect())
}

/// Pad with a constant.
pub(super) fn pad(cx: &mut Context, call: &Call) -> Outputs {
    let mut x = cx.value(call, 0)?;
    let mode = call.string("mode").unwrap_or("constant");
    ensure!(mode == "constant", "the padding mode `{mode}` is not supported here; only `constant` is");
    let value = match cx.optional(call, 2)? {
        Some(value) => super::constant_number(cx, value)
            .ok_or_else(|| Problem::new("the padding value is computed; it must be a constant"))?,
        None => call.float("value").unwrap_or(0.0),
    };
    for (axis, [before, after]) in pads(cx, call, x)? {
        let dim = cx.axis(x, axis)?;
        if (before, after) == (0, 0) {
            continue;
        }
        let size = bound_size(cx, x, dim)?;
        // Negative pads remove elements.
        let cut = |n: i64| n.min(0).unsigned_abs();
        let Some(length) = size.checked_sub(cut(before).saturating_add(cut(after))) else {
            return Err(Problem::new(format!(
                "negative padding removes more elements than dim {dim} of {} has",
                cx.ty(x)
            )));
        };
        x = cx.b.slice(x, dim, cut(before), Dim::known(length))?;
        let (before, after) = (before.max(0) as u64, after.max(0) as u64);
        let mut ty = cx.ty(x).clone();
        let padded = length.checked_add(before).and_then(|length| length.checked_add(after));
        let padded =
            padded.ok_or_else(|| Problem::new(format!("the padding makes {ty} larger than any memory")))?;
        ty.dims[dim as usize] = Dim::known(padded);
        if padded > length {
            x = cx.b.one_typed(Pad { dim, before, value: Float::new(value) }, &[x], ty)?;
        }
    }
    one(x)
}

/// Range: a scaled and shifted iota; a short one stays known.
pub(super) fn range(cx: &mut Context, call: &Call) -> Outputs {
    let first = |i: usize| cx.ints(call, i)?.elements().first().cloned();
    let (Some(start), Some(limit), Some(delta)) = (first(0), first(1), first(2)) else {
        return Err(Problem::new("the bounds of the range are computed from data, or they are not integers")
            .note("export with static shapes"));
    };
    let dtype = cx.known_dtype(call, 0);
    if let [Some(start), Some(limit), Some(delta)] = [&start, &limit, &delta].map(Int::known) {
        let (_, _, count) = match delta {
            0 => return Err(Problem::new("the step is 0")),
            delta if delta > 0 => (0, 0, (limit.saturating_sub(start).max(0) as u64).div_ceil(delta as u64)),
            delta => (0, 0, (start.saturating_sub(limit).max(0) as u64).div_ceil(delta.unsigned_abs())),
        };
        if count <= Ints::LIMIT as u64 {
            let elements = (0..count as i64).map(|i| Int::Known(start + i * delta)).collect();
            return Ok(vec![Entry::Ints(Ints::vector(elements), dtype)]);
        }
        let mut value = cx.b.one_typed(Iota { dim: 0 }, &[], Type::of(dtype, &[count]))?;
        if delta != 1 {
            value = cx.build(value * delta as f64)?;
        }
        if start != 0 {
            value = cx.build(value + start as f64)?;
        }
        return one(value);
    }
    match (start, limit, delta) {
        (Int::Known(0), Int::Size(size), Int::Known(1)) => {
            one(cx.b.one_typed(Iota { dim: 0 }, &[], Type::new(dtype, [size]))?)
        }
        _ => Err(Problem::new("the bounds of the range are sizes that are not bound")
            .note("bind the sizes with --bind NAME=SIZE")),
    }
}

/// Imports ConstantOfShape.
pub(super) fn constant_of_shape(cx: &mut Context, call: &Call) -> Outputs {
    let target = cx.shape(call, 0)?;
    let (dtype, value) = call.tensor_number("value")?.unwrap_or((DType::F32, 0.0));
    let wrong = || Problem::new("the target shape has negative sizes");
    let dims: Dims = target.iter().map(|int| int.dim().ok_or_else(wrong)).collect::<Result<_, _>>()?;
    let ints = known_sizes(&dims).and_then(|sizes| Ints::filled(sizes, Int::Known(value as i64)));
    match ints.filter(|_| !dtype.is_float()) {
        Some(ints) => Ok(vec![Entry::Ints(ints, dtype)]),
        None => one(cx.b.splat(Type::new(dtype, dims), value)?),
    }
}

/// Tile: inserts dims, broadcasts them, and merges them.
pub(super) fn tile(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let repeats = cx.numbers(call, 1, "repeats")?.ok_or_else(|| Problem::new("needs `repeats`"))?;
    let ty = cx.ty(x).clone();
    ensure!(
        repeats.len() == ty.ndim() && repeats.iter().all(|&n| n >= 0),
        "the repeats {repeats:?} do not fit {ty}"
    );
    let repeat = |i: usize| Dim::known(repeats[i] as u64);
    let apart: Dims = ty.dims.iter().flat_map(|dim| [Dim::known(1), dim.clone()]).collect();
    let wide: Dims = ty.dims.iter().enumerate().flat_map(|(i, dim)| [repeat(i), dim.clone()]).collect();
    let merged: Option<Dims> = ty.dims.iter().enumerate().map(|(i, dim)| repeat(i).product(dim)).collect();
    let merged = merged.ok_or_else(|| Problem::new(format!("{ty} repeated is too large")))?;
    let x = cx.b.reshape(x, apart)?;
    let x = cx.b.broadcast(x, wide)?;
    one(cx.b.reshape(x, merged)?)
}
