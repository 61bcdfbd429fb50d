//! The largest and smallest elements along a dim, their places, and one-hot tensors of places.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem, one};
use ir::ops::elementwise::{Compare, Select};
use ir::ops::indexing::GatherElements;
use ir::ops::ranking::TopK;
use ir::ops::reduce::ReduceKind;
use ir::{DType, Dim, ValueId};

/// ArgMax and ArgMin: the first or last place of the extreme.
pub(super) fn arg_extreme(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let dim = cx.axis(x, call.int("axis").unwrap_or(0))?;
    let kind = if call.op() == "ArgMax" { ReduceKind::Max } else { ReduceKind::Min };
    let last = call.int("select_last_index").unwrap_or(0) != 0;
    let place = place(cx, x, dim, kind, last)?;
    let keep = call.int("keepdims").unwrap_or(1) != 0;
    one(if keep { place } else { cx.without(place, dim)? })
}

/// Builds the place of the extreme along a dim, which is kept with size one: i64.
fn place(cx: &mut Context, x: ValueId, dim: u32, kind: ReduceKind, last: bool) -> Built {
    let ty = cx.ty(x).clone();
    let size = cx.bound(x, dim, "searches")?;
    let x = if ty.dtype == DType::Bool { cx.b.cast(x, DType::I32)? } else { x };
    let extreme = cx.reduced(kind, x, &[dim])?;
    let hit = cx.build(Compare::Equal.of(x, extreme))?;
    let places = cx.counted(DType::I64, ty.ndim(), dim, Dim::known(size))?;
    let (outside, pick) = if last { (-1.0, ReduceKind::Max) } else { (size as f64, ReduceKind::Min) };
    cx.reduced(pick, Select.of(hit, places, outside), &[dim])
}

/// Hardmax: one at the first largest element, else zero. Before opset 13 all dims from `axis` on are flattened.
pub(super) fn hardmax(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let ty = cx.ty(x).clone();
    let flat = call.opset() < 13;
    let axis = cx.axis(x, call.int("axis").unwrap_or(if flat { 1 } else { -1 }))?;
    let wide = if flat {
        let row = ty.dims[axis as usize..].iter().try_fold(Dim::known(1), |n, dim| n.product(dim));
        let row = row.ok_or_else(|| Problem::new(format!("{ty} is too large")))?;
        let dims: Vec<Dim> = ty.dims[..axis as usize].iter().cloned().chain([row]).collect();
        cx.b.reshape(x, dims)?
    } else {
        x
    };
    let place = place(cx, wide, axis, ReduceKind::Max, false)?;
    let (ndim, size) = (cx.ty(wide).ndim(), cx.ty(wide).dims[axis as usize].clone());
    let places = cx.counted(DType::I64, ndim, axis, size)?;
    one(cx.b.reshape(Compare::Equal.of(places, place).cast(ty.dtype), ty.dims)?)
}

/// TopK: the k largest (or smallest) elements along a dim, sorted, and their indices. Equal elements keep their order.
pub(super) fn top_k(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let dim = cx.axis(x, call.int("axis").unwrap_or(-1))?;
    let size = cx.bound(x, dim, "ranks")?;
    let count = match call.int("k") {
        Some(k) => Some(k), // opset 1
        None => cx.numbers(call, 1, "k")?.and_then(|k| k.first().copied()),
    };
    let count = count.and_then(|k| u64::try_from(k).ok()).filter(|&k| k <= size);
    let count = count.ok_or_else(|| Problem::new(format!("k is larger than dim {dim} of {}", cx.ty(x))))?;
    let largest = call.int("largest").unwrap_or(1) != 0;
    let places = cx.b.one(TopK { dim, count, largest }, &[x])?;
    let values = cx.b.one(GatherElements { dim }, &[x, places])?;
    Ok(vec![Entry::Value(values), Entry::Value(places)])
}

/// Builds the first of the largest elements along a dim, or of the smallest. The dim is kept with size one.
pub(super) fn first_extreme(cx: &mut Context, x: ValueId, dim: u32, largest: bool) -> Built {
    let place = cx.b.one(TopK { dim, count: 1, largest }, &[x])?;
    Ok(cx.b.one(GatherElements { dim }, &[x, place])?)
}

/// OneHot: adds a dim of classes at `axis`, with `on` at the index and `off` elsewhere.
pub(super) fn one_hot(cx: &mut Context, call: &Call) -> Outputs {
    let indices = cx.value(call, 0)?;
    // The depth may have any type, also a float type.
    let depth = cx.value(call, 1)?;
    let depth = super::constant_number(cx, depth).map(|depth| depth as i64).filter(|&depth| depth > 0);
    let depth = depth.ok_or_else(|| {
        Problem::new("the number of classes is computed from data").note("export the number as a constant")
    })?;
    let values = cx.value(call, 2)?;
    let total = cx.ty(indices).ndim() + 1;
    let axis = call.int("axis").unwrap_or(-1);
    let dim = super::context::dim(axis, total);
    let dim = dim.ok_or_else(|| Problem::new(format!("axis {axis} is not a dim of the result")))?;
    // Negative indices count from the end. Indices outside select no class.
    let indices = cx.b.cast(indices, DType::I64)?;
    let indices = cx.build(Select.of(Compare::Less.of(indices, 0.0), indices + depth as f64, indices))?;
    let indices = cx.with_dim(indices, dim)?;
    let classes = cx.counted(DType::I64, total, dim, Dim::known(depth as u64))?;
    let hit = cx.build(Compare::Equal.of(indices, classes))?;
    let mut pick = |at: u64| -> Built {
        let value = cx.b.slice(values, 0, at, Dim::known(1))?;
        Ok(cx.b.reshape(value, [])?)
    };
    let (off, on) = (pick(0)?, pick(1)?);
    one(cx.build(Select.of(hit, on, off))?)
}
