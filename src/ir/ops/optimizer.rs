//! The update of a parameter by its gradient, with the optimizer's states.

use super::*;
use crate::DType;

/// One step of Adam (Kingma and Ba, arXiv 1412.6980) or, `decoupled`, AdamW (Loshchilov and Hutter, arXiv 1711.05101).
///
/// Operands, all of the parameter's type but the last three, which are f64 scalars: `parameter, gradient, m, v, lr,
/// weight_decay, step` with `step` counting from 1. Results: the new `parameter, m, v`. Decoupled decay multiplies
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
/// Operands: `parameter, gradient, velocity` of one type, `lr, weight_decay` f64 scalars. Results: the new `parameter,
/// velocity`: `g ← g + weight_decay·p`, `u ← momentum·u + g`, `p ← p - lr·u` (`nesterov`: `p ← p - lr·(g + momentum·u)`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sgd {
    /// Decay of the velocity; 0 for plain gradient descent.
    pub momentum: Float,
    /// Whether the step looks ahead (Nesterov).
    pub nesterov: bool,
}

/// One step of Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011), as PyTorch defines it (no decay of the rate by itself).
///
/// Operands: `parameter, gradient, sum` of one type, `lr, weight_decay` f64 scalars. Results: the new `parameter, sum`:
/// `g ← g + weight_decay·p`, `s ← s + g²`, `p ← p - lr·g / (√s + eps)`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Adagrad {
    /// Added to the root of the sum of squares.
    pub eps: Float,
}

/// The first `same` operands are floats of one type, the rest f64 scalars: the type of the parameter.
fn parameter<const N: usize>(types: &Inference, same: usize) -> Result<Type, TypeError> {
    let operands = types.operands::<N>()?;
    let parameter = operands[0];
    if !parameter.dtype.is_float() {
        return Err(TypeError::new(format!("the parameter is {parameter}, not floats")));
    }
    for (i, ty) in operands.iter().enumerate() {
        if i < same && !ty.same_shape(parameter) {
            return Err(TypeError::new(format!("operand {i} is {ty}, and the parameter is {parameter}")));
        }
        if i >= same && (ty.dtype != DType::F64 || ty.ndim() != 0) {
            return Err(TypeError::new(format!("operand {i} is {ty}, not a scalar f64")));
        }
    }
    Ok(Type::new(parameter.dtype, parameter.dims.clone()))
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
        ])
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        Ok(vec![parameter::<7>(types, 4)?; 3])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::rule("*, *, *, *, ., ., . -> *, *, *", signature).keeping_zeros()
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::Undefined("an update has no gradient"))
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 15)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let [lr, weight_decay, step] = [4, 5, 6].map(|i| cx.operands[i].item());
        let [beta1, beta2] = [self.beta1.get(), self.beta2.get()];
        let (correction1, correction2) = (1.0 - beta1.powf(step), 1.0 - beta2.powf(step));
        let len = cx.operands[0].len();
        let [mut parameters, mut first, mut second] = [0; 3].map(|_| Vec::with_capacity(len));
        let operands = [0, 1, 2, 3].map(|operand| cx.operands[operand].floats());
        for i in 0..len {
            let [mut p, mut g, mut m, mut v] = operands.map(|elements| elements[i]);
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
        ])
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        Ok(vec![parameter::<5>(types, 3)?; 2])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::rule("*, *, *, ., . -> *, *", signature).keeping_zeros()
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::Undefined("an update has no gradient"))
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 6)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let [lr, weight_decay] = [3, 4].map(|i| cx.operands[i].item());
        let momentum = self.momentum.get();
        let len = cx.operands[0].len();
        let [mut parameters, mut velocities] = [0; 2].map(|_| Vec::with_capacity(len));
        let operands = [0, 1, 2].map(|operand| cx.operands[operand].floats());
        for i in 0..len {
            let [p, g, u] = operands.map(|elements| elements[i]);
            let g = decayed(weight_decay, g, p);
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
        ])
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        Ok(vec![parameter::<5>(types, 3)?; 2])
    }

    /// The sum starts from zeros: without eps the step would divide zero by it.
    fn factors(&self, signature: &Signature) -> Factors {
        let factors = Factors::rule("*, *, *, ., . -> *, *", signature);
        if self.eps.get() > 0.0 { factors.keeping_zeros() } else { factors }
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::Undefined("an update has no gradient"))
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 9)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let [lr, weight_decay] = [3, 4].map(|i| cx.operands[i].item());
        let len = cx.operands[0].len();
        let [mut parameters, mut sums] = [0; 2].map(|_| Vec::with_capacity(len));
        let operands = [0, 1, 2].map(|operand| cx.operands[operand].floats());
        for i in 0..len {
            let [p, g, s] = operands.map(|elements| elements[i]);
            let g = decayed(weight_decay, g, p);
            let s = s + g * g;
            parameters.push(p - lr * g / (s.sqrt() + self.eps.get()));
            sums.push(s);
        }
        let out = |elements| Tensor::float(cx.results[0].dtype, cx.sizes(0), elements);
        vec![out(parameters), out(sums)]
    }
}
