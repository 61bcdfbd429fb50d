//! The operator that passes values from the microbatches of a step to its update.

use super::*;

/// Sums a value of a microbatch phase over the microbatches. It is the only way from `forward` and `backward` into `update`, and
/// runs in `update`. It is linear, so a partial sum stays partial.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Accumulate;

impl Operator for Accumulate {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(PrecisionClass::Update)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        ensure!(x.dtype.is_float(), "sums floats, not {x}");
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

    /// Returns the value of one microbatch; the interpreter adds the microbatches.
    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        vec![cx.operands[0].clone()]
    }
}
