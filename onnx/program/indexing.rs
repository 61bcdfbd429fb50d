//! Reading and writing by index.
//!
//! In a program, an index outside of the data reads zeros and writes nothing; ONNX refuses it. The import makes such indices by
//! padding for a ScatterElements with fewer indices than elements of the data. These updates are written to an extra element after
//! the data. All other indices are assumed to be inside.

use super::attribute;
use super::draft::{Draft, TensorId, with_last};
use super::operators::{Results, one};
use crate::proto::AttributeProto;
use ir::ops::indexing::{Gather, GatherElements, GatherNd};
use ir::ops::scatter::{ScatterElements, ScatterKind, ScatterNd};
use ir::{DType, Diagnostic, Dim, Module, Node, Op, OperandRole, ValueId};

/// Writes Gather.
pub(super) fn gather(draft: &mut Draft, node: &Node, op: &Gather) -> Results {
    let operands = [draft.operand(node, 0)?, indices(draft, node, false)?];
    one(draft.push("Gather", &operands, [attribute::int("axis", i64::from(op.dim))]))
}

/// Writes GatherElements.
pub(super) fn gather_elements(draft: &mut Draft, node: &Node, op: &GatherElements) -> Results {
    let operands = [draft.operand(node, 0)?, indices(draft, node, false)?];
    one(draft.push("GatherElements", &operands, [attribute::int("axis", i64::from(op.dim))]))
}

/// Writes GatherND.
pub(super) fn gather_nd(draft: &mut Draft, node: &Node, op: &GatherNd) -> Results {
    let operands = [draft.operand(node, 0)?, indices(draft, node, true)?];
    one(draft.push("GatherND", &operands, [attribute::int("batch_dims", i64::from(op.batch_dims))]))
}

/// Writes ScatterElements.
pub(super) fn scatter_elements(draft: &mut Draft, node: &Node, op: &ScatterElements) -> Results {
    let operands = [draft.operand(node, 0)?, indices(draft, node, false)?, draft.operand(node, 2)?];
    let attributes = vec![attribute::int("axis", i64::from(op.dim)), reduction(op.kind)];
    let size = draft.ty(node.operands[0]).dims[op.dim as usize].size();
    match size.filter(|_| is_padded(draft.module, node[OperandRole::Indices])) {
        Some(size) => beyond(draft, node, op, operands, attributes, size),
        None => one(draft.push("ScatterElements", &operands, attributes)),
    }
}

/// Whether indices were padded with indices outside of the data, because only a part of the data is written.
fn is_padded(module: &Module, mut indices: ValueId) -> bool {
    // Looks through changes of layout and casts.
    while let Some(node) = module.producer(indices) {
        match &node.op {
            Op::Pad(_) => return true,
            op if op.movement().keeps_order() || op.movement().is_layout() => indices = node.operands[0],
            _ => return false,
        }
    }
    false
}

/// Writes a scatter with some indices outside of the data: their updates go to an extra element after the data, which is cut off
/// again.
fn beyond(
    draft: &mut Draft,
    node: &Node,
    op: &ScatterElements,
    [data, indices, updates]: [TensorId; 3],
    attributes: Vec<AttributeProto>,
    size: u64,
) -> Results {
    let dtype = match draft.ty(node[OperandRole::Indices]).dtype {
        DType::I32 => DType::I32,
        _ => DType::I64,
    };
    let [zero, count] = [0.0, size as f64].map(|number| draft.number(dtype, number));
    let from_end = draft.push("Add", &[indices, count], []);
    let is_negative = draft.push("Less", &[indices, zero], []);
    let places = draft.push("Where", &[is_negative, from_end, indices], []);
    let data = draft.pad(data, draft.ty(node.operands[0]).dtype, op.dim, [0, 1], 0.0)?;
    let written = draft.push("ScatterElements", &[data, places, updates], attributes);
    one(draft.slice(written, op.dim, 0, super::draft::size(size)?, 1))
}

/// ScatterND. ONNX has no batch dims for it: the places along them are prepended to the indices.
pub(super) fn scatter_nd(draft: &mut Draft, node: &Node, op: &ScatterNd) -> Results {
    let mut indices = indices(draft, node, true)?;
    if op.batch_dims != 0 {
        let dims = &draft.ty(node[OperandRole::Indices]).dims;
        let last = dims.len() - 1;
        let column = with_last(&dims[..last], Dim::known(1));
        let mut columns = Vec::new();
        for dim in 0..op.batch_dims as usize {
            columns.push(draft.places(DType::I64, &column, dim)?);
        }
        columns.push(indices);
        indices = draft.push("Concat", &columns, [attribute::int("axis", last as i64)]);
    }
    let operands = [draft.operand(node, 0)?, indices, draft.operand(node, 2)?];
    one(draft.push("ScatterND", &operands, [reduction(op.kind)]))
}

fn reduction(kind: ScatterKind) -> AttributeProto {
    let name = match kind {
        ScatterKind::Set => "none",
        ScatterKind::Add => "add",
        ScatterKind::Mul => "mul",
        ScatterKind::Max => "max",
        ScatterKind::Min => "min",
    };
    attribute::text("reduction", name)
}

/// Returns the indices of a node in a type that ONNX accepts: i64, or i32 unless `wide`.
///
/// # Errors
/// As [`Draft::value`].
pub(super) fn indices(draft: &mut Draft, node: &Node, wide: bool) -> Result<TensorId, Diagnostic> {
    let value = node[OperandRole::Indices];
    let (tensor, dtype) = (draft.value(value)?, draft.ty(value).dtype);
    if dtype == DType::I32 && !wide {
        return Ok(tensor);
    }
    Ok(draft.cast(tensor, dtype, DType::I64))
}
