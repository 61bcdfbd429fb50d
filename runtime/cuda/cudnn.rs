//! Describes a program's instructions for cuDNN as data: tensors and the operations over them. No function of the library is
//! called here; `gpu::cudnn` builds cuDNN's graphs from the description.

mod attention;
mod convolution;
mod declined;
pub(crate) mod share;
mod text;

pub use declined::TAKEN;
pub(crate) use declined::declined;

use super::driver::DriverError;
use ir::{DType, Op};
use program::{Instruction, Kernel, View};

/// Operations that cuDNN runs as one graph.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Graph {
    /// The tensors that operations read and write. Operations name them by their indices here.
    pub(crate) tensors: Vec<Tensor>,
    /// The operations, in the order in which they run.
    pub(crate) operations: Vec<Operation>,
}

/// The index of a tensor in its graph.
pub(crate) type TensorId = usize;

/// A tensor of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tensor {
    pub(crate) dtype: DType,
    /// The size of each dim, outermost first.
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
    /// In no memory: the tensor is passed from one operation to others.
    Between,
    /// With the call: the constant's f32 bits.
    Number(u32),
}

/// An operand, a result or the scratch of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum InstructionTensor {
    Operand(usize),
    Result(usize),
    Scratch,
}

/// The most bytes that cuDNN reads at once.
pub(crate) const WIDEST: i64 = 16;

/// An operation over tensors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    /// A convolution, or one of its gradients.
    Convolution(Convolution),
    /// Products of matrices. If one side has fewer matrices, each of them multiplies several consecutive matrices of the other
    /// side.
    Multiply { sides: [TensorId; 2], out: TensorId },
    /// A function of each element. Smaller operands are broadcast.
    Map { function: Function, operands: Vec<TensorId>, out: TensorId },
    /// Sums or maxima along the dims in which the result is smaller than the operand.
    Reduce { reduction: Reduction, from: TensorId, out: TensorId },
    /// The same elements with other strides.
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
    /// Whether the first operand is at least the second.
    AtLeast,
    /// The first operand where the third is true, else the second.
    Select,
}

/// The function that reduces several elements to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reduction {
    Sum,
    Max,
}

/// A convolution, which computes one of its three tensors from the other two.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Convolution {
    pub(crate) makes: Makes,
    pub(crate) image: TensorId,
    pub(crate) weight: TensorId,
    pub(crate) output: TensorId,
    /// The distance from window to window, for each spatial dim.
    pub(crate) strides: Vec<i64>,
    /// The distance from element to element of a window, for each spatial dim.
    pub(crate) dilations: Vec<i64>,
    /// The zeros before the image, for each spatial dim.
    pub(crate) before: Vec<i64>,
    /// The zeros after the image, for each spatial dim.
    pub(crate) after: Vec<i64>,
}

/// The tensor that a convolution computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Makes {
    Output,
    Image,
    Weight,
}

impl Graph {
    /// Returns cuDNN's graph for an instruction.
    pub(crate) fn of(instruction: &Instruction) -> Result<Self, DriverError> {
        Self::or_reason(instruction).map_err(|why| {
            let (name, origin) = (instruction.name(), &instruction.origin);
            let at = if origin.is_empty() { String::new() } else { format!(" of {origin}") };
            DriverError(format!("`{name}`{at}: {why}; --device cpu runs every operator"))
        })
    }

    /// As [`Self::of`], with the bare reason as the error.
    fn or_reason(instruction: &Instruction) -> Result<Self, String> {
        match &instruction.kernel {
            Kernel::Op(op @ (Op::Attention(_) | Op::AttentionGrad(_))) => attention::graph(op, instruction),
            Kernel::Op(op) => convolution::graph(op, instruction),
            _ => Err("cuDNN does not support this operator".into()),
        }
    }

    /// Returns the type in which sums are computed.
    pub(crate) fn computed(&self) -> DType {
        let double = self.tensors.iter().any(|tensor| tensor.dtype == DType::F64);
        if double { DType::F64 } else { DType::F32 }
    }

    /// Returns whether a convolution or a multiplication has f32 operands.
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
    /// Returns the instruction's view of this tensor.
    pub(crate) fn view(self, instruction: &Instruction) -> Option<&View> {
        match self {
            Self::Operand(index) => instruction.operands.get(index),
            Self::Result(index) => instruction.results.get(index),
            Self::Scratch => instruction.scratch.as_ref(),
        }
    }
}

impl TensorStorage {
    /// Returns the storage of an instruction's tensor. Memory begins at a multiple of 256, so the byte offset gives the
    /// alignment.
    fn memory(part: InstructionTensor, view: &View) -> Self {
        let byte = view.base as i64 + view.layout.offset as i64 * view.dtype.bytes() as i64;
        Self::Memory { part, alignment: 1 << byte.trailing_zeros().min(WIDEST.trailing_zeros()) }
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
