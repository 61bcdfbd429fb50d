//! Reductions built from the IR's four kinds, the extremes of bools and of empty dims, and running products.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use super::reduction::{self, Over, over};
use ir::ops::elementwise::{Compare, Select, Unary};
use ir::ops::reduce::ReduceKind;
use ir::{DType, Dim, Type, ValueId};

/// ReduceMax and ReduceMin. For bools they are "any" and "all". For no elements they give the type's smallest or largest number.
pub(super) fn extreme(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let ty = cx.ty(x).clone();
    let Some(over) = over(cx, call, x)? else { return one(x) };
    let largest = call.op() == "ReduceMax";
    if over.dims.iter().any(|&dim| ty.dims[dim as usize].size() == Some(0)) {
        let value = if largest { lowest(ty.dtype) } else { highest(ty.dtype) };
        return one(filled(cx, &ty, &over, value)?);
    }
    if ty.dtype != DType::Bool {
        return reduction::reduce(cx, call);
    }
    let kind = if largest { ReduceKind::Max } else { ReduceKind::Min };
    let numbers = cx.b.cast(x, DType::I32)?;
    let reduced = cx.reduced(kind, numbers, &over.dims)?;
    let truth = cx.b.cast(reduced, DType::Bool)?;
    one(finished(cx, truth, &over)?)
}

/// Imports ReduceL1, ReduceL2, ReduceLogSum, ReduceLogSumExp, ReduceProd and ReduceSumSquare.
pub(super) fn composed(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    // Without dims to reduce, the functions are still applied to the elements.
    let over = over(cx, call, x)?.unwrap_or(Over { dims: Default::default(), keep: true });
    let sum = |cx: &mut Context, x: ValueId| cx.reduced(ReduceKind::Sum, x, &over.dims);
    let reduced = match call.op() {
        "ReduceL1" => {
            let size = cx.build(Unary::Abs.of(x))?;
            sum(cx, size)?
        }
        "ReduceL2" => length(cx, x, &over.dims)?,
        "ReduceLogSum" => {
            let total = sum(cx, x)?;
            cx.build(Unary::Log.of(total))?
        }
        "ReduceLogSumExp" => log_sum_exp(cx, x, &over.dims)?,
        "ReduceProd" => product(cx, x, &over.dims)?,
        "ReduceSumSquare" => {
            let square = cx.build(x * x)?;
            sum(cx, square)?
        }
        other => return Err(Problem::new(format!("`{other}` is not a reduction"))),
    };
    one(finished(cx, reduced, &over)?)
}

/// `√Σ x²`
pub(super) fn length(cx: &mut Context, x: ValueId, dims: &[u32]) -> Built {
    let sum = cx.reduced(ReduceKind::Sum, x * x, dims)?;
    root_of_squares(cx, sum)
}

/// The root of a sum of squares, for norms and standard deviations. Where the sum is 0, the gradient is 0 as in PyTorch, and not
/// the quotient of two zeros.
pub(super) fn root_of_squares(cx: &mut Context, sum: ValueId) -> Built {
    let none = cx.build(Compare::Equal.of(sum, 0.0))?;
    let zero = cx.b.splat_like(sum, 0.0)?;
    cx.build(Select.of(none, zero, Unary::Sqrt.of(Select.of(none, 1.0, sum))))
}

/// Removes the reduced dims, unless they are kept.
fn finished(cx: &mut Context, reduced: ValueId, over: &Over) -> Built {
    if over.keep {
        return Ok(reduced);
    }
    let dims = cx.ty(reduced).dims.clone().into_iter().enumerate();
    let kept: Vec<Dim> =
        dims.filter(|(i, _)| !over.dims.contains(&(*i as u32))).map(|(_, dim)| dim).collect();
    Ok(cx.b.reshape(reduced, kept)?)
}

/// Builds a result of equal elements.
fn filled(cx: &mut Context, ty: &Type, over: &Over, value: f64) -> Built {
    let mut dims = ty.dims.clone();
    over.dims.iter().for_each(|&dim| dims[dim as usize] = Dim::known(1));
    let wide = cx.b.splat(Type::new(ty.dtype, dims), value)?;
    finished(cx, wide, over)
}

