//! Pooling. Dilations and the rounding up of sizes (`ceil_mode`) exist from opset 10 on for MaxPool, and from 19 on for
//! AveragePool. Padding computed from sizes (`auto_pad`) and rounding up are converted to explicit padding here.

use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem, one};
use super::unpool;
use ir::ops::Float;
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::pool::{AvgPool, MaxPool, Window, Windows};
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::ops::shape::Pad;
use ir::{DType, Dim, Op, Type, ValueId, ensure};

/// MaxPool. Integers are pooled as floats, which represent all of ONNX's integer types for pooling exactly.
pub(super) fn max_pool(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let dtype = cx.ty(x).dtype;
    let x = if dtype.is_float() { x } else { cx.b.cast(x, DType::F32)? };
    let windows = Sliding::of(cx, call, x)?.padded();
    let y = slid(cx, MaxPool { windows: windows.clone() }, x)?;
    let mut outputs = one(cx.b.cast(y, dtype)?)?;
    if call.output(1).is_some() {
        outputs.push(Entry::Value(unpool::indices(cx, call, x, windows)?));
    }
    Ok(outputs)
}

/// GlobalMaxPool: one window over all dims after the channel.
pub(super) fn global_max_pool(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let spatial = spatial(cx, x)?;
    let windows = (0..spatial.len()).map(|i| size(cx, x, i).map(Window::of)).collect::<Result<_, _>>()?;
    one(cx.b.one(MaxPool { windows }, &[x])?)
}

/// Imports AveragePool.
pub(super) fn average_pool(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let sliding = Sliding::of(cx, call, x)?;
    let count_padding = call.int("count_include_pad") == Some(1);
    one(average(cx, x, sliding, count_padding)?)
}

/// Builds the mean of each window. Padding counts if requested, but elements added by rounding up never count.
fn average(
    cx: &mut Context,
    mut x: ValueId,
    sliding: Sliding,
    count_padding: bool,
) -> Result<ValueId, Problem> {
    if !count_padding || sliding.beyond.iter().all(|&beyond| beyond == 0) {
        return slid(cx, AvgPool { windows: sliding.padded(), count_padding }, x);
    }
    // Zeros that count are added as ordinary elements.
    let mut windows = sliding.windows;
    let first = cx.ty(x).ndim() - windows.len();
    for (i, (window, beyond)) in windows.iter_mut().zip(sliding.beyond).enumerate() {
        x = zeros_around(cx, x, first + i, window.before, window.after)?;
        (window.before, window.after) = (0, beyond);
    }
    slid(cx, AvgPool { windows, count_padding: false }, x)
}

/// Builds pooling over dims whose sizes windows may change, so that they must be bound.
fn slid(cx: &mut Context, pooling: impl Into<Op>, x: ValueId) -> Result<ValueId, Problem> {
    let unbound = cx.ty(x).dims.iter().skip(2).any(|dim| dim.size().is_none());
    cx.b.one(pooling, &[x]).map_err(|error| match Problem::from(error) {
        problem if unbound => problem.note("bind the sizes with --bind NAME=SIZE"),
        problem => problem,
    })
}

fn zeros_around(
    cx: &mut Context,
    x: ValueId,
    dim: usize,
    before: u64,
    after: u64,
) -> Result<ValueId, Problem> {
    if (before, after) == (0, 0) {
        return Ok(x);
    }
    let mut ty = Type::new(cx.ty(x).dtype, cx.ty(x).dims.clone());
    let padded = ty.dims[dim].size().and_then(|size| size.checked_add(before)?.checked_add(after));
    ty.dims[dim] =
        Dim::known(padded.ok_or_else(|| Problem::new(format!("dim {dim} of {ty} cannot be padded")))?);
    let pad = Pad { dim: dim as u32, before, value: Float::new(0.0) };
    Ok(cx.b.one_typed(pad, &[x], ty)?)
}

