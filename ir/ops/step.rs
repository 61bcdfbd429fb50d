//! What ties the phases of a step together.

use super::*;

/// The sum over the microbatches of a value of a microbatch phase. The only door from `forward` and `backward` into
/// `update`; it runs in `update`. Linear, so a partial sum stays partial through it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Accumulate;

impl Operator for Accumulate {
    fn operands(&self) -> Operands {
        Operands::new(&[OperandRole::Data])
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        if !x.dtype.is_float() {
            return Err(TypeError::new(format!("sums floats, not {x}")));
        }
        Ok(vec![Type::new(x.dtype, x.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::elementwise(signature).linear_in(&[0]).keeping_zeros()
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::Undefined("the update phase has no gradient"))
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 1)
    }

    /// Of one microbatch; the interpreter adds the microbatches up.
    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        vec![cx.operands[0].clone()]
    }
}
