//! Writing by index: ScatterElements, ScatterND and TensorScatter.

use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use ir::ops::elementwise::Binary;
use ir::ops::scatter::{ScatterElements, ScatterKind, ScatterNd};
use ir::{DType, Dim, ValueId, ensure};

/// Returns the kind of scatter for the attribute `reduction`.
fn kind(call: &Call) -> Result<ScatterKind, Problem> {
    Ok(match call.string("reduction").unwrap_or("none") {
        "none" => ScatterKind::Set,
        "add" => ScatterKind::Add,
        "mul" => ScatterKind::Mul,
        "max" => ScatterKind::Max,
        "min" => ScatterKind::Min,
        other => return Err(Problem::new(format!("the reduction `{other}` is unknown"))),
    })
}

/// Imports Scatter and ScatterElements.
pub(super) fn scatter_elements(cx: &mut Context, call: &Call) -> Outputs {
    let [x, indices, updates] = [cx.value(call, 0)?, cx.value(call, 1)?, cx.value(call, 2)?];
    let dim = cx.axis(x, call.int("axis").unwrap_or(0))?;
    let kind = kind(call)?;
    let (indices, updates) = spread(cx, x, dim, indices, updates)?;
    one(cx.b.one(ScatterElements { dim, kind }, &[x, indices, updates])?)
}

/// Pads indices and updates that are smaller than the data in dims other than the indexed one. The added indices are outside of
/// the data, so the added updates are dropped.
fn spread(
    cx: &mut Context,
    x: ValueId,
    dim: u32,
    mut indices: ValueId,
    mut updates: ValueId,
) -> Result<(ValueId, ValueId), Problem> {
    let (data, given) = (cx.ty(x).clone(), cx.ty(indices).clone());
    ensure!(data.ndim() == given.ndim(), "the indices {given} do not fit the dims of {data}");
    let missing = |i: usize| {
        let (size, given) = (data.dims[i].size()?, given.dims[i].size()?);
        size.checked_sub(given).filter(|&missing| missing > 0 && i != dim as usize)
    };
    for i in 0..data.ndim() {
        if let Some(missing) = missing(i) {
            let outside = cx.bound(x, dim, "writes along")? as f64;
            indices = cx.padded(indices, i as u32, [0, missing], outside)?;
            updates = cx.padded(updates, i as u32, [0, missing], 0.0)?;
        }
    }
    Ok((indices, updates))
}

/// Imports ScatterND.
pub(super) fn scatter_nd(cx: &mut Context, call: &Call) -> Outputs {
    let operands = [cx.value(call, 0)?, cx.value(call, 1)?, cx.value(call, 2)?];
    one(cx.b.one(ScatterNd { batch_dims: 0, kind: kind(call)? }, &operands)?)
}

/// TensorScatter: writes the update of each batch entry along `axis`, beginning at its write index. In circular mode the write
/// continues at the start after the end is reached.
pub(super) fn tensor_scatter(cx: &mut Context, call: &Call) -> Outputs {
    let (x, update) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let start = cx.optional(call, 2)?;
    let axis = call.int("axis").unwrap_or(-2);
    let dim = cx.axis(x, axis)?;
    let dims = cx.ty(update).dims.clone();
    let wrong =
        || Problem::new(format!("updates {} do not fit {} along axis {axis}", cx.ty(update), cx.ty(x)));
    let length = dims.get(dim as usize).cloned().filter(|_| dim > 0).ok_or_else(wrong)?;
    let mut places = cx.counted(DType::I64, dims.len(), dim, length)?;
    if let Some(start) = start {
        let mut along = vec![Dim::known(1); dims.len()];
        along[0] = dims[0].clone();
        let start = cx.b.cast(start, DType::I64)?;
        let start = cx.b.reshape(start, along)?;
        places = cx.build(places + start)?;
    }
    match call.string("mode").unwrap_or("linear") {
        "linear" => {}
        "circular" => {
            let size = cx.bound(x, dim, "writes around")?;
            places = cx.build(Binary::Mod.of(places, size as f64))?;
        }
        other => return Err(Problem::new(format!("the mode `{other}` is unknown"))),
    }
    let places = cx.b.broadcast(places, dims)?;
    one(cx.b.one(ScatterElements { dim, kind: ScatterKind::Set }, &[x, places, update])?)
}
