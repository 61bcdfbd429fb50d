//! Comparisons, logic, and selection by a condition.

use super::super::*;
use super::{gathered, kinds, same_dtype, zip};
use crate::ops::list::Kinds;
use crate::tensor::Elements;
use crate::types::broadcast;
use crate::{DType, Dims};

kinds! {
    /// A comparison of two values of the same type.
    Compare {
        /// `x = y`
        Equal "equal",
        /// `x < y`
        Less "less",
        /// `x ≤ y`
        LessEqual "less_equal",
        /// `x > y`
        Greater "greater",
        /// `x ≥ y`
        GreaterEqual "greater_equal",
    }
}

kinds! {
    /// A function of two bools.
    Logical {
        /// True if both are true.
        And "and",
        /// True if at least one is true.
        Or "or",
        /// True if exactly one is true.
        Xor "xor",
    }
}

/// `condition ? x : y`, element by element.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Select;

impl Compare {
    /// Compares two numbers.
    pub fn scalar<T: PartialOrd>(self, x: T, y: T) -> bool {
        match self {
            Self::Equal => x == y,
            Self::Less => x < y,
            Self::LessEqual => x <= y,
            Self::Greater => x > y,
            Self::GreaterEqual => x >= y,
        }
    }
}

impl Operator for Compare {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Lhs, OperandRole::Rhs]).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x, y] = same_dtype(types)?;
        Ok(vec![Type::new(DType::Bool, broadcast(&x.dims, &y.dims)?)])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::elementwise(signature)
    }

    /// The result is a bool, which has no gradient.
    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Ok(vec![None, None])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 1)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let sizes = cx.sizes(0);
        let [x, y] = [0, 1].map(|i| gathered(cx.operands[i], &sizes));
        let elements = match (&*x, &*y) {
            (Elements::Float(x), Elements::Float(y)) => zip(x, y, |x, y| self.scalar(x, y)),
            (Elements::Int(x), Elements::Int(y)) => zip(x, y, |x, y| self.scalar(x, y)),
            (Elements::Bool(x), Elements::Bool(y)) => zip(x, y, |x, y| self.scalar(x, y)),
            _ => unreachable!("infer has checked the types"),
        };
        vec![Tensor::bool(sizes, elements)]
    }
}

impl Logical {
    /// Applies the function to two bools.
    pub fn scalar(self, x: bool, y: bool) -> bool {
        match self {
            Self::And => x && y,
            Self::Or => x || y,
            Self::Xor => x != y,
        }
    }
}

impl Operator for Logical {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Lhs, OperandRole::Rhs]).anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x, y] = same_dtype(types)?;
        ensure!(x.dtype == DType::Bool, "takes bools, not {x} and {y}");
        Ok(vec![Type::new(DType::Bool, broadcast(&x.dims, &y.dims)?)])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::elementwise(signature)
    }

    /// Bools have no gradient.
    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Ok(vec![None, None])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::streaming(signature, 0)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let sizes = cx.sizes(0);
        let [x, y] = [0, 1].map(|i| gathered(cx.operands[i], &sizes));
        let (Elements::Bool(x), Elements::Bool(y)) = (&*x, &*y) else {
            unreachable!("infer has checked the types")
        };
        vec![Tensor::bool(sizes, zip(x, y, |x, y| self.scalar(x, y)))]
    }
}

impl Operator for Select {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Condition, OperandRole::Data, OperandRole::Data])
            .anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [condition, x, y] = types.operands()?;
        ensure!(
            condition.dtype == DType::Bool && x.dtype == y.dtype,
            "takes a bool and two of one type, not {condition}, {x}, {y}"
        );
        let dims: Dims = broadcast(&broadcast(&condition.dims, &x.dims)?, &y.dims)?;
        Ok(vec![Type::new(x.dtype, dims)])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::elementwise(signature).linear_in(&[1, 2]).keeping_zeros()
    }

    /// The gradient goes to the operand that was selected.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let [condition, x, y] = [0, 1, 2].map(|i| node.operands[i]);
        let Some(dout) = d[0].filter(|_| b.ty(x).dtype.is_float()) else { return Ok(vec![None; 3]) };
        let zero = b.splat_like(dout, 0.0)?;
        let dx = b.one(Self, &[condition, dout, zero])?;
        let dy = b.one(Self, &[condition, zero, dout])?;
        Ok(vec![None, Some(b.sum_to_like(dx, x)?), Some(b.sum_to_like(dy, y)?)])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::streaming(signature, 0)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let sizes = cx.sizes(0);
        let [condition, x, y] = [0, 1, 2].map(|i| gathered(cx.operands[i], &sizes));
        let Elements::Bool(condition) = &*condition else { unreachable!("infer has checked the types") };
        fn pick<T: Copy>(len: usize, condition: &[bool], x: &[T], y: &[T]) -> Vec<T> {
            // A tensor with a single element is read for all.
            let [condition_step, x_step, y_step] =
                [condition.len(), x.len(), y.len()].map(|own| usize::from(own != 1));
            let one = |i| if condition[i * condition_step] { x[i * x_step] } else { y[i * y_step] };
            (0..len).map(one).collect()
        }
        let len = sizes.iter().product();
        let elements = match (&*x, &*y) {
            (Elements::Float(x), Elements::Float(y)) => Elements::Float(pick(len, condition, x, y)),
            (Elements::Int(x), Elements::Int(y)) => Elements::Int(pick(len, condition, x, y)),
            (Elements::Bool(x), Elements::Bool(y)) => Elements::Bool(pick(len, condition, x, y)),
            _ => unreachable!("infer has checked the types"),
        };
        vec![Tensor { dtype: cx.results[0].dtype, sizes, elements }]
    }
}
