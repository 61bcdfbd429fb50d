//! Adam and AdamW.

use super::{OPTIONAL, cost, decayed, factors, no_gradient, update, update_types};
use crate::DType;
use crate::ops::*;

/// One step of Adam (Kingma and Ba, arXiv 1412.6980) or, `decoupled`, AdamW (Loshchilov and Hutter, arXiv 1711.05101).
///
/// Operands: `parameter, gradient, m, v` of one type, or `m, v` of bf16 (see [`Adam::moments_may_be`]), `lr, weight_decay, step` f64
/// scalars with `step` counting from 1, then `scale` and `skip`. Results: the new `parameter, m, v`. Decoupled decay multiplies
/// the parameter by `1 - lr·weight_decay` first; else `weight_decay·parameter` is added to the gradient. Then
/// `m ← β₁m + (1-β₁)g`, `v ← β₂v + (1-β₂)g²`, `p ← p - lr·(m/(1-β₁ᵗ)) / (√(v/(1-β₂ᵗ)) + eps)`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Adam {
    /// The decay of the first moment.
    pub beta1: Float,
    /// The decay of the second moment.
    pub beta2: Float,
    /// A number that is added to the root of the second moment.
    pub eps: Float,
    /// Whether the weight decay bypasses the moments (AdamW).
    pub decoupled: bool,
}

impl Adam {
    /// Whether the moments of a parameter may have this type: the parameter's type, or bf16 unless the parameter is f64.
    pub fn moments_may_be(moments: DType, parameter: DType) -> bool {
        moments == parameter || moments == DType::BF16 && matches!(parameter, DType::F32 | DType::F16)
    }
}

impl Operator for Adam {
    fn facts(&self) -> Facts {
        use OperandRole::*;
        Operands::new(&[Weight, Gradient, State, State, LearningRate, WeightDecay, Step, GradientScale, Skip])
            .optional_last(OPTIONAL)
            .anywhere(PrecisionClass::Update)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        update_types(types, 7, |parameter| {
            let moments = types.operands[2].dtype;
            if Self::moments_may_be(moments, parameter.dtype) {
                Ok(vec![parameter.with_dtype(moments); 2])
            } else {
                let error = format!("moments of a parameter of {} cannot be {moments}", parameter.dtype);
                Err(TypeError::new(error))
            }
        })
    }

    fn factors(&self, signature: &Signature) -> Factors {
        factors(signature).keeping_zeros()
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        no_gradient()
    }

    fn cost(&self, signature: &Signature) -> Cost {
        cost(signature, 7, 15)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let step = AdamStep::of(self, [4, 5, 6].map(|i| cx.operands[i].item()));
        update(cx, 7, |g, old| step.next(g, old))
    }
}

/// The constants of a step of Adam.
pub(super) struct AdamStep<'a> {
    rule: &'a Adam,
    lr: f64,
    weight_decay: f64,
    /// The bias corrections of the moments, as divisors.
    corrections: [f64; 2],
}

impl<'a> AdamStep<'a> {
    /// Makes a step with this learning rate, weight decay and step number, which counts from 1.
    pub(super) fn of(rule: &'a Adam, [lr, weight_decay, step]: [f64; 3]) -> Self {
        let corrections = [rule.beta1, rule.beta2].map(|beta| 1.0 - beta.get().powf(step));
        Self { rule, lr, weight_decay, corrections }
    }

    /// Returns the new parameter and moments of an element.
    pub(super) fn next(&self, mut g: f64, [mut p, m, v]: [f64; 3]) -> [f64; 3] {
        let [beta1, beta2] = [self.rule.beta1.get(), self.rule.beta2.get()];
        if self.rule.decoupled {
            p *= 1.0 - self.lr * self.weight_decay;
        } else {
            g = decayed(self.weight_decay, g, p);
        }
        let (m, v) = (beta1 * m + (1.0 - beta1) * g, beta2 * v + (1.0 - beta2) * g * g);
        let root = (v / self.corrections[1]).sqrt();
        [p - self.lr * (m / self.corrections[0]) / (root + self.rule.eps.get()), m, v]
    }
}
