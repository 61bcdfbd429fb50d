//! Normalisations that are ONNX operators.

use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem};
use ir::ops::Float;
use ir::ops::elementwise::Binary;
use ir::ops::norm::{LayerNorm, RmsNorm};
use ir::{Dim, Dims, Type, ValueId};

/// Flattens all dims from `axis` on into one, because the IR operators normalise the last dim.
fn flattened(cx: &mut Context, x: ValueId, axis: u32) -> Result<ValueId, Problem> {
    let ty = cx.ty(x).clone();
    let axis = axis as usize;
    if axis + 1 == ty.ndim() {
        return Ok(x);
    }
    let product = ty.dims[axis..].iter().try_fold(Dim::known(1), |n, dim| n.product(dim));
    let product = product.ok_or_else(|| Problem::new(format!("{ty} is too large")))?;
    let dims: Dims = ty.dims[..axis].iter().cloned().chain([product]).collect();
    Ok(cx.b.reshape(x, dims)?)
}

/// Returns a scale or bias as a vector over the normalised dims.
fn vector(cx: &mut Context, scale: ValueId, axis_ty: &Type, axis: u32) -> Result<ValueId, Problem> {
    let dims: Dims = axis_ty.dims[axis as usize..].iter().cloned().collect();
    let wide = cx.b.broadcast(scale, dims)?;
    flattened(cx, wide, 0)
}

/// Whether a scale or bias has only the normalised dims, perhaps after dims of size one. From opset 17 on it may have any dims
/// that broadcast to the operand.
fn is_narrow(cx: &Context, tensor: ValueId, ty: &Type, axis: u32) -> bool {
    let dims = &cx.ty(tensor).dims;
    let before = dims.len().saturating_sub(ty.ndim() - axis as usize);
    dims[..before].iter().all(Dim::is_one)
}

/// Returns a scale or bias as a vector, or a vector of `number` if there is none.
fn normalised(
    cx: &mut Context,
    tensor: Option<ValueId>,
    ty: &Type,
    axis: u32,
    number: f64,
) -> Result<ValueId, Problem> {
    let normalised: Dims = ty.dims[axis as usize..].iter().cloned().collect();
    let Some(tensor) = tensor else {
        let splat = cx.b.splat(Type::new(ty.dtype, normalised), number)?;
        return flattened(cx, splat, 0);
    };
    let dims = &cx.ty(tensor).dims;
    let before = dims.len().saturating_sub(normalised.len());
    let own: Dims = dims[before..].iter().cloned().collect();
    let tensor = cx.b.reshape(tensor, own)?;
    vector(cx, tensor, ty, axis)
}

/// Reshapes a statistic to ONNX's form, in which the normalised dims have size one.
fn statistic(cx: &mut Context, value: ValueId, ndim: usize) -> Result<Entry, Problem> {
    let mut dims = cx.ty(value).dims.clone();
    dims.resize(ndim, Dim::known(1));
    Ok(Entry::Value(cx.b.reshape(value, dims)?))
}

/// Refuses statistics that are not kept in f32, because no other type is supported.
fn stashed(call: &Call) -> Result<(), Problem> {
    match call.int("stash_type") {
        None | Some(1) => Ok(()),
        Some(other) => {
            Err(Problem::new(format!("statistics of type {other} are not supported; only type 1 (f32) is")))
        }
    }
}

/// LayerNormalization. A missing bias is zeros.
pub(super) fn layer_norm(cx: &mut Context, call: &Call) -> Outputs {
    stashed(call)?;
    let x = cx.value(call, 0)?;
    let ty = cx.ty(x).clone();
    let axis = cx.axis(x, call.int("axis").unwrap_or(-1))?;
    let given = [Some(cx.value(call, 1)?), cx.optional(call, 2)?];
    let [scale, bias] = given.map(|tensor| tensor.filter(|&tensor| is_narrow(cx, tensor, &ty, axis)));
    let scale = normalised(cx, scale, &ty, axis, 1.0)?;
    let bias = normalised(cx, bias, &ty, axis, 0.0)?;
    let eps = Float::new(call.float("epsilon").unwrap_or(1e-5));
    let flat = flattened(cx, x, axis)?;
    let results = cx.b.push(LayerNorm { eps }, &[flat, scale, bias])?;
    let mut y = cx.b.reshape(results[0], ty.dims.clone())?;
    for (op, tensor) in [Binary::Mul, Binary::Add].into_iter().zip(given) {
        if let Some(wide) = tensor.filter(|&tensor| !is_narrow(cx, tensor, &ty, axis)) {
            y = cx.build(op.of(y, wide))?;
        }
    }
    let mean = statistic(cx, results[1], ty.ndim())?;
    let rstd = statistic(cx, results[2], ty.ndim())?;
    Ok(vec![Entry::Value(y), mean, rstd])
}

/// RMSNormalization (opset 23). As ONNX Runtime's SimplifiedLayerNormalization it also returns the inverse deviation.
pub(super) fn rms_norm(cx: &mut Context, call: &Call) -> Outputs {
    stashed(call)?;
    let x = cx.value(call, 0)?;
    let ty = cx.ty(x).clone();
    let axis = cx.axis(x, call.int("axis").unwrap_or(-1))?;
    let given = cx.value(call, 1)?;
    let narrow = Some(given).filter(|&scale| is_narrow(cx, scale, &ty, axis));
    let scale = normalised(cx, narrow, &ty, axis, 1.0)?;
    let eps = Float::new(call.float("epsilon").unwrap_or(1e-5));
    let flat = flattened(cx, x, axis)?;
    let results = cx.b.push(RmsNorm { eps }, &[flat, scale])?;
    let mut y = cx.b.reshape(results[0], ty.dims.clone())?;
    if narrow.is_none() {
        y = cx.build(y * given)?;
    }
    let rstd = statistic(cx, results[1], ty.ndim())?;
    Ok(vec![Entry::Value(y), rstd])
}