/// GlobalLpPool: `(Σ |x|ᵖ)^(1/p)` over all dims after the channel.
pub(super) fn global_lp_pool(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let dims = spatial(cx, x)?.map(|i| i as u32 + 2).collect();
    let p = order(call)?;
    let size = cx.build(Unary::Abs.of(x))?;
    let powers = power(cx, size, p)?;
    let sum = cx.b.one(Reduce { kind: ReduceKind::Sum, dims, keep: true }, &[powers])?;
    one(power(cx, sum, 1.0 / p)?)
}

/// Returns the order of a norm.
fn order(call: &Call) -> Result<f64, Problem> {
    match call.int("p").unwrap_or(2) {
        p if p < 1 => Err(Problem::new(format!("the norm has order {p}; the order must be at least 1"))),
        p => Ok(p as f64),
    }
}

/// LpPool: `(Σ |x|ᵖ)^(1/p)` over each window.
pub(super) fn lp_pool(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let windows = Sliding::of(cx, call, x)?.padded();
    let p = order(call)?;
    let covered: f64 = windows.iter().map(|window| window.size as f64).product();
    let size = cx.build(Unary::Abs.of(x))?;
    let powers = power(cx, size, p)?;
    let mean = cx.b.one(AvgPool { windows, count_padding: true }, &[powers])?;
    let sum = cx.build(mean * covered)?;
    one(power(cx, sum, 1.0 / p)?)
}

fn power(cx: &mut Context, x: ValueId, exponent: f64) -> Result<ValueId, Problem> {
    if exponent == 1.0 {
        return Ok(x);
    }
    cx.build(Binary::Pow.of(x, exponent))
}

/// Returns the range of the dims after batch and channels.
pub(super) fn spatial(cx: &Context, x: ValueId) -> Result<std::ops::Range<usize>, Problem> {
    let ty = cx.ty(x);
    ensure!(ty.ndim() >= 3, "pooling needs dims after the batch and the channels, and {ty} has none");
    Ok(0..ty.ndim() - 2)
}

/// Returns the size of a spatial dim.
pub(super) fn size(cx: &Context, x: ValueId, i: usize) -> Result<u64, Problem> {
    let ty = cx.ty(x);
    let unbound =
        || Problem::new(format!("pooling needs the size of dim {} of {ty}, which is not bound", i + 2));
    ty.dims[i + 2].size().ok_or_else(|| unbound().note("bind the dim with --bind NAME=SIZE"))
}

/// Sliding windows with explicit padding.
#[derive(Clone, Debug, PartialEq)]
struct Sliding {
    /// The windows, with the padding of the model.
    windows: Windows,
    /// The number of further elements after each dim, by which sizes are rounded up.
    beyond: Vec<u64>,
}

impl Sliding {
    /// Reads a node's attributes.
    fn of(cx: &Context, call: &Call, x: ValueId) -> Result<Self, Problem> {
        let count = spatial(cx, x)?.len();
        let sizes = numbers(call, "kernel_shape", count, None)?;
        let strides = numbers(call, "strides", count, Some(1))?;
        let dilations = numbers(call, "dilations", count, Some(1))?;
        let pads = numbers(call, "pads", 2 * count, Some(0))?;
        let auto = call.string("auto_pad").unwrap_or("NOTSET");
        let rounds_up = call.int("ceil_mode") == Some(1) && auto == "NOTSET";
        let mut sliding = Self { windows: Windows::new(), beyond: vec![0; count] };
        for i in 0..count {
            let (before, after) = if auto == "NOTSET" { (pads[i], pads[count + i]) } else { (0, 0) };
            let window = Window { size: sizes[i], stride: strides[i], dilation: dilations[i], before, after };
            sliding.windows.push(match auto {
                "NOTSET" | "VALID" => window,
                "SAME_UPPER" | "SAME_LOWER" => same(window, size(cx, x, i)?, auto == "SAME_LOWER")?,
                other => return Err(Problem::new(format!("the padding mode `{other}` is unknown"))),
            });
            if rounds_up && window.stride > 1 {
                sliding.beyond[i] = beyond(window, size(cx, x, i)?).ok_or_else(|| too_large(window))?;
            }
        }
        Ok(sliding)
    }

