//! Functions of two numbers.

use super::super::*;
use super::cast::wrap;
use super::conditions::{Compare, Logical, Select};
use super::unary::{
    FRAC_2_SQRT_PI, GELU_TANH_CUBE, GELU_TANH_SCALE, SQRT_2, Unary, gelu_tanh_inner, normal_cdf, sigmoid,
};
use super::{gathered, kinds, same_dtype, zip};
use crate::ops::list::Kinds;
use crate::tensor::Elements;
use crate::types::broadcast;
use crate::{DType, Formula};

kinds! {
    /// A function of two numbers of the same type.
    Binary {
        /// `x + y`
        Add "add",
        /// `x - y`
        Sub "sub",
        /// `x · y`
        Mul "mul",
        /// `x / y`; integers truncate towards zero.
        Div "div",
        /// `xʸ`
        Pow "pow",
        /// The larger of the two. Equal operands get half of the gradient each.
        Max "max",
        /// The smaller of the two. Equal operands get half of the gradient each.
        Min "min",
        /// A lower bound: `x`, but `y` where `x < y`. Where they are equal, the gradient goes to `y`.
        AtLeast "at_least",
        /// An upper bound: `x`, but `y` where `x > y`. Where they are equal, the gradient goes to `y`.
        AtMost "at_most",
        /// `x - y·⌊x/y⌋`, with the sign of `y`. If `y` is infinite, the result is `x` or `y`, whichever has the sign of `y`.
        Mod "mod",
        /// Gradient of `gelu` at x, times y.
        GeluGrad "gelu_grad",
        /// Gradient of `gelu_tanh` at x, times y.
        GeluTanhGrad "gelu_tanh_grad",
        /// Gradient of `silu` at x, times y.
        SiluGrad "silu_grad",
        /// y where x > 0, else 0.
        ReluGrad "relu_grad",
    }
}

impl Binary {
    /// Applies the function to two numbers.
    pub fn scalar(self, x: f64, y: f64) -> f64 {
        match self {
            Self::Add => x + y,
            Self::Sub => x - y,
            Self::Mul => x * y,
            Self::Div => x / y,
            Self::Pow => x.powf(y),
            // Unlike `f64::max`, NaN is propagated.
            Self::Max | Self::Min | Self::AtLeast | Self::AtMost if x.is_nan() || y.is_nan() => f64::NAN,
            Self::Max | Self::AtLeast => x.max(y),
            Self::Min | Self::AtMost => x.min(y),
            Self::Mod => modulo(x, y),
            Self::GeluGrad => {
                y * (normal_cdf(x) + x * (-0.5 * x * x).exp() * FRAC_2_SQRT_PI / (2.0 * SQRT_2))
            }
            Self::GeluTanhGrad => {
                let tanh = gelu_tanh_inner(x).tanh();
                let slope = GELU_TANH_SCALE * (1.0 + 3.0 * GELU_TANH_CUBE * x * x);
                y * (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope)
            }
            Self::SiluGrad => {
                let s = sigmoid(x);
                y * s * (1.0 + x * (1.0 - s))
            }
            Self::ReluGrad => {
                if x > 0.0 {
                    y
                } else {
                    0.0
                }
            }
        }
    }

    /// Applies the function to two integers, wrapping. Division by zero gives 0.
    pub fn integer(self, x: i64, y: i64) -> i64 {
        match self {
            Self::Add => x.wrapping_add(y),
            Self::Sub => x.wrapping_sub(y),
            Self::Mul => x.wrapping_mul(y),
            Self::Div => x.checked_div(y).unwrap_or(0),
            Self::Mod => x.checked_rem_euclid(y).map_or(0, |r| if y < 0 && r != 0 { r + y } else { r }),
            Self::Max | Self::AtLeast => x.max(y),
            Self::Min | Self::AtMost => x.min(y),
            Self::Pow => u32::try_from(y).map_or(0, |y| x.wrapping_pow(y)),
            Self::GeluGrad | Self::GeluTanhGrad | Self::SiluGrad | Self::ReluGrad => 0,
        }
    }

    fn float_only(self) -> bool {
        matches!(self, Self::GeluGrad | Self::GeluTanhGrad | Self::SiluGrad | Self::ReluGrad)
    }
}

/// Returns the modulus as in Python and numpy: the exact remainder of truncating division, plus `y` if its sign differs from
/// `y`'s.
fn modulo(x: f64, y: f64) -> f64 {
    let rest = x % y;
    if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }
}

/// The gradients of `out = xʸ`: `y·xʸ⁻¹` for x, `xʸ·ln x` for y.
///
/// In two cases a product is zero times infinity although the gradient is 0, which PyTorch returns: the gradient of x where y is
/// 0, and the gradient of y where x is 0 and y is not negative.
fn power_gradient(
    b: &mut Builder,
    [x, y]: [ValueId; 2],
    out: ValueId,
    dout: ValueId,
) -> Result<(Formula, Formula), TypeError> {
    let (one, zero) = (b.splat_like(y, 1.0)?, b.splat_like(y, 0.0)?);
    let mut slope = b.build(y * Binary::Pow.of(x, y - one))?;
    if b.module().splat_number(y).is_none_or(|number| number == 0.0) {
        slope = b.build(Select.of(Compare::Equal.of(y, zero), zero, slope))?;
    }
    let rate = b.build(out * Unary::Log.of(x))?;
    let stays_zero = Logical::And.of(Compare::Equal.of(x, zero), Compare::GreaterEqual.of(y, zero));
    let rate = b.build(Select.of(stays_zero, zero, rate))?;
    Ok((slope * dout, rate * dout))
}

