//! Operators that move elements: reshape, transpose, broadcast, slice, concat, pad.

use super::attribute;
use super::draft::{Draft, TensorId, size};
use super::operators::{Results, one};
use ir::ops::shape::{Concat, Pad, Slice, Transpose};
use ir::{DType, Diagnostic, Dim, Node};

/// Writes the operand itself. The operator concerns only gradients, which ONNX does not have.
pub(super) fn same(draft: &mut Draft, node: &Node) -> Results {
    let x = draft.operand(node, 0)?;
    one(draft.push("Identity", &[x], []))
}

/// Writes Reshape.
pub(super) fn reshape(draft: &mut Draft, node: &Node) -> Results {
    let (from, to) = (&draft.ty(node.operands[0]).dims, &draft.ty(node.results[0]).dims);
    let x = draft.operand(node, 0)?;
    one(draft.reshape(x, from, to)?)
}

/// Writes Transpose.
pub(super) fn transpose(draft: &mut Draft, node: &Node, op: &Transpose) -> Results {
    let x = draft.operand(node, 0)?;
    let permutation: Vec<usize> = op.permutation.iter().map(|&dim| dim as usize).collect();
    one(draft.transpose(x, &permutation))
}

/// Writes Expand.
pub(super) fn broadcast(draft: &mut Draft, node: &Node) -> Results {
    let (from, to) = (&draft.ty(node.operands[0]).dims, &draft.ty(node.results[0]).dims);
    let x = draft.operand(node, 0)?;
    one(draft.expand(x, from, to)?)
}

/// Writes a Slice of one dim.
pub(super) fn slice(draft: &mut Draft, node: &Node, op: &Slice) -> Results {
    let (from, to) = (draft.ty(node.operands[0]), draft.ty(node.results[0]));
    let x = draft.operand(node, 0)?;
    let (whole, part) = (&from.dims[op.dim as usize], &to.dims[op.dim as usize]);
    if whole == part && (op.start, op.step) == (0, 1) {
        return one(x);
    }
    let count = size(bound(part, "the slice", from)?)?;
    let end = end(op, count)
        .ok_or_else(|| Diagnostic::new(format!("the end of the slice of {from} does not fit in 64 bits")))?;
    one(draft.slice(x, op.dim, op.start, end, op.step))
}

/// Returns the bound after the last of `count` elements. The place before the first element cannot be written directly, because
/// negative places count from the end of the dim. So a slice that runs down to the first element ends at the smallest possible
/// number.
fn end(op: &Slice, count: i64) -> Option<i64> {
    if count == 0 {
        return Some(op.start);
    }
    let last = (count - 1).checked_mul(op.step)?.checked_add(op.start)?;
    if op.step > 0 {
        return last.checked_add(1);
    }
    Some(if last == 0 { i64::MIN + 1 } else { last - 1 })
}

/// Writes Concat.
pub(super) fn concat(draft: &mut Draft, node: &Node, op: &Concat) -> Results {
    let operands = draft.operands(node)?;
    one(draft.push("Concat", &operands, [attribute::int("axis", i64::from(op.dim))]))
}

/// Writes a Pad of one dim with a constant.
pub(super) fn pad(draft: &mut Draft, node: &Node, op: &Pad) -> Results {
    let (from, to) = (draft.ty(node.operands[0]), draft.ty(node.results[0]));
    let dim = op.dim as usize;
    let [inner, outer] =
        [bound(&from.dims[dim], "the padding", from)?, bound(&to.dims[dim], "the padding", to)?];
    let after = outer.checked_sub(inner).and_then(|more| more.checked_sub(op.before));
    let after =
        after.ok_or_else(|| Diagnostic::new(format!("the padding from {from} to {to} removes elements")))?;
    let x = draft.operand(node, 0)?;
    one(draft.pad(x, from.dtype, op.dim, [op.before, after], op.value.get())?)
}

impl Draft<'_> {
    /// Adds a number before and after the elements of a dim.
    ///
    /// # Errors
    /// A size cannot be represented in ONNX.
    pub(super) fn pad(
        &mut self,
        x: TensorId,
        dtype: DType,
        dim: u32,
        [before, after]: [u64; 2],
        value: f64,
    ) -> Result<TensorId, Diagnostic> {
        let pads = self.integers(&[size(before)?, size(after)?]);
        let (value, axes) = (self.number(dtype, value), self.integers(&[i64::from(dim)]));
        Ok(self.push("Pad", &[x, pads, value, axes], []))
    }
}

/// Returns a size that the ONNX operator needs as a number.
fn bound(dim: &Dim, what: &str, ty: &ir::Type) -> Result<u64, Diagnostic> {
    dim.size().ok_or_else(|| {
        Diagnostic::new(format!("{what} of {ty} needs the size {dim}, which is not bound"))
            .note("bind the size with --bind NAME=SIZE")
    })
}
