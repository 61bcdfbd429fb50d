//! Functions of numbers that are formulas of the core's: hyperbolic ones, means of several tensors, remainders, shifts.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use super::elementwise;
use ir::ops::elementwise::{Binary, Compare, Logical, Unary};
use ir::{DType, ValueId};

/// Acosh, Asinh, Atanh, Cosh, Sinh and Tan, by their definitions.
pub(super) fn unary(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    one(match call.op() {
        // log(x + √(x² - 1))
        "Acosh" => logarithm_with_root(cx, x, -1.0)?,
        // sign x · log(|x| + √(x² + 1)): of |x|, so that nothing cancels.
        "Asinh" => {
            let (sign, size) = (cx.unary(Unary::Sign, x)?, cx.unary(Unary::Abs, x)?);
            let log = logarithm_with_root(cx, size, 1.0)?;
            cx.binary(Binary::Mul, sign, log)?
        }
        // ½ log((1 + x) / (1 - x))
        "Atanh" => {
            let above = cx.binary_with(Binary::Add, x, 1.0)?;
            let unit = cx.b.splat_like(x, 1.0)?;
            let below = cx.binary(Binary::Sub, unit, x)?;
            let quotient = cx.binary(Binary::Div, above, below)?;
            let log = cx.unary(Unary::Log, quotient)?;
            cx.binary_with(Binary::Mul, log, 0.5)?
        }
        "Cosh" => exponentials(cx, x, Binary::Add)?,
        "Sinh" => exponentials(cx, x, Binary::Sub)?,
        "Tan" => {
            let (sin, cos) = (cx.unary(Unary::Sin, x)?, cx.unary(Unary::Cos, x)?);
            cx.binary(Binary::Div, sin, cos)?
        }
        other => return Err(Problem::new(format!("`{other}` is not a function of one number"))),
    })
}

/// `log(x + √(x² + shift))`
fn logarithm_with_root(cx: &mut Context, x: ValueId, shift: f64) -> Built {
    let square = cx.binary(Binary::Mul, x, x)?;
    let shifted = cx.binary_with(Binary::Add, square, shift)?;
    let root = cx.unary(Unary::Sqrt, shifted)?;
    let sum = cx.binary(Binary::Add, x, root)?;
    cx.unary(Unary::Log, sum)
}

/// `½(eˣ op e⁻ˣ)`
fn exponentials(cx: &mut Context, x: ValueId, op: Binary) -> Built {
    let negative = cx.unary(Unary::Neg, x)?;
    let (rising, falling) = (cx.unary(Unary::Exp, x)?, cx.unary(Unary::Exp, negative)?);
    let both = cx.binary(op, rising, falling)?;
    cx.binary_with(Binary::Mul, both, 0.5)
}

/// Mean of several tensors, element by element.
pub(super) fn mean(cx: &mut Context, call: &Call) -> Outputs {
    let mut sum = cx.value(call, 0)?;
    for i in 1..call.input_count() {
        let x = cx.value(call, i)?;
        sum = cx.binary(Binary::Add, sum, x)?;
    }
    one(cx.binary_with(Binary::Mul, sum, 1.0 / call.input_count() as f64)?)
}

/// Mod: with the sign of the divisor, or with `fmod` that of the dividend.
pub(super) fn modulo(cx: &mut Context, call: &Call) -> Outputs {
    if call.int("fmod").unwrap_or(0) == 0 {
        return elementwise::binary(cx, call);
    }
    let (x, y) = (cx.value(call, 0)?, cx.value(call, 1)?);
    if !cx.ty(x).dtype.is_float() {
        // Integers divide towards zero.
        let quotient = cx.binary(Binary::Div, x, y)?;
        let product = cx.binary(Binary::Mul, quotient, y)?;
        return one(cx.binary(Binary::Sub, x, product)?);
    }
    // |x| mod |y| with the sign of x.
    let (sign, dividend, divisor) =
        (cx.unary(Unary::Sign, x)?, cx.unary(Unary::Abs, x)?, cx.unary(Unary::Abs, y)?);
    let rest = cx.binary(Binary::Mod, dividend, divisor)?;
    one(cx.binary(Binary::Mul, sign, rest)?)
}

/// BitShift, as a product or a quotient by a power of two. An amount that is negative or not below the width gives 0
/// (or, shifting a negative number right, -1).
pub(super) fn bit_shift(cx: &mut Context, call: &Call) -> Outputs {
    let (x, amount) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let dtype = cx.ty(x).dtype;
    if !dtype.is_integer() {
        return Err(Problem::new(format!("shifts {}, not integers", cx.ty(x))));
    }
    // In 64 bits, so that a power of two beyond the type is not wrapped to 0.
    let wide = if dtype == DType::U64 { dtype } else { DType::I64 };
    let (x, amount) = (cx.b.cast(x, wide)?, cx.b.cast(amount, wide)?);
    let two = cx.b.splat_like(x, 2.0)?;
    let power = cx.binary(Binary::Pow, two, amount)?;
    let shifted = match call.string("direction") {
        Some("LEFT") => cx.binary(Binary::Mul, x, power)?,
        Some("RIGHT") => shifted_right(cx, x, amount, power)?,
        other => {
            let other = other.unwrap_or("nowhere");
            return Err(Problem::new(format!("shifts {other}, which is neither LEFT nor RIGHT")));
        }
    };
    one(cx.b.cast(shifted, dtype)?)
}

/// `⌊x / 2ⁿ⌋`; by a negative amount, or beyond 62 bits, where the power has no positive i64, the sign alone is left.
fn shifted_right(cx: &mut Context, x: ValueId, amount: ValueId, power: ValueId) -> Built {
    let rest = cx.binary(Binary::Mod, x, power)?;
    let whole = cx.binary(Binary::Sub, x, rest)?;
    let quotient = cx.binary(Binary::Div, whole, power)?;
    let beyond = cx.compare_with(Compare::Greater, amount, 62.0)?;
    let before = cx.compare_with(Compare::Less, amount, 0.0)?;
    let beyond = cx.b.one(Logical::Or, &[beyond, before])?;
    let negative = cx.compare_with(Compare::Less, x, 0.0)?;
    let zero = cx.b.splat_like(x, 0.0)?;
    let sign = cx.binary_with(Binary::Sub, zero, 1.0)?;
    let sign = cx.choose(negative, sign, zero)?;
    cx.choose(beyond, sign, quotient)
}

/// BitwiseNot: `-x - 1`, in two's complement.
pub(super) fn bitwise_not(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    if !cx.ty(x).dtype.is_integer() {
        return Err(Problem::new(format!("inverts the bits of {}, which is not integers", cx.ty(x))));
    }
    let zero = cx.b.splat_like(x, 0.0)?;
    let negative = cx.binary(Binary::Sub, zero, x)?;
    one(cx.binary_with(Binary::Sub, negative, 1.0)?)
}
