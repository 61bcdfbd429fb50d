//! Lion.

use super::{OPTIONAL, cost, factors, parameter, scale, skipped};
use crate::ops::*;

/// One step of Lion (Chen et al., arXiv 2302.06675, program 1), which moves each element by the learning rate or not at all.
///
/// Operands: `parameter, gradient, m` of one type, `lr, weight_decay` f64 scalars, then `scale` and `skip`. Results: the new
/// `parameter, m`: `p ← p·(1 - lr·weight_decay) - lr·sign(β₁m + (1-β₁)g)`, then `m ← β₂m + (1-β₂)g`. The sign of zero is
/// zero, and that of NaN is NaN.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lion {
    /// Share of the momentum in the direction of this step.
    pub beta1: Float,
    /// Decay of the momentum.
    pub beta2: Float,
}

/// -1, 0 or 1; NaN of NaN.
fn sign(x: f64) -> f64 {
    if x == 0.0 || x.is_nan() { x } else { x.signum() }
}

impl Operator for Lion {
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
        cost(signature, 5, 10)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        if let Some(old) = skipped(cx, 5) {
            return old;
        }
        let scale = scale(cx, 5);
        let [lr, weight_decay] = [3, 4].map(|i| cx.operands[i].item());
        let [beta1, beta2] = [self.beta1.get(), self.beta2.get()];
        let len = cx.operands[0].len();
        let [mut parameters, mut momenta] = [0; 2].map(|_| Vec::with_capacity(len));
        let operands = [0, 1, 2].map(|operand| cx.operands[operand].floats());
        for i in 0..len {
            let [p, g, m] = operands.map(|elements| elements[i]);
            let g = scale * g;
            let direction = sign(beta1 * m + (1.0 - beta1) * g);
            parameters.push(p * (1.0 - lr * weight_decay) - lr * direction);
            momenta.push(beta2 * m + (1.0 - beta2) * g);
        }
        let out = |elements| Tensor::float(cx.results[0].dtype, cx.sizes(0), elements);
        vec![out(parameters), out(momenta)]
    }
}
