//! Pooling. ONNX's windows slide over the dims after batch and channels; other leading dims are made two of them by a reshape.

use super::attribute;
use super::draft::{Draft, TensorId, product, size};
use super::operators::{Results, formula, one};
use crate::proto::AttributeProto;
use ir::ops::pool::{AvgPool, MaxPool, MaxPoolIndices, Windows};
use ir::{Diagnostic, Dim, Dims, Node};

/// AveragePool.
pub(super) fn average(draft: &mut Draft, node: &Node, op: &AvgPool) -> Results {
    let more = [attribute::flag("count_include_pad", op.count_padding)];
    one(pooled(draft, node, &op.windows, "AveragePool", &more, 0)?)
}

/// MaxPool.
pub(super) fn max(draft: &mut Draft, node: &Node, op: &MaxPool) -> Results {
    one(pooled(draft, node, &op.windows, "MaxPool", &[], 0)?)
}

/// The places of MaxPool, which ONNX counts through all planes of the tensor, and the program within each plane.
pub(super) fn max_indices(draft: &mut Draft, node: &Node, op: &MaxPoolIndices) -> Results {
    formula(draft, node, |draft, node| {
        let x = draft.ty(node.operands[0]);
        let plane = product(&x.dims[x.ndim() - op.windows.len()..])?;
        let places = pooled(draft, node, &op.windows, "MaxPool", &[], 1)?;
        let plane = draft.scalar_size(&plane)?;
        one(draft.push("Mod", &[places, plane], []))
    })
}

fn pooled(
    draft: &mut Draft,
    node: &Node,
    windows: &Windows,
    operator: &str,
    more: &[AttributeProto],
    output: usize,
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
    let x = draft.reshape(x, from, &as_planes(from)?)?;
    let attributes: Vec<AttributeProto> =
        attributes(windows)?.into_iter().chain(more.iter().cloned()).collect();
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
