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
            let (sign, size) = (cx.build(Unary::Sign.of(x))?, cx.build(Unary::Abs.of(x))?);
            let log = logarithm_with_root(cx, size, 1.0)?;
            cx.build(sign * log)?
        }
        // ½ log((1 + x) / (1 - x))
        "Atanh" => {
            let (above, below) = one_plus_and_minus(cx, x)?;
            cx.build(Unary::Log.of(above / below) * 0.5)?
        }
        // 2 atan(x / (1 + √(1 - x²))) and 2 atan √((1 - x) / (1 + x)): half angles, which are accurate for all x.
        "Asin" => {
            let (above, below) = one_plus_and_minus(cx, x)?;
            let tangent = cx.build(x / (Unary::Sqrt.of(above * below) + 1.0))?;
            twice_the_angle(cx, tangent)?
        }
        "Acos" => {
            let (above, below) = one_plus_and_minus(cx, x)?;
            let tangent = cx.build(Unary::Sqrt.of(below / above))?;
            twice_the_angle(cx, tangent)?
        }
        "Cosh" => exponentials(cx, x, Binary::Add)?,
        "Sinh" => exponentials(cx, x, Binary::Sub)?,
        "Tan" => cx.build(Unary::Sin.of(x) / Unary::Cos.of(x))?,
        other => return Err(Problem::new(format!("`{other}` is not a function of one number"))),
    })
}

/// `1 + x` and `1 - x`
fn one_plus_and_minus(cx: &mut Context, x: ValueId) -> Result<(ValueId, ValueId), Problem> {
    let above = cx.build(x + 1.0)?;
    Ok((above, cx.build(1.0 - x)?))
}

/// `2 atan(tangent)`
fn twice_the_angle(cx: &mut Context, tangent: ValueId) -> Built {
    cx.build(Unary::Atan.of(tangent) * 2.0)
}

/// `log(x + √(x² + shift))`
fn logarithm_with_root(cx: &mut Context, x: ValueId, shift: f64) -> Built {
    cx.build(Unary::Log.of(x + Unary::Sqrt.of(x * x + shift)))
}

/// `½(eˣ op e⁻ˣ)`
fn exponentials(cx: &mut Context, x: ValueId, op: Binary) -> Built {
    let negative = cx.build(-x)?;
    cx.build(op.of(Unary::Exp.of(x), Unary::Exp.of(negative)) * 0.5)
}

/// Mean of several tensors, element by element.
pub(super) fn mean(cx: &mut Context, call: &Call) -> Outputs {
    let mut sum = cx.value(call, 0)?;
    for i in 1..call.input_count() {
        let x = cx.value(call, i)?;
        sum = cx.build(sum + x)?;
    }
    one(cx.build(sum * (1.0 / call.input_count() as f64))?)
}

/// Mod: the result has the sign of the divisor, or with `fmod` the sign of the dividend.
pub(super) fn modulo(cx: &mut Context, call: &Call) -> Outputs {
    if call.int("fmod").unwrap_or(0) == 0 {
        return elementwise::binary(cx, call);
    }
    let (x, y) = (cx.value(call, 0)?, cx.value(call, 1)?);
    if !cx.ty(x).dtype.is_float() {
        // Division of integers truncates towards zero.
        return one(cx.build(x - x / y * y)?);
    }
    // |x| mod |y| with the sign of x.
    one(cx.build(Unary::Sign.of(x) * Binary::Mod.of(Unary::Abs.of(x), Unary::Abs.of(y)))?)
}

/// Imports Det.
pub(super) fn det(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    one(cx.b.one(Det, &[x])?)
}
