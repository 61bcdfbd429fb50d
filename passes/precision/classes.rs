//! Operator classes: the element type that an operator computes in when a step runs in half precision.
//!
//! | class | operators | computes in |
//! | --- | --- | --- |
//! | half | contractions, also with chosen experts, convolutions, attention, rotary embedding | half, if it depends on a state; contractions whose largest results are chosen (routers) in f32 |
//! | lookup | gathers | half from a parameter's table, else the table's own type |
//! | follow | elementwise functions, dropout, pooling, moves of elements, orders of elements, largest and smallest (also scattered), cross-entropy (whose sums are f32 in any case) | the type of its operands; f32 if one of them is f32 |
//! | full | softmax, batch statistics, sums and means, dot products, running sums, scattered sums and products, determinants, functions that leave the range of half | f32 |
//! | norm | layer norm, RMS norm, batch norm | f32, as the statistics need; the normalised values go on in half |
//!
//! After NVIDIA's *Training with Mixed Precision* (section "Tensor Core shapes and arithmetic": reductions and
//! statistics in f32) and the lists of PyTorch's autocast. Every match is exhaustive: an operator without a class does
//! not compile.

use ir::ops::elementwise::{Binary, Unary};
use ir::ops::reduce::ReduceKind;
use ir::ops::scatter::ScatterKind;
use ir::{Op, OperandRole};

/// The rule for the type that an operator computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// In half, if it depends on a state. These operators take most of the time of a step.
    Half,
    /// In half, if the table is a parameter; else in the type of the table.
    Lookup,
    /// In the type of its operands; in f32 if one of them must be f32.
    Follow,
    /// In f32.
    Full,
    /// In f32. The first result goes on in half.
    Norm,
    /// In f32. The first result goes on in the type of the first operand.
    NormGrad,
    /// No float operand: the result has its declared type.
    Source,
    /// A conversion: the operand may have any type, and the result has its declared type.
    Convert,
    /// An operator of the update, which stays as it is.
    Update,
}

/// The type in which a node reads a float operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// In the type that the node computes in.
    Own,
    /// In f32, whatever type the node computes in.
    Full,
    /// In any type.
    Any,
}

/// Returns the class of an operator.
pub fn class(op: &Op) -> Class {
    match op {
        // A dot product is a sum over many elements, which matrix units do not speed up.
        Op::Contract(contract) => {
            let roles = contract.roles();
            let dot = roles.rows.is_empty() && roles.columns.is_empty();
            if dot { Class::Full } else { Class::Half }
        }
        Op::Attention(_) | Op::AttentionGrad(_) | Op::Rotary(_) => Class::Half,
        Op::Conv(_) | Op::ConvGradInput(_) | Op::ConvGradWeight(_) => Class::Half,
        Op::Experts(_) | Op::ExpertsGrad(_) => Class::Half,
        Op::Gather(_) | Op::GatherElements(_) | Op::GatherNd(_) => Class::Lookup,
        Op::CrossEntropy(_) | Op::CrossEntropyGrad(_) => Class::Follow,
        Op::Unary(unary) => class_of_unary(*unary),
        Op::Binary(Binary::Pow) => Class::Full,
        Op::Binary(_) | Op::Bitwise(_) | Op::Compare(_) | Op::Logical(_) | Op::Select(_) => Class::Follow,
        Op::Broadcast(_) | Op::Concat(_) | Op::Pad(_) | Op::Reshape(_) | Op::Slice(_) | Op::Transpose(_) => {
            Class::Follow
        }
        Op::Collective(_) | Op::Copy(_) | Op::Dropout(_) | Op::Transfer(_) => Class::Follow,
        Op::Reduce(reduce) => match reduce.kind {
            ReduceKind::Sum | ReduceKind::Mean => Class::Full,
            ReduceKind::Max | ReduceKind::Min => Class::Follow,
        },
        Op::CumulativeSum(_) | Op::Det(_) => Class::Full,
        Op::GatherGrad(_) | Op::GatherElementsGrad(_) | Op::GatherNdGrad(_) => Class::Full,
        Op::ScatterElements(scatter) => class_of_scatter(scatter.kind),
        Op::ScatterNd(scatter) => class_of_scatter(scatter.kind),
        // The operator reads the bits of an f32.
        Op::Bitcast(_) => Class::Full,
        Op::Softmax(_) | Op::SoftmaxGrad(_) | Op::LogSoftmax(_) => Class::Full,
        Op::BatchStatistics(_) => Class::Full,
        Op::BatchNorm(_) => Class::Norm,
        Op::BatchNormGrad(_) => Class::NormGrad,
        Op::Detach(_) | Op::InTraining(_) => Class::Follow,
        Op::MaxPoolIndices(_) | Op::MaxPoolOffsets(_) | Op::TopK(_) => Class::Follow,
        Op::MaxPool(_) | Op::MaxPoolGrad(_) | Op::MaxPoolGradAt(_) => Class::Follow,
        Op::AvgPool(_) | Op::AvgPoolGrad(_) => Class::Follow,
        Op::LayerNorm(_) | Op::RmsNorm(_) => Class::Norm,
        Op::LayerNormGrad(_) | Op::RmsNormGrad(_) => Class::NormGrad,
        Op::Constant(_) | Op::Iota(_) | Op::Splat(_) => Class::Source,
        Op::PackBits(_) | Op::UnpackBits(_) => Class::Source,
        // In half, numbers near 1 would be rounded up to 1.
        Op::RandomUniform(_) => Class::Full,
        Op::Cast(_) => Class::Convert,
        Op::Accumulate(_) | Op::Adagrad(_) | Op::Adam(_) | Op::Adam8bit(_) | Op::Lion(_) | Op::Sgd(_) => {
            Class::Update
        }
        Op::Addends(_) | Op::Orthogonalize(_) => Class::Update,
    }
}

