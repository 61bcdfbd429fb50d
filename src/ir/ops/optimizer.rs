//! The update of a parameter by its gradient, with the optimizer's states.
//!
//! Each update takes two operands more, which may be missing: `scale` and `skip`, or `scale` alone. `scale` is a scalar of
//! the parameter's type; the gradient times `scale` takes the place of the gradient. Loss scaling and clipping give it.
//! `skip` is a bool; where it is true, the results are the old parameter and the old states, whatever the gradient is.

use super::*;
use crate::DType;

/// One step of Adam (Kingma and Ba, arXiv 1412.6980) or, `decoupled`, AdamW (Loshchilov and Hutter, arXiv 1711.05101).
///
/// Operands: `parameter, gradient, m, v` of one type, `lr, weight_decay, step` f64 scalars with `step` counting from 1, then
/// `scale` and `skip`. Results: the new `parameter, m, v`. Decoupled decay multiplies
/// the parameter by `1 - lr·weight_decay` first; else `weight_decay·parameter` is added to the gradient. Then
/// `m ← β₁m + (1-β₁)g`, `v ← β₂v + (1-β₂)g²`, `p ← p - lr·(m/(1-β₁ᵗ)) / (√(v/(1-β₂ᵗ)) + eps)`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Adam {
    /// Decay of the first moment.
    pub beta1: Float,
    /// Decay of the second moment.
    pub beta2: Float,
    /// Added to the root of the second moment.
    pub eps: Float,
    /// Whether the weight decay bypasses the moments (AdamW).
    pub decoupled: bool,
}

/// One step of gradient descent with momentum, as PyTorch defines it (dampening 0).
///
/// Operands: `parameter, gradient, velocity` of one type, `lr, weight_decay` f64 scalars, then `scale` and `skip`. Results:
/// the new `parameter, velocity`: `g ← g + weight_decay·p`, `u ← momentum·u + g`, `p ← p - lr·u` (`nesterov`:
/// `p ← p - lr·(g + momentum·u)`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sgd {
    /// Decay of the velocity; 0 for plain gradient descent.
    pub momentum: Float,
    /// Whether the step looks ahead (Nesterov).
    pub nesterov: bool,
}

/// One step of Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011), as PyTorch defines it (no decay of the rate by itself).
///
/// Operands: `parameter, gradient, sum` of one type, `lr, weight_decay` f64 scalars, then `scale` and `skip`. Results: the
/// new `parameter, sum`: `g ← g + weight_decay·p`, `s ← s + g²`, `p ← p - lr·g / (√s + eps)`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Adagrad {
    /// Added to the root of the sum of squares.
    pub eps: Float,
}

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

impl Operator for Adam {
    fn operands(&self) -> Operands {
        Operands::new(&[
            OperandRole::Weight,
            OperandRole::Gradient,
            OperandRole::State,
            OperandRole::State,
            OperandRole::LearningRate,
            OperandRole::WeightDecay,
            OperandRole::Step,
            OperandRole::GradientScale,
            OperandRole::Skip,
        ])
        .optional_last(OPTIONAL)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        Ok(vec![parameter(types, 4, 7)?; 3])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        factors(signature).keeping_zeros()
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::Undefined("an update has no gradient"))
    }

    fn cost(&self, signature: &Signature) -> Cost {
        cost(signature, 7, 15)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        if let Some(old) = skipped(cx, 7) {
            return old;
        }
        let scale = scale(cx, 7);
        let [lr, weight_decay, step] = [4, 5, 6].map(|i| cx.operands[i].item());
        let [beta1, beta2] = [self.beta1.get(), self.beta2.get()];
        let (correction1, correction2) = (1.0 - beta1.powf(step), 1.0 - beta2.powf(step));
        let len = cx.operands[0].len();
        let [mut parameters, mut first, mut second] = [0; 3].map(|_| Vec::with_capacity(len));
        let operands = [0, 1, 2, 3].map(|operand| cx.operands[operand].floats());
        for i in 0..len {
            let [mut p, mut g, mut m, mut v] = operands.map(|elements| elements[i]);
            g *= scale;
            if self.decoupled {
                p *= 1.0 - lr * weight_decay;
            } else {
                g = decayed(weight_decay, g, p);
            }
            m = beta1 * m + (1.0 - beta1) * g;
            v = beta2 * v + (1.0 - beta2) * g * g;
            p -= lr * (m / correction1) / ((v / correction2).sqrt() + self.eps.get());
            parameters.push(p);
            first.push(m);
            second.push(v);
        }
        let out = |elements| Tensor::float(cx.results[0].dtype, cx.sizes(0), elements);
        vec![out(parameters), out(first), out(second)]
    }
}

