//! Updates of a parameter by its gradient, with the optimizer's states.
//!
//! Each update has two optional operands at the end: `scale` and `skip`, or `scale` alone. `scale` is a scalar of the parameter's
//! type by which the gradient is multiplied; loss scaling and clipping compute it. `skip` is a bool. If it is true, the results
//! are the old parameter and the old states, whatever the gradient is.

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

/// The number of optional operands at the end of every update: `scale` and `skip`.
const OPTIONAL: usize = 2;

/// The roles of the operands of an update with one state and no step.
const ONE_STATE: [OperandRole; 7] = [
    OperandRole::Weight,
    OperandRole::Gradient,
    OperandRole::State,
    OperandRole::LearningRate,
    OperandRole::WeightDecay,
    OperandRole::GradientScale,
    OperandRole::Skip,
];

/// Returns the types of an update's results: the parameter's, then those of its states, which `states` returns for the parameter.
/// The operands are the parameter, its gradient and the states, then f64 scalars up to `required` operands, then perhaps `scale`
/// and `skip`.
fn update_types(
    types: &Inference,
    required: usize,
    states: impl FnOnce(&Type) -> Result<Vec<Type>, TypeError>,
) -> Result<Vec<Type>, TypeError> {
    let operands = types.operands;
    let most = required + OPTIONAL;
    if operands.len() < required || operands.len() > most {
        let error = format!("takes {required} to {most} operands, not {}", operands.len());
        return Err(TypeError::new(error));
    }
    ensure!(operands[0].dtype.is_float(), "the parameter is {}, not floats", operands[0]);
    let parameter = Type::new(operands[0].dtype, operands[0].dims.clone());
    let states = states(&parameter)?;
    let tensors = [&parameter, &parameter].into_iter().chain(&states);
    for (i, (given, expected)) in operands.iter().zip(tensors).enumerate() {
        ensure!(given.same_shape(expected), "operand {i} is {given}, not {expected}");
    }
    let first = 2 + states.len();
    let scalars = std::iter::repeat_n(DType::F64, required - first).chain([parameter.dtype, DType::Bool]);
    for ((i, ty), dtype) in operands.iter().enumerate().skip(first).zip(scalars) {
        ensure!(ty.dtype == dtype && ty.ndim() == 0, "operand {i} is {ty}, not a scalar {dtype}");
    }
    Ok([vec![parameter], states].concat())
}

/// An update has no gradient.
fn no_gradient() -> Gradients {
    Err(GradientError::Undefined("an update has no gradient"))
}

/// Returns the factors of an update: its tensors share all factors, and the other operands are scalars.
fn factors(signature: &Signature) -> Factors {
    let tensors = signature.results.len() + 1;
    let scalars = signature.operands.len() - tensors;
    let operands = std::iter::repeat_n("*", tensors).chain(std::iter::repeat_n(".", scalars));
    let [operands, results] =
        [operands.collect(), vec!["*"; tensors - 1]].map(|side: Vec<&str>| side.join(", "));
    Factors::rule(&format!("{operands} -> {results}"), signature)
}

/// Counts every tensor as read or written once. An update that scales the gradient has one more operation per element.
fn cost(signature: &Signature, required: usize, flops: u64) -> Cost {
    let scaled = u64::from(signature.operands.len() > required);
    Cost::per_element(signature, &signature.results[0], flops + scaled)
}

/// Returns the factor of the gradient. The update has `required` operands before `scale`.
fn scale(cx: &Interp, required: usize) -> f64 {
    cx.operands.get(required).map_or(1.0, |scale| scale.item())
}

/// Returns the old parameter and states if the update is skipped. The update has `required` operands before `scale`.
fn skipped(cx: &Interp, required: usize) -> Option<Vec<Tensor>> {
    let skip = cx.operands.get(required + 1)?;
    let old = (0..=cx.results.len()).filter(|&operand| operand != GRADIENT);
    skip.bools()[0].then(|| old.map(|operand| cx.operands[operand].clone()).collect())
}

/// Applies `rule` to each element. It takes the scaled gradient and the `N` numbers of the parameter and its states, and returns
/// their new numbers. The update has `required` operands before `scale`.
fn update<const N: usize>(
    cx: &Interp,
    required: usize,
    rule: impl Fn(f64, [f64; N]) -> [f64; N],
) -> Vec<Tensor> {
    if let Some(old) = skipped(cx, required) {
        return old;
    }
    let (scale, gradient) = (scale(cx, required), cx.operands[GRADIENT].floats());
    let old: [&[f64]; N] = std::array::from_fn(|i| cx.operands[if i == 0 { 0 } else { i + 1 }].floats());
    let mut new = [const { vec![] }; N];
    for (i, g) in gradient.iter().enumerate() {
        let numbers = rule(scale * g, old.map(|elements| elements[i]));
        new.iter_mut().zip(numbers).for_each(|(new, number)| new.push(number));
    }
    let tensor = |(i, numbers): (usize, Vec<f64>)| Tensor::float(cx.results[i].dtype, cx.sizes(i), numbers);
    new.into_iter().enumerate().map(tensor).collect()
}

/// Adds weight decay to a gradient. Zero decay is skipped, because zero times an infinite parameter would be NaN.
fn decayed(weight_decay: f64, gradient: f64, parameter: f64) -> f64 {
    if weight_decay == 0.0 { gradient } else { gradient + weight_decay * parameter }
}