fn class_of_scatter(kind: ScatterKind) -> Class {
    match kind {
        ScatterKind::Set | ScatterKind::Max | ScatterKind::Min => Class::Follow,
        ScatterKind::Add | ScatterKind::Mul => Class::Full,
    }
}

fn class_of_unary(unary: Unary) -> Class {
    match unary {
        // Small operands give large results, or large ones small: half would overflow or vanish.
        Unary::Exp | Unary::Log | Unary::Sqrt | Unary::Rsqrt | Unary::Reciprocal => Class::Full,
        Unary::Neg | Unary::Abs | Unary::Sign | Unary::Relu | Unary::Not | Unary::IsNan => Class::Follow,
        Unary::Sin | Unary::Cos | Unary::Atan | Unary::Tanh | Unary::Erf | Unary::Sigmoid => Class::Follow,
        Unary::Gelu | Unary::GeluTanh | Unary::Silu => Class::Follow,
        Unary::Floor | Unary::Ceil | Unary::Round => Class::Follow,
    }
}

/// Returns the type in which an operator reads a float operand of this role.
pub fn reads(op: &Op, role: OperandRole) -> Reads {
    match (op, role) {
        (Op::Attention(_) | Op::AttentionGrad(_), OperandRole::Mask) => Reads::Any,
        // Sums of exponentials and the gradient of a loss are f32 in any case.
        (Op::AttentionGrad(_), OperandRole::LogSumExp) => Reads::Full,
        (Op::CrossEntropyGrad(_), OperandRole::LogSumExp | OperandRole::Gradient) => Reads::Full,
        // The tables may have another type than the data that they rotate.
        (Op::Rotary(_), OperandRole::Cosines | OperandRole::Sines) => Reads::Full,
        (Op::Cast(_), _) => Reads::Any,
        _ => Reads::Own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::Operator;
    use ir::ops::samples::samples;

    #[test]
    fn operators_have_the_classes_of_the_table() {
        for sample in samples() {
            let (old, new) = (class(&sample.op), sample.op.precision());
            assert_eq!(format!("{old:?}"), format!("{:?}", new.class), "{:?}", sample.op);
            for role in sample.op.operands().roles(sample.operand_types().len()).unwrap() {
                let old = reads(&sample.op, role);
                assert_eq!(format!("{old:?}"), format!("{:?}", new.reads(role)), "{:?} {role:?}", sample.op);
            }
        }
    }
}
