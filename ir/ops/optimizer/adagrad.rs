//! Adagrad.

use super::{ONE_STATE, OPTIONAL, cost, decayed, factors, no_gradient, update, update_types};
use crate::ops::*;

/// One step of Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011), as PyTorch defines it, without learning-rate decay of its own.
///
/// Operands: `parameter, gradient, sum` of one type, `lr, weight_decay` f64 scalars, then `scale` and `skip`. Results: the
/// new `parameter, sum`: `g ← g + weight_decay·p`, `s ← s + g²`, `p ← p - lr·g / (√s + eps)`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Adagrad {
    /// A number that is added to the root of the sum of squares.
    pub eps: Float,
}

impl Operator for Adagrad {
    fn facts(&self) -> Facts {
        Operands::new(&ONE_STATE).optional_last(OPTIONAL).anywhere(PrecisionClass::Update)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        update_types(types, 5, |parameter| Ok(vec![parameter.clone()]))
    }

    /// The sum starts at zero. Without eps, padded zeros would become 0/0.
    fn factors(&self, signature: &Signature) -> Factors {
        let factors = factors(signature);
        if self.eps.get() > 0.0 { factors.keeping_zeros() } else { factors }
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        no_gradient()
    }

    fn cost(&self, signature: &Signature) -> Cost {
        cost(signature, 5, 9)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let [lr, weight_decay] = [3, 4].map(|i| cx.operands[i].item());
        update(cx, 5, |g, [p, s]| {
            let g = decayed(weight_decay, g, p);
            let s = s + g * g;
            [p - lr * g / (s.sqrt() + self.eps.get()), s]
        })
    }
}
