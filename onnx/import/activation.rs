//! Activations without an IR operator, built from several operators.
//!
//! Each is built so that its gradient is finite and correct wherever it exists: exponentials are only taken of bounded numbers,
//! even on the side that a selection drops.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use super::gate::Gate;
use ir::ops::elementwise::{Binary, Compare, Logical, Select, Unary};
use ir::{DType, Dim, Dims, ValueId};

/// Above this number, `log(1 + eˣ)` equals x up to 1e-13, and `eˣ` is still far below the largest f32.
const SOFTPLUS_LINEAR: f64 = 30.0;

/// Imports activations of one operand. Gates of recurrent layers may use some of them.
pub(super) fn activation(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let (given, beta) = (call.float("alpha"), call.float("beta"));
    let alpha = |default: f64| given.unwrap_or(default);
    one(match call.op() {
        "Celu" => celu(cx, x, alpha(1.0))?,
        "HardSwish" => {
            let gate = hard_sigmoid(cx, x, 1.0 / 6.0, 0.5)?;
            cx.build(x * gate)?
        }
        "Mish" => {
            let soft = softplus(cx, x)?;
            cx.build(x * Unary::Tanh.of(soft))?
        }
        // The constants of Klambauer et al., arXiv 1706.02515, as rounded by ONNX.
        "Selu" => {
            let elu = elu(cx, x, alpha(1.673_263_192_176_818_8))?;
            cx.build(elu * call.float("gamma").unwrap_or(1.050_701_022_148_132_3))?
        }
        "Shrink" => shrink(cx, x, call.float("lambd").unwrap_or(0.5), call.float("bias").unwrap_or(0.0))?,
        "Swish" => swish(cx, x, alpha(1.0))?,
        name => Gate::named(name, given, beta)?.of(cx, x)?,
    })
}

/// `max(x, 0) + α(eᵐ - 1)` with `m = min(x, 0)`. At 0 the slope is α, as in PyTorch.
pub(super) fn elu(cx: &mut Context, x: ValueId, alpha: f64) -> Built {
    let negative = not_above(cx, x, 0.0)?;
    exponential_side(cx, x, negative, alpha)
}

/// `min(x, bound)`, with a gradient of 1 at the bound.
fn not_above(cx: &mut Context, x: ValueId, bound: f64) -> Built {
    cx.build(Binary::AtMost.of(bound, x))
}

/// `max(x, 0) + α(e^(m/α) - 1)` with `m = min(x, 0)`. At 0 the slope is 1.
fn celu(cx: &mut Context, x: ValueId, alpha: f64) -> Built {
    if alpha <= 0.0 {
        return Err(Problem::new(format!("alpha is {alpha}; it must be positive")));
    }
    let negative = not_above(cx, x, 0.0)?;
    let scaled = cx.build(negative / alpha)?;
    exponential_side(cx, x, scaled, alpha)
}

fn exponential_side(cx: &mut Context, x: ValueId, exponent: ValueId, alpha: f64) -> Built {
    let side = cx.build((Unary::Exp.of(exponent) - 1.0) * alpha)?;
    cx.build(Unary::Relu.of(x) + side)
}

/// `min(max(αx + β, 0), 1)`. The slope is 0 where the result is 0 or 1, also at the bounds, as in PyTorch.
pub(super) fn hard_sigmoid(cx: &mut Context, x: ValueId, alpha: f64, beta: f64) -> Built {
    cx.build(Binary::AtMost.of(Binary::AtLeast.of(x * alpha + beta, 0.0), 1.0))
}

/// `x` where it is positive, else `αx`.
pub(super) fn leaky_relu(cx: &mut Context, x: ValueId, alpha: f64) -> Built {
    sloped(cx, x, |cx| cx.build(x * alpha))
}

/// `x` where it is positive, else the value that `scaled` builds. At 0 the slope is that of the negative side, as in PyTorch.
fn sloped(cx: &mut Context, x: ValueId, scaled: impl FnOnce(&mut Context) -> Built) -> Built {
    let positive = cx.build(Compare::Greater.of(x, 0.0))?;
    let scaled = scaled(cx)?;
    cx.build(Select.of(positive, x, scaled))
}

/// PRelu: LeakyRelu with a slope that broadcasts to x.
pub(super) fn parametric_relu(cx: &mut Context, call: &Call) -> Outputs {
    let (x, slope) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let slope = match (call.opset(), cx.ty(x).ndim(), cx.ty(slope).ndim()) {
        // Up to opset 6, a vector has one slope for each channel (dim 1).
        (..=6, 3.., 1) => {
            let ones = (2..cx.ty(x).ndim()).map(|_| Dim::known(1));
            let dims: Dims = cx.ty(slope).dims.iter().cloned().chain(ones).collect();
            cx.b.reshape(slope, dims)?
        }
        _ => slope,
    };
    one(sloped(cx, x, |cx| cx.build(x * slope))?)
}

/// `log(1 + eˣ)`; x itself where the two are equal.
pub(super) fn softplus(cx: &mut Context, x: ValueId) -> Built {
    let bounded = not_above(cx, x, SOFTPLUS_LINEAR)?;
    cx.build(Unary::Log.of(Unary::Exp.of(bounded) + 1.0) + Unary::Relu.of(x - SOFTPLUS_LINEAR))
}

/// `x / (1 + |x|)`
pub(super) fn softsign(cx: &mut Context, x: ValueId) -> Built {
    cx.build(x / (Unary::Abs.of(x) + 1.0))
}

/// `x` above α, else 0.
pub(super) fn thresholded_relu(cx: &mut Context, x: ValueId, alpha: f64) -> Built {
    cx.build(Select.of(Compare::Greater.of(x, alpha), x, 0.0))
}

/// `x·sigmoid(αx)`
pub(super) fn swish(cx: &mut Context, x: ValueId, alpha: f64) -> Built {
    if alpha == 1.0 {
        return cx.build(Unary::Silu.of(x));
    }
    cx.build(x * Unary::Sigmoid.of(x * alpha))
}

/// `x + bias` below `-λ`, `x - bias` above `λ`, 0 between. Integers are computed as floats: an unsigned type has no `-λ`.
fn shrink(cx: &mut Context, x: ValueId, lambda: f64, bias: f64) -> Built {
    let dtype = cx.ty(x).dtype;
    if dtype.is_integer() {
        let float = cx.b.cast(x, DType::F64)?;
        let shrunk = shrink(cx, float, lambda, bias)?;
        return Ok(cx.b.cast(shrunk, dtype)?);
    }
    let (below, above) = (cx.build(Compare::Less.of(x, -lambda))?, cx.build(Compare::Greater.of(x, lambda))?);
    cx.build(Select.of(below, x + bias, Select.of(above, x - bias, 0.0)))
}

/// IsInf, for one or both signs.
pub(super) fn is_infinite(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let asked = |name: &str| call.int(name).unwrap_or(1) != 0;
    let mut is = |infinity: f64| cx.build(Compare::Equal.of(x, infinity));
    one(match (asked("detect_positive"), asked("detect_negative")) {
        (true, true) => {
            let (positive, negative) = (is(f64::INFINITY)?, is(f64::NEG_INFINITY)?);
            cx.build(Logical::Or.of(positive, negative))?
        }
        (true, false) => is(f64::INFINITY)?,
        (false, true) => is(f64::NEG_INFINITY)?,
        (false, false) => {
            let ty = cx.ty(x).with_dtype(DType::Bool);
            cx.b.splat(ty, 0.0)?
        }
    })
}
