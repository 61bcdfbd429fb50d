//! Gradient descent with momentum.

use super::{OPTIONAL, cost, decayed, factors, parameter, scale, skipped};
use crate::ops::*;

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
