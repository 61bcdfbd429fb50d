//! Gradient descent with momentum.

use super::{ONE_STATE, OPTIONAL, cost, decayed, factors, no_gradient, update, update_types};
use crate::ops::*;

/// One step of gradient descent with momentum, as PyTorch defines it (dampening 0).
///
/// Operands: `parameter, gradient, velocity` of one type, `lr, weight_decay` f64 scalars, then `scale` and `skip`. Results:
/// the new `parameter, velocity`: `g ← g + weight_decay·p`, `u ← momentum·u + g`, `p ← p - lr·u` (`nesterov`:
/// `p ← p - lr·(g + momentum·u)`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sgd {
    /// The decay of the velocity; 0 for plain gradient descent.
    pub momentum: Float,
    /// Whether the step looks ahead (Nesterov).
    pub nesterov: bool,
}

impl Operator for Sgd {
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
        cost(signature, 5, 6)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let [lr, weight_decay] = [3, 4].map(|i| cx.operands[i].item());
        let momentum = self.momentum.get();
        update(cx, 5, |g, [p, u]| {
            let g = decayed(weight_decay, g, p);
            let u = momentum * u + g;
            [p - lr * if self.nesterov { g + momentum * u } else { u }, u]
        })
    }
}
