//! Lion.

use super::{ONE_STATE, OPTIONAL, cost, factors, no_gradient, update, update_types};
use crate::ops::*;

/// One step of Lion (Chen et al., arXiv 2302.06675, program 1), which moves each element by the learning rate or by zero.
///
/// Operands: `parameter, gradient, m` of one type, `lr, weight_decay` f64 scalars, then `scale` and `skip`. Results: the new
/// `parameter, m`: `p ← p·(1 - lr·weight_decay) - lr·sign(β₁m + (1-β₁)g)`, then `m ← β₂m + (1-β₂)g`. The sign of zero is
/// zero, and that of NaN is NaN.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lion {
    /// The weight of the momentum in the direction of this step.
    pub beta1: Float,
    /// The decay of the momentum.
    pub beta2: Float,
}

/// Returns -1, 0 or 1; NaN for NaN.
fn sign(x: f64) -> f64 {
    if x == 0.0 || x.is_nan() { x } else { x.signum() }
}

impl Operator for Lion {
    fn facts(&self) -> Facts {
        Operands::new(&ONE_STATE).optional_last(OPTIONAL).anywhere(PrecisionClass::Update)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        update_types(types, 5, |parameter| Ok(vec![parameter.clone()]))
    }

    fn factors(&self, signature: &Signature) -> Factors {
        factors(signature).keeping_zeros()
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        no_gradient()
    }

    fn cost(&self, signature: &Signature) -> Cost {
        cost(signature, 5, 10)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let [lr, weight_decay] = [3, 4].map(|i| cx.operands[i].item());
        let [beta1, beta2] = [self.beta1.get(), self.beta2.get()];
        update(cx, 5, |g, [p, m]| {
            let direction = sign(beta1 * m + (1.0 - beta1) * g);
            [p * (1.0 - lr * weight_decay) - lr * direction, beta2 * m + (1.0 - beta2) * g]
        })
    }
}
