//! Level lowered: casts by kernels as they read and write. Invariant 19 of [`crate::verify`].

use crate::ops::{Inference, Op, Operator};
use crate::{DType, Level, Type, TypeError};

/// Returns the result types of an operator at a level. At level lowered an operand may be f16 or bf16 where the operator takes
/// f32; the types are then inferred from widened operands.
pub(crate) fn infer(level: Level, op: &Op, types: &Inference) -> Result<Vec<Type>, TypeError> {
    let exact = op.infer(types);
    if level < Level::Lowered || exact.is_ok() {
        return exact;
    }
    let operands: Vec<Type> = types.operands.iter().map(widened).collect();
    op.infer(&Inference { operands: &operands, declared: types.declared }).or(exact)
}

/// Whether a result may have the type `ty` at a level if its operator infers the type `inferred`.
pub(crate) fn fits(level: Level, ty: &Type, inferred: &Type) -> bool {
    let is_cast = level >= Level::Lowered && ty.dtype.is_float() && inferred.dtype.is_float();
    ty.dims == inferred.dims && (ty.dtype == inferred.dtype || is_cast)
}

fn widened(ty: &Type) -> Type {
    match ty.dtype {
        DType::F16 | DType::BF16 => Type { dtype: DType::F32, ..ty.clone() },
        _ => ty.clone(),
    }
}
