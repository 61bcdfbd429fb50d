//! Functions of numbers that are built from several IR operators: inverse trigonometric and hyperbolic functions, means of several
//! tensors, remainders; and determinants.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use super::elementwise;
use ir::ValueId;
use ir::ops::det::Det;
use ir::ops::elementwise::{Binary, Unary};

/// Acos, Acosh, Asin, Asinh, Atanh, Cosh, Sinh and Tan, by their definitions.
pub(super) fn unary(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    one(match call.op() {
        // log(x + √(x² - 1))
        "Acosh" => logarithm_with_root(cx, x, -1.0)?,
        // sign x · log(|x| + √(x² + 1)): with |x| there is no cancellation.
        "Asinh" => {
            let (sign, size) = (cx.unary(Unary::Sign, x)?, cx.unary(Unary::Abs, x)?);
            let log = logarithm_with_root(cx, size, 1.0)?;
            cx.binary(Binary::Mul, sign, log)?
        }
        // ½ log((1 + x) / (1 - x))
        "Atanh" => {
            let (above, below) = one_plus_and_minus(cx, x)?;
            let quotient = cx.binary(Binary::Div, above, below)?;
            let log = cx.unary(Unary::Log, quotient)?;
            cx.binary_with(Binary::Mul, log, 0.5)?
        }
        // 2 atan(x / (1 + √(1 - x²))) and 2 atan √((1 - x) / (1 + x)): half angles, which are accurate for all x.
        "Asin" => {
            let (above, below) = one_plus_and_minus(cx, x)?;
            let product = cx.binary(Binary::Mul, above, below)?;
            let root = cx.unary(Unary::Sqrt, product)?;
            let divisor = cx.binary_with(Binary::Add, root, 1.0)?;
            let tangent = cx.binary(Binary::Div, x, divisor)?;
            twice_the_angle(cx, tangent)?
        }
        "Acos" => {
            let (above, below) = one_plus_and_minus(cx, x)?;
            let quotient = cx.binary(Binary::Div, below, above)?;
            let tangent = cx.unary(Unary::Sqrt, quotient)?;
            twice_the_angle(cx, tangent)?
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

/// `1 + x` and `1 - x`
fn one_plus_and_minus(cx: &mut Context, x: ValueId) -> Result<(ValueId, ValueId), Problem> {
    let above = cx.binary_with(Binary::Add, x, 1.0)?;
    let unit = cx.b.splat_like(x, 1.0)?;
    Ok((above, cx.binary(Binary::Sub, unit, x)?))
}

/// `2 atan(tangent)`
fn twice_the_angle(cx: &mut Context, tangent: ValueId) -> Built {
    let angle = cx.unary(Unary::Atan, tangent)?;
    cx.binary_with(Binary::Mul, angle, 2.0)
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

/// Mod: the result has the sign of the divisor, or with `fmod` the sign of the dividend.
pub(super) fn modulo(cx: &mut Context, call: &Call) -> Outputs {
    if call.int("fmod").unwrap_or(0) == 0 {
        return elementwise::binary(cx, call);
    }
    let (x, y) = (cx.value(call, 0)?, cx.value(call, 1)?);
    if !cx.ty(x).dtype.is_float() {
        // Division of integers truncates towards zero.
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

/// Imports Det.
pub(super) fn det(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    one(cx.b.one(Det, &[x])?)
}
