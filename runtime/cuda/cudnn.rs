//! What cuDNN is told, as data: operations over tensors, made from a program's instructions without a call of the library.
//! `gpu::cudnn` gives it to cuDNN.

mod attention;
mod convolution;
mod declined;
pub(crate) mod share;
mod text;

pub use declined::{Declined, TAKEN, declined};

use super::driver::DriverError;
use crate::program::{Instruction, Kernel, View};
use ir::{DType, Op};

/// Operations that cuDNN does as one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Graph {
    /// What is read and written; operations name them by their places here.
    pub(crate) tensors: Vec<Tensor>,
    /// In order.
    pub(crate) operations: Vec<Operation>,
}

/// The place of a tensor among its graph's.
pub(crate) type TensorId = usize;

/// A tensor of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tensor {
    pub(crate) dtype: DType,
    /// Outermost first.
    pub(crate) sizes: Vec<i64>,
    /// Elements between neighbours along each dim.
    pub(crate) strides: Vec<i64>,
    pub(crate) held: TensorStorage,
}

/// The place of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TensorStorage {
    /// In the device's memory, at an address that `alignment` divides.
    Memory { part: InstructionTensor, alignment: i64 },
    /// Nowhere: it goes from one operation to others.
    Between,
    /// With the call: an f32, as its bits.
    Number(u32),
}

/// An operand, a result or the scratch of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum InstructionTensor {
    Operand(usize),
    Result(usize),
    Scratch,
}

/// Bytes that cuDNN reads at once at most.
pub(crate) const WIDEST: i64 = 16;

/// What is done to tensors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    /// A convolution, or one of its gradients.
    Convolution(Convolution),
    /// The products of matrices; those of one side may be fewer, each for several of the other in a row.
    Multiply { sides: [TensorId; 2], out: TensorId },
    /// A function of each element; tensors that are smaller are stretched.
    Map { function: Function, operands: Vec<TensorId>, out: TensorId },
    /// Sums or maxima, along the dims in which the result is smaller.
    Reduce { reduction: Reduction, from: TensorId, out: TensorId },
    /// The same elements by other strides.
    View { from: TensorId, out: TensorId },
}

/// A function of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Function {
    Add,
    Subtract,
    Multiply,
    Divide,
    Exp,
    Log,
    /// The index along this dim.
    Index(i64),
    /// Whether the first is at least the second.
    AtLeast,
    /// The first where the third is true, else the second.
    Select,
}

/// How elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reduction {
    Sum,
    Max,
}

/// A convolution that makes one of its three tensors of the other two.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Convolution {
    pub(crate) makes: Makes,
    pub(crate) image: TensorId,
    pub(crate) weight: TensorId,
    pub(crate) output: TensorId,
    /// From window to window, for each spatial dim.
    pub(crate) strides: Vec<i64>,
    /// From element to element of a window.
    pub(crate) dilations: Vec<i64>,
    /// Zeros before the image.
    pub(crate) before: Vec<i64>,
    /// Zeros after the image.
    pub(crate) after: Vec<i64>,
}

/// Which tensor of a convolution is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Makes {
    Output,
    Image,
    Weight,
}

impl Graph {
    /// The graph of cuDNN that an instruction becomes.
    pub(crate) fn of(instruction: &Instruction) -> Result<Self, DriverError> {
        Self::or_reason(instruction).map_err(|why| {
            let (name, origin) = (instruction.name(), &instruction.origin);
            let at = if origin.is_empty() { String::new() } else { format!(" of {origin}") };
            DriverError(format!("`{name}`{at}: {why}; --device cpu runs every operator"))
        })
    }

    /// As [`Self::of`], with the bare reason why there is no graph.
    fn or_reason(instruction: &Instruction) -> Result<Self, String> {
        match &instruction.kernel {
            Kernel::Op(op @ (Op::Attention(_) | Op::AttentionGrad(_))) => attention::graph(op, instruction),
            Kernel::Op(op) => convolution::graph(op, instruction),
            _ => Err("cuDNN does not support this operator".into()),
        }
    }

    /// The type that sums are made in.
    pub(crate) fn computed(&self) -> DType {
        let double = self.tensors.iter().any(|tensor| tensor.dtype == DType::F64);
        if double { DType::F64 } else { DType::F32 }
    }

    /// Whether f32 is multiplied.
    pub(crate) fn multiplies_single(&self) -> bool {
        let single = |id: TensorId| self.tensors[id].dtype == DType::F32;
        self.operations.iter().any(|operation| match operation {
            Operation::Convolution(convolution) => single(convolution.image),
            Operation::Multiply { sides: [left, right], .. } => single(*left) && single(*right),
            Operation::Map { .. } | Operation::Reduce { .. } | Operation::View { .. } => false,
        })
    }
}

impl InstructionTensor {
    /// The view of an instruction that it is.
    pub(crate) fn view(self, instruction: &Instruction) -> Option<&View> {
        match self {
            Self::Operand(index) => instruction.operands.get(index),
            Self::Result(index) => instruction.results.get(index),
            Self::Scratch => instruction.scratch.as_ref(),
        }
    }
}

impl TensorStorage {
    /// In memory, as a part of an instruction. Memory begins at multiples of 256.
    fn memory(part: InstructionTensor, view: &View) -> Self {
        let byte = view.base as i64 + view.layout.offset as i64 * view.dtype.bytes() as i64;
        Self::Memory { part, alignment: 1 << byte.trailing_zeros().min(WIDEST.trailing_zeros()) }
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