    /// Returns the windows with both kinds of padding added.
    fn padded(mut self) -> Windows {
        for (window, beyond) in self.windows.iter_mut().zip(self.beyond) {
            window.after = window.after.saturating_add(beyond);
        }
        self.windows
    }
}

fn too_large(window: Window) -> Problem {
    Problem::new(format!("the window is not valid: {window:?}"))
}

/// Returns a list of `count` sizes; each is `default` if the attribute is left out.
pub(super) fn numbers(
    call: &Call,
    name: &str,
    count: usize,
    default: Option<u64>,
) -> Result<Vec<u64>, Problem> {
    let wrong = || Problem::new(format!("`{name}` must be {count} sizes"));
    let Some(given) = call.ints(name) else {
        return default.map(|default| vec![default; count]).ok_or_else(wrong);
    };
    let sizes: Option<Vec<u64>> = given.iter().map(|&n| u64::try_from(n).ok()).collect();
    sizes.filter(|sizes| sizes.len() == count).ok_or_else(wrong)
}

/// Pads a window so that it has ⌈size / stride⌉ positions. An odd element is added at the end or, with `lower`, at the start.
fn same(window: Window, size: u64, lower: bool) -> Result<Window, Problem> {
    let needed = || {
        let last =
            size.checked_add(window.stride.checked_sub(1)?)?.checked_div(window.stride)?.checked_sub(1)?;
        Some(last.checked_mul(window.stride)?.checked_add(window.extent()?)?.saturating_sub(size))
    };
    let needed = needed().ok_or_else(|| too_large(window))?;
    let (less, more) = (needed / 2, needed - needed / 2);
    let (before, after) = if lower { (more, less) } else { (less, more) };
    Ok(Window { before, after, ..window })
}

/// Returns the number of elements beyond the padding that the last position covers when sizes are rounded up. This position must
/// begin within the dim or the padding before it (in ONNX from opset 19 on, in PyTorch always).
fn beyond(window: Window, size: u64) -> Option<u64> {
    let padded = size.checked_add(window.before)?.checked_add(window.after)?;
    let extent = window.extent()?;
    let last = padded.checked_sub(extent)?.checked_add(window.stride - 1)?.checked_div(window.stride)?;
    let start = last.checked_mul(window.stride)?;
    if start >= size.checked_add(window.before)? {
        return Some(0);
    }
    Some(start.checked_add(extent)?.saturating_sub(padded))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(size: u64, stride: u64, pads: (u64, u64)) -> Window {
        Window { stride, before: pads.0, after: pads.1, ..Window::of(size) }
    }

    #[test]
    fn sizes_are_rounded_up_to_windows_that_begin_within() {
        for (window, size, expected) in [
            (window(3, 2, (0, 0)), 4, 1),
            (window(3, 2, (0, 0)), 5, 0),
            (window(3, 3, (1, 1)), 4, 0),
            (window(2, 2, (0, 0)), 7, 1),
            // A further position would begin after the dim.
            (window(1, 3, (0, 0)), 5, 0),
            // A further position would begin in the padding after the dim.
            (window(2, 2, (1, 1)), 5, 0),
        ] {
            assert_eq!(beyond(window, size), Some(expected), "{window:?} over {size}");
        }
    }

    #[test]
    fn the_same_size_is_padded_on_both_sides() {
        let pads = |window, size, lower| same(window, size, lower).map(|w| (w.before, w.after)).unwrap();
        assert_eq!(pads(window(3, 1, (0, 0)), 5, false), (1, 1));
        assert_eq!(pads(window(2, 1, (0, 0)), 5, false), (0, 1));
        assert_eq!(pads(window(2, 1, (0, 0)), 5, true), (1, 0));
        assert_eq!(pads(window(1, 2, (0, 0)), 5, true), (0, 0));
        assert!(same(window(1, 0, (0, 0)), 5, true).is_err());
    }
}
