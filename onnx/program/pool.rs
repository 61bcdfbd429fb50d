//! Pooling. ONNX's windows slide over the dims after batch and channels; a reshape merges other leading dims into these two.

use super::attribute;
use super::draft::{Draft, TensorId, product, size};
use super::operators::{Results, formula, one};
use crate::proto::AttributeProto;
use ir::ops::pool::{AvgPool, MaxPool, MaxPoolIndices, Window, Windows};
use ir::{Diagnostic, Dim, Dims, Node};

/// Writes AveragePool.
pub(super) fn average(draft: &mut Draft, node: &Node, op: &AvgPool) -> Results {
    let more = [attribute::flag("count_include_pad", op.count_padding)];
    one(pooled(draft, node, &op.windows, "AveragePool", &more, 0, op.count_padding.then_some(0.0))?)
}

/// Writes MaxPool.
pub(super) fn max(draft: &mut Draft, node: &Node, op: &MaxPool) -> Results {
    one(pooled(draft, node, &op.windows, "MaxPool", &[], 0, Some(f64::NEG_INFINITY))?)
}

/// Writes the places of MaxPool. ONNX counts them through all planes of the tensor, the program within each plane.
pub(super) fn max_indices(draft: &mut Draft, node: &Node, op: &MaxPoolIndices) -> Results {
    formula(draft, node, |draft, node| {
        let x = draft.ty(node.operands[0]);
        let y = draft.ty(node.results[0]);
        let leading = x.ndim() - op.windows.len();
        let plane = product(&x.dims[leading..])?;
        // ONNX does not define the place for a window with only padding.
        if !op
            .windows
            .iter()
            .enumerate()
            .all(|(i, window)| is_covered(window, [x, y].map(|ty| &ty.dims[leading + i])))
        {
            return Err(Diagnostic::new(
                "a window of the max pooling covers only padding, and ONNX does not define the place of its largest element",
            ));
        }
        let places = pooled(draft, node, &op.windows, "MaxPool", &[], 1, None)?;
        let plane = draft.scalar_size(&plane)?;
        one(draft.push("Mod", &[places, plane], []))
    })
}

/// Whether the first and the last window along a dim cover an element. `from` is the size of the dim, `to` the number of windows.
fn is_covered(window: &Window, [from, to]: [&Dim; 2]) -> bool {
    let (Some(from), Some(to)) = (from.size(), to.size()) else { return false };
    let last = to.saturating_sub(1).saturating_mul(window.stride);
    window.before < window.size && last < window.before.saturating_add(from)
}

/// Writes one output of a pooling. ONNX Runtime does not support padding that is as large as a window; such padding is replaced by
/// elements with the number `beyond`, if there is one.
fn pooled(
    draft: &mut Draft,
    node: &Node,
    windows: &Windows,
    operator: &str,
    more: &[AttributeProto],
    output: usize,
    beyond: Option<f64>,
) -> Result<TensorId, Diagnostic> {
    let (from, to) = (&draft.ty(node.operands[0]).dims, &draft.ty(node.results[0]).dims);
    let leading = from.len() - windows.len();
    let as_planes = |dims: &Dims| -> Result<Dims, Diagnostic> {
        if leading == 2 {
            return Ok(dims.clone());
        }
        let planes = [Dim::known(1), product(&dims[..leading])?];
        Ok(planes.into_iter().chain(dims[leading..].iter().cloned()).collect())
    };
    let x = draft.operand(node, 0)?;
    let mut x = draft.reshape(x, from, &as_planes(from)?)?;
    let mut windows = windows.clone();
    if let Some(value) =
        beyond.filter(|_| windows.iter().any(|window| window.before.max(window.after) >= window.size))
    {
        let dtype = draft.ty(node.operands[0]).dtype;
        for (dim, window) in (2..).zip(&mut windows) {
            x = draft.pad(x, dtype, dim, [window.before, window.after], value)?;
            (window.before, window.after) = (0, 0);
        }
    }
    let attributes: Vec<AttributeProto> =
        attributes(&windows)?.into_iter().chain(more.iter().cloned()).collect();
    let pooled = draft.push_many(operator, &[Some(x)], output + 1, attributes)[output];
    draft.reshape(pooled, &as_planes(to)?, to)
}

fn attributes(windows: &Windows) -> Result<Vec<AttributeProto>, Diagnostic> {
    let list = |name: &str, numbers: Vec<u64>| -> Result<AttributeProto, Diagnostic> {
        Ok(attribute::ints(name, numbers.into_iter().map(size).collect::<Result<Vec<_>, _>>()?))
    };
    let pads = windows.iter().map(|window| window.before).chain(windows.iter().map(|window| window.after));
    Ok(vec![
        list("kernel_shape", windows.iter().map(|window| window.size).collect())?,
        list("strides", windows.iter().map(|window| window.stride).collect())?,
        list("dilations", windows.iter().map(|window| window.dilation).collect())?,
        list("pads", pads.collect())?,
    ])
}
