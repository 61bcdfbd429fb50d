//! Sample calls of every operator, for the conformance tests of `ir` and of the backends, and for checks on a user's device. They
//! are plain data, and can be turned into programs.

mod blocks;
mod elementwise;
mod products;
mod program;
mod recurrent;
mod reductions;
mod shapes;
mod table;
mod training;

pub use blocks::partial;
pub use program::Through;
pub use table::{float, of, samples};

use crate::edit::Builder;
use crate::ops::{Inference, Interp, Op, Operator};
use crate::tensor::Elements;
use crate::{Blob, DType, Data, DataId, Tensor, Type, TypeError, ValueId, random};
use cranelift_entity::PrimaryMap;

/// A call of an operator: its operand types, and rules that generate suitable operands.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The operator.
    pub op: Op,
    /// The operands, in order.
    pub operands: Vec<Operand>,
    /// The result types, if the operator reads them; otherwise empty.
    pub declared: Vec<Type>,
    /// The data table to which the operator refers; otherwise empty.
    pub data: PrimaryMap<DataId, Data>,
    /// Whether the operator has a gradient here. If not, [`Operator::gradient`] returns the reason.
    pub differentiable: bool,
    /// Results that have no gradient, because they are kept for the backward pass or are counts.
    pub statistics: Vec<usize>,
    /// Whether finite differences agree with the gradient. False where rounding hides an operand.
    pub smooth: bool,
}

/// An operand of a sample.
#[derive(Clone, Debug)]
pub struct Operand {
    /// The type, all dims bound.
    pub ty: Type,
    /// The rule that generates the elements.
    pub fill: Fill,
}

/// A rule that generates the elements of an operand.
#[derive(Clone, Debug)]
pub enum Fill {
    /// Standard normal. Integers are such numbers times 4, truncated.
    Normal,
    /// Between 0.5 and 2. Integers are from 1 to 4.
    Positive,
    /// Between 0 and 1.
    Probability,
    /// Normal, with NaN in every third place.
    WithNan,
    /// Integers from the first number up to, but not including, the second.
    Integers(i64, i64),
    /// Labels from 0 up to, but not including, the first number; every third label is the second number.
    Labels(i64, i64),
    /// A mask of attention. Its rows along the last dim cycle through three kinds: no hidden key, some hidden keys, all keys
    /// hidden. Hidden is false, or −∞.
    Mask,
    /// As `Mask`, but hidden is f32's most negative number, which hides a key only in a row with other keys.
    HugeMask,
    /// Equal elements.
    Value(f64),
    /// A result of an operator on earlier operands, such as a forward result for its gradient.
    Result(Op, Vec<usize>, usize),
}

impl Sample {
    /// Returns the types of the operands.
    pub fn operand_types(&self) -> Vec<Type> {
        self.operands.iter().map(|operand| operand.ty.clone()).collect()
    }

    /// Returns the types of the results, as the operator infers them.
    pub fn result_types(&self) -> Result<Vec<Type>, TypeError> {
        self.op.infer(&Inference { operands: &self.operand_types(), declared: &self.declared })
    }

    /// Generates the operands from a seed, rounded to their element types.
    pub fn fill(&self, seed: u64) -> Vec<Tensor> {
        let mut tensors: Vec<Tensor> = Vec::new();
        for (i, operand) in self.operands.iter().enumerate() {
            let tensor = match &operand.fill {
                Fill::Result(op, operands, result) => forward(op, &tensors, operands, *result),
                fill => made_up(&operand.ty, fill, seed, i as u64),
            };
            tensors.push(tensor.rounded());
        }
        tensors
    }
}

fn sizes(ty: &Type) -> Vec<usize> {
    ty.sizes().expect("samples have bound dims").into_iter().map(|size| size as usize).collect()
}

/// Returns a result of an operator on some of these tensors.
fn forward(op: &Op, tensors: &[Tensor], operands: &[usize], result: usize) -> Tensor {
    let types: Vec<Type> = operands.iter().map(|&i| tensors[i].ty()).collect();
    let results =
        op.infer(&Inference { operands: &types, declared: &[] }).expect("a sample's forward is well-typed");
    let operands: Vec<&Tensor> = operands.iter().map(|&i| &tensors[i]).collect();
    op.interp(&Interp { operands: &operands, results: &results, data: &PrimaryMap::new(), parts: None })
        .swap_remove(result)
}

fn made_up(ty: &Type, fill: &Fill, seed: u64, operand: u64) -> Tensor {
    let sizes = sizes(ty);
    let len = sizes.iter().product::<usize>();
    let normal = |i: usize| random::normal(seed, operand, i as u64);
    // The logistic distribution function maps normal numbers into (0, 1). The exact distribution does not matter here.
    let uniform = |i: usize| 1.0 / (1.0 + (-1.7 * normal(i)).exp());
    let row = |i: usize| i / sizes.last().copied().unwrap_or(1).max(1);
    let hidden = |i: usize| match row(i) % 3 {
        0 => false,
        1 => uniform(i) < 0.4,
        _ => true,
    };
    let number = |i: usize| match fill {
        Fill::Normal if ty.dtype == DType::Bool => f64::from(u8::from(normal(i) > 0.0)),
        Fill::Normal if ty.dtype.is_integer() => (4.0 * normal(i)).trunc(),
        Fill::Normal => normal(i),
        Fill::Positive if ty.dtype.is_integer() => (1.0 + 4.0 * uniform(i)).floor(),
        Fill::Positive => 0.5 + 1.5 * uniform(i),
        Fill::Probability => uniform(i),
        Fill::WithNan => {
            if i % 3 == 1 {
                f64::NAN
            } else {
                normal(i)
            }
        }
        Fill::Integers(low, high) => *low as f64 + (uniform(i) * (high - low) as f64).floor(),
        Fill::Labels(_, ignored) if i % 3 == 1 => *ignored as f64,
        Fill::Labels(high, _) => (uniform(i) * *high as f64).floor(),
        Fill::Mask if ty.dtype == DType::Bool => f64::from(u8::from(!hidden(i))),
        Fill::Mask => {
            if hidden(i) {
                f64::NEG_INFINITY
            } else {
                normal(i)
            }
        }
        Fill::HugeMask => {
            if hidden(i) {
                f64::from(f32::MIN)
            } else {
                normal(i)
            }
        }
        Fill::Value(value) => *value,
        Fill::Result(..) => unreachable!("results are not made up"),
    };
    let elements = match ty.dtype {
        DType::Bool => Elements::Bool((0..len).map(|i| number(i) != 0.0).collect()),
        dtype if dtype.is_float() => Elements::Float((0..len).map(number).collect()),
        _ => Elements::Int((0..len).map(|i| number(i) as i64).collect()),
    };
    Tensor { dtype: ty.dtype, sizes, elements }
}

/// Makes a row of the data table with normal numbers.
fn row(ty: &Type, seed: u64) -> Data {
    let tensor = made_up(ty, &Fill::Normal, seed, 0);
    Data { name: "sample".into(), ty: ty.clone(), blob: Blob::Inline(tensor.to_bytes().into()), claim: None }
}
