//! Reading and writing by index.
//!
//! An index outside of the data reads zeros and writes nothing in a program; ONNX refuses it. No import makes such an index but that of
//! a ScatterElements with fewer indices than the data has elements.

use super::attribute;
use super::draft::{Draft, TensorId};
use super::operators::{Results, one};
use ir::ops::indexing::{Gather, GatherElements, GatherNd};
use ir::ops::scatter::{ScatterElements, ScatterKind, ScatterNd};
use ir::{DType, Diagnostic, Node, OperandRole};

/// Gather.
pub(super) fn gather(draft: &mut Draft, node: &Node, op: &Gather) -> Results {
    let operands = [draft.operand(node, 0)?, indices(draft, node, false)?];
    one(draft.push("Gather", &operands, [attribute::int("axis", i64::from(op.dim))]))
}

/// GatherElements.
pub(super) fn gather_elements(draft: &mut Draft, node: &Node, op: &GatherElements) -> Results {
    let operands = [draft.operand(node, 0)?, indices(draft, node, false)?];
    one(draft.push("GatherElements", &operands, [attribute::int("axis", i64::from(op.dim))]))
}

/// GatherND.
pub(super) fn gather_nd(draft: &mut Draft, node: &Node, op: &GatherNd) -> Results {
    let operands = [draft.operand(node, 0)?, indices(draft, node, true)?];
    one(draft.push("GatherND", &operands, [attribute::int("batch_dims", i64::from(op.batch_dims))]))
}

/// ScatterElements.
pub(super) fn scatter_elements(draft: &mut Draft, node: &Node, op: &ScatterElements) -> Results {
    let operands = [draft.operand(node, 0)?, indices(draft, node, false)?, draft.operand(node, 2)?];
    let attributes = [attribute::int("axis", i64::from(op.dim)), reduction(op.kind)];
    one(draft.push("ScatterElements", &operands, attributes))
}

/// ScatterND, which has no batch dims in ONNX.
pub(super) fn scatter_nd(draft: &mut Draft, node: &Node, op: &ScatterNd) -> Results {
    if op.batch_dims != 0 {
        return Err(Diagnostic::new(format!(
            "ONNX's ScatterND has no batch dims, and the scatter has {}",
            op.batch_dims
        )));
    }
    let operands = [draft.operand(node, 0)?, indices(draft, node, true)?, draft.operand(node, 2)?];
    one(draft.push("ScatterND", &operands, [reduction(op.kind)]))
}

fn reduction(kind: ScatterKind) -> crate::proto::AttributeProto {
    let name = match kind {
        ScatterKind::Set => "none",
        ScatterKind::Add => "add",
        ScatterKind::Mul => "mul",
        ScatterKind::Max => "max",
        ScatterKind::Min => "min",
    };
    attribute::text("reduction", name)
}

/// The indices of a node in a type that ONNX takes: i64, or i32 unless they must be wide.
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
