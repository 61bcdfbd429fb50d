//! Bitwise operators on integers.
//!
//! ONNX shifts only unsigned integers. A signed integer is shifted as the unsigned type of its width. For a shift to the right, a
//! negative number is inverted before and after the shift, so that ones are shifted in.

use super::attribute;
use super::constants::code;
use super::draft::{Draft, TensorId};
use super::operators::{Results, one};
use ir::ops::elementwise::{Bitcast, Bitwise};
use ir::{DType, Node};

/// The operator set that introduced BitCast.
const BIT_CAST: i64 = 26;

/// Writes a function of the bits of two integers.
pub(super) fn bitwise(draft: &mut Draft, node: &Node, op: Bitwise) -> Results {
    let operands = draft.operands(node)?;
    let dtype = draft.ty(node.operands[0]).dtype;
    one(match op {
        Bitwise::And => draft.push("BitwiseAnd", &operands, []),
        Bitwise::Or => draft.push("BitwiseOr", &operands, []),
        Bitwise::Xor => draft.push("BitwiseXor", &operands, []),
        Bitwise::ShiftLeft => shifted(draft, dtype, [operands[0], operands[1]], "LEFT"),
        Bitwise::ShiftRight => match unsigned(dtype) {
            Some(_) => {
                let zero = draft.number(dtype, 0.0);
                let is_negative = draft.push("Less", &[operands[0], zero], []);
                let ones = draft.number(dtype, -1.0);
                let mask = draft.push("Where", &[is_negative, ones, zero], []);
                let inverted = draft.push("BitwiseXor", &[operands[0], mask], []);
                let moved = shifted(draft, dtype, [inverted, operands[1]], "RIGHT");
                draft.push("BitwiseXor", &[moved, mask], [])
            }
            None => shifted(draft, dtype, [operands[0], operands[1]], "RIGHT"),
        },
    })
}

fn shifted(draft: &mut Draft, dtype: DType, operands: [TensorId; 2], direction: &str) -> TensorId {
    let shifts = unsigned(dtype).unwrap_or(dtype);
    let operands = operands.map(|operand| draft.cast(operand, dtype, shifts));
    let moved = draft.push("BitShift", &operands, [attribute::text("direction", direction)]);
    draft.cast(moved, shifts, dtype)
}

/// Returns the unsigned type with the width of a signed type.
fn unsigned(dtype: DType) -> Option<DType> {
    match dtype {
        DType::I64 => Some(DType::U64),
        DType::I32 => Some(DType::U32),
        DType::I16 => Some(DType::U16),
        DType::I8 => Some(DType::U8),
        _ => None,
    }
}

/// BitCast, which needs a newer operator set than other operators.
pub(super) fn bitcast(draft: &mut Draft, node: &Node, op: &Bitcast) -> Results {
    draft.needs_opset(BIT_CAST);
    let x = draft.operand(node, 0)?;
    one(draft.push("BitCast", &[x], [attribute::int("to", code(op.to))]))
}
