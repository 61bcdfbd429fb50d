//! Functions of one number.

use super::super::*;
use super::binary::Binary;
use super::cast::from_numbers;
use super::kinds;
use crate::DType;
use crate::ops::list::Kinds;

kinds! {
    /// A function of one float (or, for `Not`, one bool).
    Unary {
        /// `-x`
        Neg "neg",
        /// `|x|`
        Abs "abs",
        /// -1, 0 or 1
        Sign "sign",
        /// `eˣ`
        Exp "exp",
        /// Natural logarithm.
        Log "log",
        /// `√x`
        Sqrt "sqrt",
        /// `1/√x`
        Rsqrt "rsqrt",
        /// `1/x`
        Reciprocal "reciprocal",
        /// `sin x`
        Sin "sin",
        /// `cos x`
        Cos "cos",
        /// The angle between -π/2 and π/2 whose tangent is x.
        Atan "atan",
        /// `tanh x`
        Tanh "tanh",
        /// The error function.
        Erf "erf",
        /// `1/(1 + e⁻ˣ)`
        Sigmoid "sigmoid",
        /// `max(x, 0)`
        Relu "relu",
        /// `x·Φ(x)`, exact (Hendrycks and Gimpel, arXiv 1606.08415).
        Gelu "gelu",
        /// GELU by `½x(1 + tanh(√(2/π)(x + 0.044715x³)))` (same paper, section 2).
        GeluTanh "gelu_tanh",
        /// `x·sigmoid(x)`
        Silu "silu",
        /// The largest integer that is not above x.
        Floor "floor",
        /// The smallest integer that is not below x.
        Ceil "ceil",
        /// The nearest integer; halves are rounded to even.
        Round "round",
        /// Whether the number is NaN.
        IsNan "is_nan",
        /// Logical negation.
        Not "not",
    }
}

pub(super) const FRAC_2_SQRT_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI;
pub(super) const SQRT_2: f64 = std::f64::consts::SQRT_2;
/// √(2/π)
pub(super) const GELU_TANH_SCALE: f64 = 0.797_884_560_802_865_4;
pub(super) const GELU_TANH_CUBE: f64 = 0.044715;

impl Unary {
    /// Applies the function to a number. Bools are 0 and 1.
    pub fn scalar(self, x: f64) -> f64 {
        match self {
            Self::Neg => -x,
            Self::Abs => x.abs(),
            Self::Sign => f64::from(u8::from(x > 0.0)) - f64::from(u8::from(x < 0.0)),
            Self::Exp => x.exp(),
            Self::Log => x.ln(),
            Self::Sqrt => x.sqrt(),
            Self::Rsqrt => 1.0 / x.sqrt(),
            Self::Reciprocal => 1.0 / x,
            Self::Sin => x.sin(),
            Self::Cos => x.cos(),
            Self::Atan => x.atan(),
            Self::Tanh => x.tanh(),
            Self::Erf => libm::erf(x),
            Self::Sigmoid => sigmoid(x),
            // Unlike `f64::max`, NaN is propagated.
            Self::Relu if x.is_nan() => x,
            Self::Relu => x.max(0.0),
            Self::Gelu => x * normal_cdf(x),
            Self::GeluTanh => 0.5 * x * (1.0 + gelu_tanh_inner(x).tanh()),
            Self::Silu => x * sigmoid(x),
            Self::Floor => x.floor(),
            Self::Ceil => x.ceil(),
            Self::Round => x.round_ties_even(),
            Self::IsNan => f64::from(u8::from(x.is_nan())),
            Self::Not => f64::from(u8::from(x == 0.0)),
        }
    }

    /// Returns the FLOPs per element. A transcendental function counts as 10.
    fn flops(self) -> u64 {
        match self {
            Self::Neg | Self::Abs | Self::Sign | Self::Relu | Self::Not | Self::IsNan => 1,
            Self::Floor | Self::Ceil | Self::Round | Self::Reciprocal | Self::Sqrt => 1,
            Self::Gelu | Self::GeluTanh | Self::Silu => 15,
            _ => 10,
        }
    }
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Returns Φ(x), the distribution function of the standard normal distribution.
pub(super) fn normal_cdf(x: f64) -> f64 {
    0.5 * (1.0 + libm::erf(x / SQRT_2))
}

pub(super) fn gelu_tanh_inner(x: f64) -> f64 {
    GELU_TANH_SCALE * (x + GELU_TANH_CUBE * x * x * x)
}

impl Operator for Unary {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(match self {
            // Small operands give large results, or large ones small: half would overflow or vanish.
            Self::Exp | Self::Log | Self::Sqrt | Self::Rsqrt | Self::Reciprocal => PrecisionClass::Full,
            Self::Neg | Self::Abs | Self::Sign | Self::Relu | Self::Not | Self::IsNan => {
                PrecisionClass::Follow
            }
            Self::Sin | Self::Cos | Self::Atan | Self::Tanh | Self::Erf | Self::Sigmoid => {
                PrecisionClass::Follow
            }
            Self::Gelu | Self::GeluTanh | Self::Silu => PrecisionClass::Follow,
            Self::Floor | Self::Ceil | Self::Round => PrecisionClass::Follow,
        })
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        let fits = match self {
            Self::Not => x.dtype == DType::Bool,
            Self::Neg | Self::Abs | Self::Sign => x.dtype != DType::Bool,
            _ => x.dtype.is_float(),
        };
        ensure!(fits, "does not take {x}");
        let dtype = if *self == Self::IsNan { DType::Bool } else { x.dtype };
        Ok(vec![Type::new(dtype, x.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        let factors = Factors::elementwise(signature);
        if *self == Self::Neg { factors.linear_in(&[0]).keeping_zeros() } else { factors }
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let (x, y) = (node.operands[0], node.results[0]);
        let Some(dy) = d[0] else { return Ok(vec![None]) };
        let dx = match self {
            Self::Neg => -dy,
            Self::Abs => Self::Sign.of(x) * dy,
            Self::Exp => y * dy,
            Self::Log => dy / x,
            Self::Sqrt => dy * 0.5 / y,
            // d x^-½ = -½ x^-3/2
            Self::Rsqrt => y * y * y * (dy * -0.5),
            Self::Reciprocal => y * y * -dy,
            Self::Sin => Self::Cos.of(x) * dy,
            Self::Cos => Self::Sin.of(x) * -dy,
            Self::Atan => dy / (x * x + 1.0),
            // 1 - y²
            Self::Tanh => dy - y * y * dy,
            // 2/√π e^-x²
            Self::Erf => Self::Exp.of(-(x * x)) * (dy * FRAC_2_SQRT_PI),
            // y (1 - y)
            Self::Sigmoid => (y - y * y) * dy,
            Self::Relu => Binary::ReluGrad.of(x, dy),
            Self::Gelu => Binary::GeluGrad.of(x, dy),
            Self::GeluTanh => Binary::GeluTanhGrad.of(x, dy),
            Self::Silu => Binary::SiluGrad.of(x, dy),
            Self::Sign | Self::Floor | Self::Ceil | Self::Round | Self::IsNan | Self::Not => {
                return Ok(vec![None]);
            }
        };
        Ok(vec![Some(b.build(dx)?)])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], self.flops())
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let x = cx.operands[0];
        let numbers = x.numbers().into_iter().map(|x| self.scalar(x)).collect();
        vec![from_numbers(cx.results[0].dtype, x.sizes.clone(), numbers)]
    }
}
