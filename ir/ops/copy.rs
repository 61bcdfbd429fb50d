//! Copy: moves a value to another memory of its rank.

use super::*;
use crate::Tier;

/// The operand in the memory `to`: `y = x`. Only copies move values between tiers: every other node has its operands and its
/// results in the memory of its place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Copy {
    /// The memory of the result. The operand lies in a different memory.
    pub to: Tier,
}

impl Operator for Copy {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        Ok(vec![Type::new(x.dtype, x.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::elementwise(signature).linear_in(&[0]).keeping_zeros()
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::Undefined("copies between memories are made after backward"))
    }

    fn cost(&self, signature: &Signature) -> Cost {
        let bytes = signature.results[0].bytes().unwrap_or(0);
        Cost { flops: 0, read: bytes, written: bytes }
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        vec![cx.operands[0].clone()]
    }
}
