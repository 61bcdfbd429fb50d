//! The update of a parameter by its gradient, with the optimizer's states.
//!
//! Each update takes two operands more, which may be missing: `scale` and `skip`, or `scale` alone. `scale` is a scalar of
//! the parameter's type; the gradient times `scale` takes the place of the gradient. Loss scaling and clipping give it.
//! `skip` is a bool; where it is true, the results are the old parameter and the old states, whatever the gradient is.

mod adagrad;
mod adam;
mod adam_8bit;
mod lion;
pub mod quantization;
mod sgd;

pub use adagrad::Adagrad;
pub use adam::Adam;
pub use adam_8bit::Adam8bit;
pub use lion::Lion;
pub use sgd::Sgd;

use super::*;
use crate::DType;

/// The index of the gradient among the operands.
const GRADIENT: usize = 1;

/// The operands that every update may have at its end, `scale` and `skip`.
const OPTIONAL: usize = 2;

/// Returns the type of the results of an update whose operands are `same` floats of one type, then f64 scalars up to
/// `required` operands, then perhaps `scale` and `skip`.
fn parameter(types: &Inference, same: usize, required: usize) -> Result<Type, TypeError> {
    let operands = types.operands;
    let most = required + OPTIONAL;
    if operands.len() < required || operands.len() > most {
        let error = format!("takes {required} to {most} operands, not {}", operands.len());
        return Err(TypeError::new(error));
    }
    let parameter = &operands[0];
    if !parameter.dtype.is_float() {
        return Err(TypeError::new(format!("the parameter is {parameter}, not floats")));
    }
    if let Some(i) = (0..same).find(|&i| !operands[i].same_shape(parameter)) {
        return Err(TypeError::new(format!(
            "operand {i} is {}, and the parameter is {parameter}",
            operands[i]
        )));
    }
    let optional = [parameter.dtype, DType::Bool];
    let scalars = std::iter::repeat_n(DType::F64, required - same).chain(optional);
    for ((i, ty), dtype) in operands.iter().enumerate().skip(same).zip(scalars) {
        if ty.dtype != dtype || ty.ndim() != 0 {
            return Err(TypeError::new(format!("operand {i} is {ty}, not a scalar {dtype}")));
        }
    }
    Ok(Type::new(parameter.dtype, parameter.dims.clone()))
}

/// The factors of an update of so many tensors: they share all factors, and the other operands are scalars.
fn factors(signature: &Signature) -> Factors {
    let tensors = signature.results.len() + 1;
    let scalars = signature.operands.len() - tensors;
    let operands = std::iter::repeat_n("*", tensors).chain(std::iter::repeat_n(".", scalars));
    let [operands, results] =
        [operands.collect(), vec!["*"; tensors - 1]].map(|side: Vec<&str>| side.join(", "));
    Factors::rule(&format!("{operands} -> {results}"), signature)
}

/// Every tensor is read or written once. An update that multiplies the gradient has one operation an element more.
fn cost(signature: &Signature, required: usize, flops: u64) -> Cost {
    let scaled = u64::from(signature.operands.len() > required);
    Cost::per_element(signature, &signature.results[0], flops + scaled)
}

/// The number by which the gradient is multiplied, for an update with so many operands before `scale`.
fn scale(cx: &Interp, required: usize) -> f64 {
    cx.operands.get(required).map_or(1.0, |scale| scale.item())
}

/// The old parameter and states, if the update is skipped: it has so many operands before `scale`.
fn skipped(cx: &Interp, required: usize) -> Option<Vec<Tensor>> {
    let skip = cx.operands.get(required + 1)?;
    let old = (0..=cx.results.len()).filter(|&operand| operand != GRADIENT);
    skip.bools()[0].then(|| old.map(|operand| cx.operands[operand].clone()).collect())
}

/// A gradient with the parameter's share. Without decay an infinite parameter stays as it is: zero times it would be NaN.
fn decayed(weight_decay: f64, gradient: f64, parameter: f64) -> f64 {
    if weight_decay == 0.0 { gradient } else { gradient + weight_decay * parameter }
}
