//! Products of quantized numbers: MatMulInteger, ConvInteger, QLinearMatMul and QLinearConv. They are computed in f64, which
//! represents every sum of products of bytes exactly.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use super::quantization::saturated;
use super::{contraction, conv};
use ir::{DType, Dim, ValueId};

/// The dim of an operand to which a vector of scales or zero points belongs.
#[derive(Clone, Copy)]
enum ScaledDim {
    /// One number for each row of a matrix.
    Rows,
    /// One number for each column of a matrix.
    Columns,
    /// One number for each output of a convolution, along dim 0 of its weight.
    Outputs,
    /// One number for each channel of an image.
    Channels,
}

/// MatMulInteger: `(a - a_zero) · (b - b_zero)` as i32.
pub(super) fn matmul_integer(cx: &mut Context, call: &Call) -> Outputs {
    let (a, b) =
        (centred(cx, call, [0, 2], ScaledDim::Rows)?, centred(cx, call, [1, 3], ScaledDim::Columns)?);
    let product = contraction::multiply(cx, a, b)?;
    one(cx.b.cast(product, DType::I32)?)
}

/// ConvInteger: `conv(x - x_zero, w - w_zero)` as i32.
pub(super) fn conv_integer(cx: &mut Context, call: &Call) -> Outputs {
    let (x, w) =
        (centred(cx, call, [0, 2], ScaledDim::Channels)?, centred(cx, call, [1, 3], ScaledDim::Outputs)?);
    let image = conv::convolved(cx, call, x, w)?;
    one(cx.b.cast(image, DType::I32)?)
}

/// QLinearMatMul: the product of dequantized matrices, quantized.
pub(super) fn q_linear_matmul(cx: &mut Context, call: &Call) -> Outputs {
    let (a, b) =
        (centred(cx, call, [0, 2], ScaledDim::Rows)?, centred(cx, call, [3, 5], ScaledDim::Columns)?);
    let product = contraction::multiply(cx, a, b)?;
    let (a_scale, b_scale) =
        (scale(cx, call, 1, a, ScaledDim::Rows)?, scale(cx, call, 4, b, ScaledDim::Columns)?);
    let product = cx.build(product * a_scale * b_scale)?;
    quantized(cx, call, product, ScaledDim::Rows)
}

/// QLinearConv: the convolution of dequantized tensors with an i32 bias, quantized.
pub(super) fn q_linear_conv(cx: &mut Context, call: &Call) -> Outputs {
    let (x, w) =
        (centred(cx, call, [0, 2], ScaledDim::Channels)?, centred(cx, call, [3, 5], ScaledDim::Outputs)?);
    let image = conv::convolved(cx, call, x, w)?;
    let bias = cx.optional(call, 8)?.map(|bias| cx.b.cast(bias, DType::F64)).transpose()?;
    let image = conv::with_bias(cx, bias, image)?;
    let (x_scale, w_scale) =
        (scale(cx, call, 1, image, ScaledDim::Channels)?, scale(cx, call, 4, image, ScaledDim::Channels)?);
    let image = cx.build(image * x_scale * w_scale)?;
    quantized(cx, call, image, ScaledDim::Channels)
}

/// Quantizes the result with the scale and the zero point of inputs 6 and 7.
fn quantized(cx: &mut Context, call: &Call, x: ValueId, along: ScaledDim) -> Outputs {
    let out_scale = scale(cx, call, 6, x, along)?;
    let zero = cx.value(call, 7)?;
    let to = cx.ty(zero).dtype;
    let scaled = cx.build(x / out_scale)?;
    let zero = laid(cx, zero, x, along)?;
    one(saturated(cx, scaled, Some(zero), to)?)
}

/// Returns an operand minus its zero point, in f64.
fn centred(cx: &mut Context, call: &Call, [x, zero]: [usize; 2], along: ScaledDim) -> Built {
    let x = cx.value(call, x)?;
    let zero = cx.optional(call, zero)?;
    let wide = cx.b.cast(x, DType::F64)?;
    let Some(zero) = zero else { return Ok(wide) };
    let zero = cx.b.cast(zero, DType::F64)?;
    let zero = laid(cx, zero, wide, along)?;
    cx.build(wide - zero)
}

/// Returns a scale in f64 that broadcasts to `like`.
fn scale(cx: &mut Context, call: &Call, i: usize, like: ValueId, along: ScaledDim) -> Built {
    let scale = cx.value(call, i)?;
    let scale = cx.b.cast(scale, DType::F64)?;
    laid(cx, scale, like, along)
}

/// Returns a scalar unchanged, and a vector reshaped to its dim of `like`.
fn laid(cx: &mut Context, value: ValueId, like: ValueId, along: ScaledDim) -> Built {
    let (own, ndim) = (cx.ty(value).clone(), cx.ty(like).ndim());
    if own.numel() == Some(1) {
        return Ok(cx.b.reshape(value, [])?);
    }
    let at = match along {
        ScaledDim::Rows => ndim.checked_sub(2),
        ScaledDim::Columns => ndim.checked_sub(1),
        ScaledDim::Outputs => Some(0),
        ScaledDim::Channels => Some(1),
    };
    let wrong = || Problem::new(format!("the scale or zero point {own} does not fit {}", cx.ty(like)));
    // A scale for each matrix already has the dims of the matrices.
    let [size] = &own.dims[..] else { return if own.ndim() == ndim { Ok(value) } else { Err(wrong()) } };
    let at = at.filter(|&at| at < ndim).ok_or_else(wrong)?;
    let mut dims = vec![Dim::known(1); ndim];
    dims[at] = size.clone();
    Ok(cx.b.reshape(value, dims)?)
}
