//! Adam and AdamW.

use super::{OPTIONAL, cost, decayed, factors, parameter, scale, skipped};
use crate::DType;
use crate::ops::*;

/// One step of Adam (Kingma and Ba, arXiv 1412.6980) or, `decoupled`, AdamW (Loshchilov and Hutter, arXiv 1711.05101).
///
/// Operands: `parameter, gradient, m, v` of one type, or `m, v` of bf16 (see [`Adam::moments_may_be`]), `lr, weight_decay, step` f64 scalars with `step` counting from 1, then
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

impl Adam {
    /// Whether the moments of a parameter of this type may have that type: the same, or bf16, unless the parameter is f64.
    pub fn moments_may_be(moments: DType, parameter: DType) -> bool {
        moments == parameter || moments == DType::BF16 && matches!(parameter, DType::F32 | DType::F16)
    }
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
        let moments = types.operands.get(2).map_or(DType::F32, |moments| moments.dtype);
        let own = types.operands.first().map_or(moments, |parameter| parameter.dtype);
        if !Self::moments_may_be(moments, own) {
            return Err(TypeError::new(format!("moments of a parameter of {own} cannot be {moments}")));
        }
        let as_parameter = |(i, ty): (usize, &Type)| match i {
            2 | 3 if ty.dtype == moments => ty.with_dtype(own),
            _ => ty.clone(),
        };
        let operands: Vec<Type> = types.operands.iter().enumerate().map(as_parameter).collect();
        let new = parameter(&Inference { operands: &operands, declared: types.declared }, 4, 7)?;
        Ok(vec![new.clone(), new.with_dtype(moments), new.with_dtype(moments)])
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
        let out =
            |result: usize, elements| Tensor::float(cx.results[result].dtype, cx.sizes(result), elements);
        vec![out(0, parameters), out(1, first), out(2, second)]
    }
}
