//! Prints graphs as text: a line for each tensor, then a line for each operation.

use super::{Convolution, Graph, InstructionTensor, Makes, Operation, Tensor, TensorStorage};
use std::fmt;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (id, tensor) in self.tensors.iter().enumerate() {
            writeln!(f, "{id}: {tensor}")?;
        }
        self.operations.iter().try_for_each(|operation| writeln!(f, "{operation}"))
    }
}

/// `f32 [8, 3, 5, 5] by [75, 25, 5, 1] operand 0, aligned to 16`
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dtype, sizes, strides, held } = self;
        write!(f, "{dtype} {sizes:?} by {strides:?} ")?;
        match held {
            TensorStorage::Memory { part, alignment } => write!(f, "{part}, aligned to {alignment}"),
            TensorStorage::Between => write!(f, "between"),
            TensorStorage::Number(bits) => write!(f, "number {}", f32::from_bits(*bits)),
        }
    }
}

impl fmt::Display for InstructionTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operand(index) => write!(f, "operand {index}"),
            Self::Result(index) => write!(f, "result {index}"),
            Self::Scratch => write!(f, "scratch"),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Convolution(convolution) => write!(f, "{convolution}"),
            Self::Multiply { sides: [left, right], out } => write!(f, "{out} = {left} times {right}"),
            Self::Map { function, operands, out } => write!(f, "{out} = {function:?} of {operands:?}"),
            Self::Reduce { reduction, from, out } => write!(f, "{out} = {reduction:?} over {from}"),
            Self::View { from, out } => write!(f, "{out} = view of {from}"),
        }
    }
}

impl fmt::Display for Convolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { makes, image, weight, output, strides, dilations, before, after } = self;
        match makes {
            Makes::Output => write!(f, "{output} = convolution of {image} by {weight}")?,
            Makes::Image => write!(f, "{image} = image's gradient of {weight} and {output}")?,
            Makes::Weight => write!(f, "{weight} = weight's gradient of {image} and {output}")?,
        }
        write!(f, ", strides {strides:?}, dilations {dilations:?}, zeros {before:?} and {after:?}")
    }
}
