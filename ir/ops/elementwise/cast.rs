//! Conversion of elements to another type.

use super::super::*;
use crate::DType;
use crate::tensor::Elements;

/// Conversion to another type: to floats rounds to nearest even, float to integer truncates, and to bool is `≠ 0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cast {
    /// The type of the result.
    pub to: DType,
}

impl Operator for Cast {
    fn facts(&self) -> Facts {
        Operands::view(Movement::Converted)
            .anywhere(PrecisionClass::Convert)
            .reading(&[(OperandRole::Data, Reads::Any)])
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        Ok(vec![Type::new(self.to, x.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        let factors = Factors::elementwise(signature).keeping_zeros();
        let floats = signature.operands[0].dtype.is_float() && self.to.is_float();
        if floats { factors.linear_in(&[0]) } else { factors }
    }

    /// The gradient is cast back. Integers pass no gradient.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let from = b.ty(node.operands[0]).dtype;
        match d[0] {
            Some(dout) if from.is_float() && self.to.is_float() => {
                Ok(vec![Some(b.one(Self { to: from }, &[dout])?)])
            }
            _ => Ok(vec![None]),
        }
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::streaming(signature, 0)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let x = cx.operands[0];
        let sizes = x.sizes.clone();
        // Conversion between integer types bypasses f64, which holds only 53 bits.
        vec![match &x.elements {
            Elements::Int(ints) if self.to.is_integer() => {
                Tensor::int(self.to, sizes, ints.iter().map(|&x| wrap(self.to, x)).collect())
            }
            _ => from_numbers(self.to, sizes, x.numbers()),
        }]
    }
}

/// Converts numbers to elements of a type: truncated and wrapped for integers, `≠ 0` for bools.
pub(super) fn from_numbers(dtype: DType, sizes: Vec<usize>, numbers: Vec<f64>) -> Tensor {
    let mut tensor = Tensor::of_numbers(dtype, sizes, numbers);
    if let Elements::Int(ints) = &mut tensor.elements {
        ints.iter_mut().for_each(|x| *x = wrap(dtype, *x));
    }
    tensor
}

/// Wraps an integer to the range of its type.
pub(crate) fn wrap(dtype: DType, x: i64) -> i64 {
    match dtype {
        DType::I32 => i64::from(x as i32),
        DType::I16 => i64::from(x as i16),
        DType::I8 => i64::from(x as i8),
        DType::U32 => i64::from(x as u32),
        DType::U16 => i64::from(x as u16),
        DType::U8 => i64::from(x as u8),
        _ => x,
    }
}
