//! Adagrad.

use super::{OPTIONAL, cost, decayed, factors, parameter, scale, skipped};
use crate::ops::*;

/// One step of Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011), as PyTorch defines it (no decay of the rate by itself).
///
/// Operands: `parameter, gradient, sum` of one type, `lr, weight_decay` f64 scalars, then `scale` and `skip`. Results: the
/// new `parameter, sum`: `g ← g + weight_decay·p`, `s ← s + g²`, `p ← p - lr·g / (√s + eps)`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Adagrad {
    /// Added to the root of the sum of squares.
    pub eps: Float,
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
