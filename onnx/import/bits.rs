//! Bitwise operators on integers: BitwiseAnd and the like, BitShift, BitCast.

use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use ir::ops::elementwise::{Bitcast, Bitwise};
use ir::{DType, ensure};

/// BitwiseAnd, BitwiseOr, BitwiseXor and BitShift. The standard does not define shifts by a negative amount. In its tests, which
/// numpy made, they shift all bits out.
pub(super) fn bitwise(cx: &mut Context, call: &Call) -> Outputs {
    let direction = if call.op() == "BitShift" { call.string("direction") } else { None };
    let op = match (call.op(), direction) {
        ("BitwiseAnd", _) => Bitwise::And,
        ("BitwiseOr", _) => Bitwise::Or,
        ("BitwiseXor", _) => Bitwise::Xor,
        ("BitShift", Some("LEFT")) => Bitwise::ShiftLeft,
        ("BitShift", Some("RIGHT")) => Bitwise::ShiftRight,
        ("BitShift", direction) => {
            let direction = direction.unwrap_or("nowhere");
            return Err(Problem::new(format!("the shift direction {direction} is neither LEFT nor RIGHT")));
        }
        (other, _) => return Err(Problem::new(format!("`{other}` is not a bitwise operator"))),
    };
    let (x, y) = (cx.value(call, 0)?, cx.value(call, 1)?);
    one(cx.b.one(op, &[x, y])?)
}

/// BitwiseNot: XOR with -1, which has all bits set.
pub(super) fn bitwise_not(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    ensure!(cx.ty(x).dtype.is_integer(), "only integers have bits to invert; the operand is {}", cx.ty(x));
    let zero = cx.b.splat_like(x, 0.0)?;
    let ones = cx.build(zero - 1.0)?;
    one(cx.b.one(Bitwise::Xor, &[x, ones])?)
}

/// BitCast. As a bool, every byte except zero is true.
pub(super) fn bit_cast(cx: &mut Context, call: &Call) -> Outputs {
    let (x, to) = (cx.value(call, 0)?, call.dtype("to")?);
    let from = cx.ty(x).dtype;
    if from == to {
        return one(x);
    }
    if to == DType::Bool && from.bytes() == 1 {
        return one(cx.b.cast(x, to)?);
    }
    one(cx.b.one(Bitcast { to }, &[x])?)
}
