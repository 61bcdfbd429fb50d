//! Bitwise operators on integers, and reinterpretation of bits as another type.

use super::super::*;
use super::{gathered, kinds, same_dtype, zip};
use crate::DType;
use crate::ops::elementwise::wrap;
use crate::ops::list::Kinds;
use crate::tensor::Elements;
use crate::types::broadcast;

kinds! {
    /// A function of the bits of two integers of the same type, in two's complement. A shift by a negative amount, or by at least
    /// the type's width, shifts all bits out.
    Bitwise {
        /// The bits set in both.
        And "bitwise_and",
        /// The bits set in at least one.
        Or "bitwise_or",
        /// The bits set in exactly one.
        Xor "bitwise_xor",
        /// `x·2ʸ`, wrapping.
        ShiftLeft "shift_left",
        /// `⌊x/2ʸ⌋`: a negative number stays negative.
        ShiftRight "shift_right",
    }
}

/// Reads the bits of the elements as another type of the same width. The result is never bool, which has only two values.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bitcast {
    /// The type of the result.
    pub to: DType,
}

impl Bitwise {
    /// Applies the function to two integers of a type. A u64 is passed as the i64 with the same bits.
    pub fn integer(self, dtype: DType, x: i64, y: i64) -> i64 {
        let signed = matches!(dtype, DType::I64 | DType::I32 | DType::I16 | DType::I8);
        let amount = u32::try_from(y).ok().filter(|&amount| u64::from(amount) < 8 * dtype.bytes());
        let made = match (self, amount) {
            (Self::And, _) => x & y,
            (Self::Or, _) => x | y,
            (Self::Xor, _) => x ^ y,
            (Self::ShiftLeft, Some(amount)) => x << amount,
            (Self::ShiftRight, Some(amount)) if signed => x >> amount,
            (Self::ShiftRight, Some(amount)) => ((x as u64) >> amount) as i64,
            (Self::ShiftRight, None) if signed && x < 0 => -1,
            (Self::ShiftLeft | Self::ShiftRight, None) => 0,
        };
        wrap(dtype, made)
    }
}

impl Operator for Bitwise {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Lhs, OperandRole::Rhs]).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x, y] = same_dtype(types)?;
        ensure!(x.dtype.is_integer(), "takes integers, not {x} and {y}");
        Ok(vec![Type::new(x.dtype, broadcast(&x.dims, &y.dims)?)])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::elementwise(signature)
    }

    /// Integers have no gradient.
    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Ok(vec![None, None])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::streaming(signature, 0)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (sizes, dtype) = (cx.sizes(0), cx.results[0].dtype);
        let [x, y] = [0, 1].map(|i| gathered(cx.operands[i], &sizes));
        let (Elements::Int(x), Elements::Int(y)) = (&*x, &*y) else {
            unreachable!("infer has checked the types")
        };
        vec![Tensor::int(dtype, sizes, zip(x, y, |x, y| self.integer(dtype, x, y)))]
    }
}

impl Operator for Bitcast {
    // Full precision: the operator reads the bits of an f32.
    fn facts(&self) -> Facts {
        Operands::view(Movement::Reinterpreted).anywhere(PrecisionClass::Full)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        ensure!(
            x.dtype.bytes() == self.to.bytes() && self.to != DType::Bool,
            "the bits of {x} are not a {}",
            self.to
        );
        Ok(vec![Type::new(self.to, x.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::elementwise(signature)
    }

    /// Integers pass no gradient.
    fn gradient(&self, b: &mut Builder, node: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        if b.ty(node.operands[0]).dtype.is_float() && self.to.is_float() {
            return Err(GradientError::Undefined("the bits of a float have no gradient"));
        }
        Ok(vec![None])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::streaming(signature, 0)
    }

    /// A float has the bits of its own type, although it is stored as f64.
    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let x = cx.operands[0];
        let bits = Tensor::from_bytes(&Type::new(self.to, x.ty().dims), &x.to_bytes());
        vec![bits.expect("infer has checked the widths")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shift_beyond_the_width_leaves_the_sign_alone() {
        for amount in [-1, 8, 64, i64::MIN] {
            assert_eq!(Bitwise::ShiftLeft.integer(DType::I8, -3, amount), 0);
            assert_eq!(Bitwise::ShiftRight.integer(DType::I8, -3, amount), -1);
            assert_eq!(Bitwise::ShiftRight.integer(DType::I8, 3, amount), 0);
            assert_eq!(Bitwise::ShiftRight.integer(DType::U8, 200, amount), 0);
        }
        assert_eq!(Bitwise::ShiftLeft.integer(DType::U8, 0b1100_0001, 1), 0b1000_0010);
        assert_eq!(Bitwise::ShiftRight.integer(DType::U64, -1, 63), 1);
        assert_eq!(Bitwise::ShiftRight.integer(DType::I64, -1, 63), -1);
    }
}
