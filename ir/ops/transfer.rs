//! Transfer: passes a value to another stage of a pipeline.

use super::*;

/// The operand, on the stage of the node: `y = x`. The operand's stage sends it, and the node's stage receives it. Only transfers
/// communicate between stages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transfer;

impl Operator for Transfer {
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

    /// `d x = d y`, sent back to the operand's stage, on which the caller puts the nodes.
    fn gradient(&self, b: &mut Builder, _: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        match d[0] {
            Some(gradient) => Ok(vec![Some(b.one(Self, &[gradient])?)]),
            None => Ok(vec![None]),
        }
    }

    fn cost(&self, signature: &Signature) -> Cost {
        let bytes = signature.results[0].bytes().unwrap_or(0);
        Cost { flops: 0, read: bytes, written: bytes }
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        vec![cx.operands[0].clone()]
    }
}