impl Operator for Binary {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Lhs, OperandRole::Rhs]).anywhere(match self {
            // Powers leave the range of half.
            Self::Pow => PrecisionClass::Full,
            Self::Add | Self::Sub | Self::Mul | Self::Div | Self::Mod => PrecisionClass::Follow,
            Self::Max | Self::Min | Self::AtLeast | Self::AtMost => PrecisionClass::Follow,
            Self::GeluGrad | Self::GeluTanhGrad | Self::SiluGrad | Self::ReluGrad => PrecisionClass::Follow,
        })
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x, y] = same_dtype(types)?;
        if x.dtype == DType::Bool || (self.float_only() && !x.dtype.is_float()) {
            return Err(TypeError::new(format!("does not take {x} and {y}")));
        }
        Ok(vec![Type::new(x.dtype, broadcast(&x.dims, &y.dims)?)])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        let factors = Factors::elementwise(signature);
        match self {
            Self::Add | Self::Sub => factors.linear_in(&[0, 1]).keeping_zeros(),
            Self::Mul => factors.linear_in(&[0]).linear_in(&[1]).keeping_zeros(),
            // Integers truncate, which is not linear.
            Self::Div if signature.operands[0].dtype.is_float() => factors.linear_in(&[0]),
            Self::GeluGrad | Self::GeluTanhGrad | Self::SiluGrad | Self::ReluGrad => factors.linear_in(&[1]),
            Self::Div | Self::Pow | Self::Mod => factors,
            Self::Max | Self::Min | Self::AtLeast | Self::AtMost => factors,
        }
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let (x, y, out) = (node.operands[0], node.operands[1], node.results[0]);
        let Some(dout) = d[0] else { return Ok(vec![None, None]) };
        if !b.ty(out).dtype.is_float() {
            return Ok(vec![None, None]);
        }
        let (dx, dy): (Formula, Formula) = match self {
            Self::Add => (dout.into(), dout.into()),
            Self::Sub => (dout.into(), -dout),
            Self::Mul => (dout * y, dout * x),
            // d(x/y) = dx/y - (x/y)/y dy
            Self::Div => {
                let dx = b.build(dout / y)?;
                (dx.into(), -(dx * out))
            }
            Self::Pow => power_gradient(b, [x, y], out, dout)?,
            Self::Max | Self::Min => {
                let is_first = if *self == Self::Max { Compare::Greater } else { Compare::Less };
                let first = b.one(is_first, &[x, y])?;
                let equal = b.build(Compare::Equal.of(x, y))?;
                let (zero, half) = (b.splat_like(dout, 0.0)?, b.build(dout * 0.5)?);
                let [unless_x, unless_y] = [zero, dout].map(|other| b.build(Select.of(equal, half, other)));
                (Select.of(first, dout, unless_x?), Select.of(first, zero, unless_y?))
            }
            Self::AtLeast | Self::AtMost => {
                let is_inside = if *self == Self::AtLeast { Compare::Greater } else { Compare::Less };
                let inside = b.one(is_inside, &[x, y])?;
                let zero = b.splat_like(dout, 0.0)?;
                (Select.of(inside, dout, zero), Select.of(inside, zero, dout))
            }
            // x mod y = x - n·y, where the whole number n is constant around the point.
            Self::Mod => (dout.into(), -(dout * Unary::Round.of((x - out) / y))),
            Self::GeluGrad | Self::GeluTanhGrad | Self::SiluGrad | Self::ReluGrad => {
                return Err(GradientError::SECOND);
            }
        };
        let [dx, dy] = [b.build(dx)?, b.build(dy)?];
        Ok(vec![Some(b.sum_to_like(dx, x)?), Some(b.sum_to_like(dy, y)?)])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        let flops = if self.float_only() || *self == Self::Pow { 20 } else { 1 };
        Cost::per_element(signature, &signature.results[0], flops)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let sizes = cx.sizes(0);
        let [x, y] = [0, 1].map(|i| gathered(cx.operands[i], &sizes));
        let elements = match (&*x, &*y) {
            (Elements::Float(x), Elements::Float(y)) => Elements::Float(zip(x, y, |x, y| self.scalar(x, y))),
            (Elements::Int(x), Elements::Int(y)) => {
                let dtype = cx.results[0].dtype;
                Elements::Int(zip(x, y, |x, y| wrap(dtype, self.integer(x, y))))
            }
            _ => unreachable!("infer has checked the types"),
        };
        vec![Tensor { dtype: cx.results[0].dtype, sizes, elements }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected numbers are those of numpy's `np.mod(x, y)`.
    #[test]
    fn a_rest_has_the_sign_of_the_divisor() {
        let infinite = f64::INFINITY;
        for (x, y, expected) in [
            (-4.3, 2.1, -4.3 + 2.1 + 2.1 + 2.1),
            (4.3, -2.1, 4.3 - 2.1 - 2.1 - 2.1),
            (3.0, infinite, 3.0),
            (-3.0, infinite, infinite),
            (3.0, -infinite, -infinite),
            (-3.0, -infinite, -3.0),
            (6.0, 3.0, 0.0),
        ] {
            let rest = Binary::Mod.scalar(x, y);
            assert!((rest - expected).abs() < 1e-12 || rest == expected, "{x} mod {y} is {rest}");
        }
        assert!([(1.0, 0.0), (infinite, 2.0)].iter().all(|&(x, y)| Binary::Mod.scalar(x, y).is_nan()));
    }
}
