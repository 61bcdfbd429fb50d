//! Elementwise functions. Most are ONNX operators with another name and the same broadcasting rules.

use super::attribute;
use super::constants::code;
use super::draft::{Draft, TensorId};
use super::operators::{Results, one};
use ir::ops::elementwise::{Binary, Cast, Compare, Logical, Unary};
use ir::{DType, Diagnostic, Node};

/// Writes a function of one number, or `Not` of a bool.
pub(super) fn unary(draft: &mut Draft, node: &Node, op: Unary) -> Results {
    let x = draft.operand(node, 0)?;
    let name = match op {
        Unary::Neg => return negated(draft, node, x),
        Unary::Abs => "Abs",
        Unary::Sign => "Sign",
        Unary::Exp => "Exp",
        Unary::Log => "Log",
        Unary::Sqrt => "Sqrt",
        Unary::Rsqrt => {
            let root = draft.push("Sqrt", &[x], []);
            return one(draft.push("Reciprocal", &[root], []));
        }
        Unary::Reciprocal => "Reciprocal",
        Unary::Sin => "Sin",
        Unary::Cos => "Cos",
        Unary::Atan => "Atan",
        Unary::Tanh => "Tanh",
        Unary::Erf => "Erf",
        Unary::Sigmoid => "Sigmoid",
        Unary::Relu => "Relu",
        Unary::Gelu => "Gelu",
        Unary::GeluTanh => return one(draft.push("Gelu", &[x], [attribute::text("approximate", "tanh")])),
        // Swish exists only from opset 24 on.
        Unary::Silu => {
            let gate = draft.push("Sigmoid", &[x], []);
            return one(draft.push("Mul", &[x, gate], []));
        }
        Unary::Floor => "Floor",
        Unary::Ceil => "Ceil",
        Unary::Round => "Round",
        Unary::IsNan => "IsNaN",
        Unary::Not => "Not",
    };
    one(draft.push(name, &[x], []))
}

/// Writes the negated number. ONNX cannot negate unsigned integers, which wrap here.
fn negated(draft: &mut Draft, node: &Node, x: TensorId) -> Results {
    let dtype = draft.ty(node.operands[0]).dtype;
    if matches!(dtype, DType::U64 | DType::U32 | DType::U16 | DType::U8) {
        let zero = draft.number(dtype, 0.0);
        return one(draft.push("Sub", &[zero, x], []));
    }
    one(draft.push("Neg", &[x], []))
}

/// Writes a function of two numbers. Gradient functions are not supported.
pub(super) fn binary(draft: &mut Draft, node: &Node, op: Binary) -> Results {
    let operands = draft.operands(node)?;
    let name = match op {
        Binary::Add => "Add",
        Binary::Sub => "Sub",
        Binary::Mul => "Mul",
        Binary::Div => match super::loss::mean(draft, node)? {
            Some(mean) => return one(mean),
            None => "Div",
        },
        Binary::Pow => "Pow",
        Binary::Max | Binary::AtLeast => "Max",
        Binary::Min | Binary::AtMost => "Min",
        Binary::Mod if draft.ty(node.operands[0]).dtype.is_float() => {
            return one(modulo(draft, node, [operands[0], operands[1]]));
        }
        Binary::Mod => "Mod",
        Binary::GeluGrad | Binary::GeluTanhGrad | Binary::SiluGrad | Binary::ReluGrad => {
            return Err(Diagnostic::new(format!("ONNX has no form of the operator `{}`", node.op.name())));
        }
    };
    one(draft.push(name, &operands, []))
}

/// Writes `x mod y` of floats with the sign of `y`. ONNX's remainder has the sign of `x`, so `y` is added where the signs differ.
fn modulo(draft: &mut Draft, node: &Node, [x, y]: [TensorId; 2]) -> TensorId {
    let zero = draft.number(draft.ty(node.operands[0]).dtype, 0.0);
    let rest = draft.push("Mod", &[x, y], [attribute::flag("fmod", true)]);
    let [below, divisor_below] = [rest, y].map(|number| draft.push("Less", &[number, zero], []));
    let differs = draft.push("Xor", &[below, divisor_below], []);
    let is_zero = draft.push("Equal", &[rest, zero], []);
    let is_rest = draft.push("Not", &[is_zero], []);
    let moves = draft.push("And", &[differs, is_rest], []);
    let moved = draft.push("Add", &[rest, y], []);
    draft.push("Where", &[moves, moved, rest], [])
}

/// Writes a comparison.
pub(super) fn compare(draft: &mut Draft, node: &Node, op: Compare) -> Results {
    let operands = draft.operands(node)?;
    let name = match op {
        Compare::Equal => "Equal",
        Compare::Less => "Less",
        Compare::LessEqual => "LessOrEqual",
        Compare::Greater => "Greater",
        Compare::GreaterEqual => "GreaterOrEqual",
    };
    one(draft.push(name, &operands, []))
}

/// Writes a function of two bools.
pub(super) fn logical(draft: &mut Draft, node: &Node, op: Logical) -> Results {
    let operands = draft.operands(node)?;
    let name = match op {
        Logical::And => "And",
        Logical::Or => "Or",
        Logical::Xor => "Xor",
    };
    one(draft.push(name, &operands, []))
}

/// Writes Where.
pub(super) fn select(draft: &mut Draft, node: &Node) -> Results {
    let operands = draft.operands(node)?;
    one(draft.push("Where", &operands, []))
}

/// Writes Cast.
pub(super) fn cast(draft: &mut Draft, node: &Node, op: &Cast) -> Results {
    let x = draft.operand(node, 0)?;
    one(draft.push("Cast", &[x], [attribute::int("to", code(op.to))]))
}

/// Writes Det.
pub(super) fn det(draft: &mut Draft, node: &Node) -> Results {
    let x = draft.operand(node, 0)?;
    one(draft.push("Det", &[x], []))
}
