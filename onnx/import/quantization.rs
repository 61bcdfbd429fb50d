//! Quantization: QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear. Rounding has no gradient, so values that depend only
//! on quantized numbers are not trained.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem, one};
use ir::ops::elementwise::{Binary, Compare, Select, Unary};
use ir::ops::reduce::ReduceKind;
use ir::{DType, Dim, Type, ValueId};

/// QuantizeLinear: `saturate(round(x / scale) + zero)`, with halves rounded to even.
pub(super) fn quantize_linear(cx: &mut Context, call: &Call) -> Outputs {
    // The attribute matters only for 8-bit floats: integers always saturate.
    call.unneeded(&["saturate"]);
    let (x, scale, zero) = (cx.value(call, 0)?, cx.value(call, 1)?, cx.optional(call, 2)?);
    let to = match (zero, call.int("output_dtype").filter(|&code| code != 0)) {
        (Some(zero), _) => cx.ty(zero).dtype,
        (None, Some(_)) => call.dtype("output_dtype")?,
        (None, None) => DType::U8,
    };
    let ty = cx.ty(x).clone();
    let precision = match call.int("precision").filter(|&code| code != 0) {
        Some(_) => call.dtype("precision")?,
        None => wider(ty.dtype, cx.ty(scale).dtype),
    };
    let spread = Spread::of(call, &ty);
    let (x, scale) = (cx.b.cast(x, precision)?, cx.b.cast(scale, precision)?);
    let scale = spread.apply(cx, scale)?;
    let scaled = cx.build(x / scale)?;
    let zero = zero.map(|zero| spread.apply(cx, zero)).transpose()?;
    one(saturated(cx, scaled, zero, to)?)
}

/// DequantizeLinear: `(x - zero) · scale`.
pub(super) fn dequantize_linear(cx: &mut Context, call: &Call) -> Outputs {
    let (x, scale, zero) = (cx.value(call, 0)?, cx.value(call, 1)?, cx.optional(call, 2)?);
    let to = match call.int("output_dtype").filter(|&code| code != 0) {
        Some(_) => call.dtype("output_dtype")?,
        None => cx.ty(scale).dtype,
    };
    let ty = cx.ty(x).clone();
    let precision = wider(ty.dtype, cx.ty(scale).dtype);
    let spread = Spread::of(call, &ty);
    let mut x = cx.b.cast(x, precision)?;
    if let Some(zero) = zero {
        let zero = spread.apply(cx, zero)?;
        let zero = cx.b.cast(zero, precision)?;
        x = cx.build(x - zero)?;
    }
    let scale = spread.apply(cx, scale)?;
    let scale = cx.b.cast(scale, precision)?;
    one(cx.build((x * scale).cast(to))?)
}

/// DynamicQuantizeLinear: to u8, with the scale and zero point that just cover all elements and 0.
pub(super) fn dynamic_quantize_linear(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let ty = cx.ty(x).clone();
    let dims: Vec<u32> = (0..ty.ndim() as u32).collect();
    let extreme = |cx: &mut Context, kind: ReduceKind, op: Binary| -> Built {
        let all = cx.reduced(kind, x, &dims)?;
        let all = cx.b.reshape(all, [])?;
        cx.build(op.of(all, 0.0))
    };
    let largest = extreme(cx, ReduceKind::Max, Binary::Max)?;
    let smallest = extreme(cx, ReduceKind::Min, Binary::Min)?;
    let range = cx.build(largest - smallest)?;
    let scale = cx.build(Select.of(Compare::Equal.of(range, 0.0), 1.0, range) / 255.0)?;
    let below = cx.build(-(smallest / scale))?;
    let zero = saturated(cx, below, None, DType::U8)?;
    let scaled = cx.build(x / scale)?;
    let y = saturated(cx, scaled, Some(zero), DType::U8)?;
    Ok(vec![Entry::Value(y), Entry::Value(scale), Entry::Value(zero)])
}

/// Rounds floats, adds a zero point, and clamps to the range of an integer type.
pub(super) fn saturated(cx: &mut Context, x: ValueId, zero: Option<ValueId>, to: DType) -> Built {
    let [least, most]: [f64; 2] = match to {
        DType::I8 => [i8::MIN.into(), i8::MAX.into()],
        DType::U8 => [u8::MIN.into(), u8::MAX.into()],
        DType::I16 => [i16::MIN.into(), i16::MAX.into()],
        DType::U16 => [u16::MIN.into(), u16::MAX.into()],
        other => return Err(Problem::new(format!("quantization to {} is not supported", other.name()))),
    };
    let mut rounded = cx.build(Unary::Round.of(x))?;
    if let Some(zero) = zero {
        let dtype = cx.ty(rounded).dtype;
        let zero = cx.b.cast(zero, dtype)?;
        rounded = cx.build(rounded + zero)?;
    }
    cx.build(Binary::Min.of(Binary::Max.of(rounded, least), most).cast(to))
}

/// Returns the type to compute in. Half precision cannot represent 16-bit integers.
fn wider(x: DType, scale: DType) -> DType {
    if x == DType::F64 || scale == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The way in which scales and zero points are spread along a tensor.
struct Spread<'a> {
    ty: &'a Type,
    axis: i64,
    /// The number of consecutive elements that share a scale; 0 if each element along the axis has its own.
    block: i64,
}

impl<'a> Spread<'a> {
    fn of(call: &Call, ty: &'a Type) -> Self {
        Self { ty, axis: call.int("axis").unwrap_or(1), block: call.int("block_size").unwrap_or(0) }
    }

    /// Reshapes scales or zero points so that they broadcast to the tensor.
    fn apply(&self, cx: &mut Context, value: ValueId) -> Built {
        let (ty, own) = (self.ty, cx.ty(value).clone());
        if own.numel() == Some(1) {
            return Ok(cx.b.reshape(value, [])?);
        }
        let wrong =
            || Problem::new(format!("the scale or zero point {own} does not fit axis {} of {ty}", self.axis));
        let dim = super::context::dim(self.axis, ty.ndim()).ok_or_else(wrong)?;
        let block = u64::try_from(self.block).map_err(|_| wrong())?;
        if block == 0 {
            if own.ndim() != 1 || own.dims[0] != ty.dims[dim as usize] {
                return Err(wrong());
            }
            let mut dims = vec![Dim::known(1); ty.ndim()];
            dims[dim as usize] = own.dims[0].clone();
            return Ok(cx.b.reshape(value, dims)?);
        }
        let size = ty.dims[dim as usize].size().ok_or_else(wrong)?;
        let mut blocks = ty.dims.to_vec();
        blocks[dim as usize] = Dim::known(size.div_ceil(block));
        if own.dims[..] != blocks[..] {
            return Err(wrong());
        }
        let covered = size.div_ceil(block).checked_mul(block).ok_or_else(wrong)?;
        let apart = cx.with_dim(value, dim + 1)?;
        let mut dims = cx.ty(apart).dims.to_vec();
        dims[dim as usize + 1] = Dim::known(block);
        let wide = cx.b.broadcast(apart, dims)?;
        blocks[dim as usize] = Dim::known(covered);
        let repeated = cx.b.reshape(wide, blocks)?;
        Ok(cx.b.slice(repeated, dim, 0, Dim::known(size))?)
    }
}