/// A gradient with the parameter's share. Without decay an infinite parameter stays as it is: zero times it would be NaN.
fn decayed(weight_decay: f64, gradient: f64, parameter: f64) -> f64 {
    if weight_decay == 0.0 { gradient } else { gradient + weight_decay * parameter }
}

impl Operator for Sgd {
    fn operands(&self) -> Operands {
        Operands::new(&[
            OperandRole::Weight,
            OperandRole::Gradient,
            OperandRole::State,
            OperandRole::LearningRate,
            OperandRole::WeightDecay,
            OperandRole::GradientScale,
            OperandRole::Skip,
        ])
        .optional_last(OPTIONAL)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        Ok(vec![parameter(types, 3, 5)?; 2])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        factors(signature).keeping_zeros()
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::Undefined("an update has no gradient"))
    }

    fn cost(&self, signature: &Signature) -> Cost {
        cost(signature, 5, 6)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        if let Some(old) = skipped(cx, 5) {
            return old;
        }
        let scale = scale(cx, 5);
        let [lr, weight_decay] = [3, 4].map(|i| cx.operands[i].item());
        let momentum = self.momentum.get();
        let len = cx.operands[0].len();
        let [mut parameters, mut velocities] = [0; 2].map(|_| Vec::with_capacity(len));
        let operands = [0, 1, 2].map(|operand| cx.operands[operand].floats());
        for i in 0..len {
            let [p, g, u] = operands.map(|elements| elements[i]);
            let g = decayed(weight_decay, scale * g, p);
            let u = momentum * u + g;
            parameters.push(p - lr * if self.nesterov { g + momentum * u } else { u });
            velocities.push(u);
        }
        let out = |elements| Tensor::float(cx.results[0].dtype, cx.sizes(0), elements);
        vec![out(parameters), out(velocities)]
    }
}

impl Operator for Adagrad {
    fn operands(&self) -> Operands {
        Operands::new(&[
            OperandRole::Weight,
            OperandRole::Gradient,
            OperandRole::State,
            OperandRole::LearningRate,
            OperandRole::WeightDecay,
            OperandRole::GradientScale,
            OperandRole::Skip,
        ])
        .optional_last(OPTIONAL)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        Ok(vec![parameter(types, 3, 5)?; 2])
    }

    /// The sum starts from zeros: without eps the step would divide zero by it.
    fn factors(&self, signature: &Signature) -> Factors {
        let factors = factors(signature);
        if self.eps.get() > 0.0 { factors.keeping_zeros() } else { factors }
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::Undefined("an update has no gradient"))
    }

    fn cost(&self, signature: &Signature) -> Cost {
        cost(signature, 5, 9)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        if let Some(old) = skipped(cx, 5) {
            return old;
        }
        let scale = scale(cx, 5);
        let [lr, weight_decay] = [3, 4].map(|i| cx.operands[i].item());
        let len = cx.operands[0].len();
        let [mut parameters, mut sums] = [0; 2].map(|_| Vec::with_capacity(len));
        let operands = [0, 1, 2].map(|operand| cx.operands[operand].floats());
        for i in 0..len {
            let [p, g, s] = operands.map(|elements| elements[i]);
            let g = decayed(weight_decay, scale * g, p);
            let s = s + g * g;
            parameters.push(p - lr * g / (s.sqrt() + self.eps.get()));
            sums.push(s);
        }
        let out = |elements| Tensor::float(cx.results[0].dtype, cx.sizes(0), elements);
        vec![out(parameters), out(sums)]
    }
}
