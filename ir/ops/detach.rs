//! Detach: stops the gradient at a value, as PyTorch's `Tensor.detach`.

use super::*;

/// The operand, as a constant of the gradient: `y = x`, `d x = 0`. After the backward phase has been added to a program, the
/// operator has no further effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Detach;

impl Operator for Detach {
    fn facts(&self) -> Facts {
        Operands::view(Movement::Same).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        Ok(vec![Type::new(x.dtype, x.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::elementwise(signature).linear_in(&[0])
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Ok(vec![None])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        let bytes = signature.results[0].bytes().unwrap_or(0);
        Cost { flops: 0, read: bytes, written: bytes }
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        vec![cx.operands[0].clone()]
    }
}