/// Returns the smallest number of a type.
fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::I64 => i64::MIN as f64,
        DType::I32 => i32::MIN.into(),
        DType::I16 => i16::MIN.into(),
        DType::I8 => i8::MIN.into(),
        dtype if dtype.is_float() => f64::NEG_INFINITY,
        _ => 0.0,
    }
}

/// Returns the largest number of a type.
fn highest(dtype: DType) -> f64 {
    match dtype {
        DType::I64 | DType::U64 => i64::MAX as f64,
        DType::I32 => i32::MAX.into(),
        DType::I16 => i16::MAX.into(),
        DType::I8 => i8::MAX.into(),
        DType::U32 => u32::MAX.into(),
        DType::U16 => u16::MAX.into(),
        DType::U8 => u8::MAX.into(),
        DType::Bool => 1.0,
        _ => f64::INFINITY,
    }
}

/// `log Σ eˣ`, shifted by the largest x; −∞ if every x is −∞, or if there is no x.
fn log_sum_exp(cx: &mut Context, x: ValueId, dims: &[u32]) -> Built {
    if dims.iter().any(|&dim| cx.ty(x).dims[dim as usize].size() == Some(0)) {
        let sum = cx.reduced(ReduceKind::Sum, x, dims)?;
        return cx.build(Unary::Log.of(sum));
    }
    let largest = cx.reduced(ReduceKind::Max, x, dims)?;
    let shift = cx.build(Select.of(Compare::Equal.of(largest, f64::NEG_INFINITY), 0.0, largest))?;
    let sum = cx.reduced(ReduceKind::Sum, Unary::Exp.of(x - shift), dims)?;
    cx.build(Unary::Log.of(sum) + shift)
}

/// The product over dims, by repeated halving: as many multiplications as the size has bits.
fn product(cx: &mut Context, x: ValueId, dims: &[u32]) -> Built {
    let mut x = x;
    for &dim in dims {
        let mut size = cx.bound(x, dim, "multiplies")?;
        if size == 0 {
            let mut ty = cx.ty(x).clone();
            ty.dims[dim as usize] = Dim::known(1);
            x = cx.b.splat(ty, 1.0)?;
        }
        while size > 1 {
            let half = size.div_ceil(2);
            let first = cx.b.slice(x, dim, 0, Dim::known(half))?;
            let second = cx.b.slice(x, dim, half, Dim::known(size - half))?;
            let second = cx.padded(second, dim, [0, 2 * half - size], 1.0)?;
            x = cx.build(first * second)?;
            size = half;
        }
    }
    Ok(x)
}

/// CumProd (opset 26): in each step an element is multiplied by the one twice as far back (Hillis and Steele, CACM 29(12), 1986).
pub(super) fn cumulative_product(cx: &mut Context, call: &Call) -> Outputs {
    let mut x = cx.value(call, 0)?;
    let axis = cx.numbers(call, 1, "axis")?.and_then(|axis| axis.first().copied());
    let dim = cx.axis(x, axis.ok_or_else(|| Problem::new("needs `axis`"))?)?;
    let flag = |name: &str| call.int(name).unwrap_or(0) != 0;
    let size = cx.bound(x, dim, "multiplies along")?;
    let reverse = flag("reverse");
    if flag("exclusive") && size > 0 {
        x = moved(cx, x, dim, 1, reverse)?;
    }
    let mut distance = 1;
    while distance < size {
        let earlier = moved(cx, x, dim, distance, reverse)?;
        x = cx.build(x * earlier)?;
        distance *= 2;
    }
    one(x)
}

/// Shifts the elements along a dim, towards its start if `reverse`. Ones fill the free places.
fn moved(cx: &mut Context, x: ValueId, dim: u32, distance: u64, reverse: bool) -> Built {
    let size = cx.bound(x, dim, "moves along")?;
    let rest = Dim::known(size - distance);
    let start = if reverse { distance } else { 0 };
    let kept = cx.b.slice(x, dim, start, rest)?;
    cx.padded(kept, dim, if reverse { [0, distance] } else { [distance, 0] }, 1.0)
}
