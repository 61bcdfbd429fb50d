//! The contracts of the CPU kernels, operator by operator.

use super::bf16::Bf16Products;
use super::scratch;
use ir::Op;
use ir::ops::reduce::ReduceKind;
use program::convolution;
use program::kernel_contract::KernelContract;

/// Returns the contract of the kernel that runs an operator with this number of operands, and multiplies so.
pub(super) fn of(op: &Op, operands: usize, products: Bf16Products) -> KernelContract<'_> {
    use KernelContract as Kernel;
    match op {
        Op::Unary(_) | Op::Cast(_) => Kernel::elementwise().in_place(&[(0, 0)]),
        Op::Binary(_) | Op::Bitwise(_) | Op::Compare(_) | Op::Logical(_) => {
            Kernel::elementwise().in_place(&[(0, 0), (1, 0)])
        }
        Op::Select(_) => Kernel::elementwise().in_place(&[(0, 0), (1, 0), (2, 0)]),
        Op::Contract(contract) => {
            let scratch = match products {
                Bf16Products::Widened => scratch::contraction,
                Bf16Products::Amx | Bf16Products::Avx512 => scratch::packed_contraction,
            };
            Kernel::product(contract).accumulating().with_scratch(scratch)
        }
        Op::Reduce(reduce) => {
            Kernel::strided().accumulating_if(matches!(reduce.kind, ReduceKind::Sum | ReduceKind::Mean))
        }
        Op::Attention(_) => Kernel::attention(),
        Op::AttentionGrad(_) => Kernel::attention_grad(operands),
        Op::Rotary(_) => Kernel::rotary(),
        Op::Adam(_) => Kernel::optimizer(&[(0, 0), (2, 1), (3, 2)]),
        Op::Adam8bit(_) => Kernel::optimizer(&[(0, 0), (2, 1), (3, 2), (4, 3), (5, 4)]),
        Op::Adagrad(_) | Op::Lion(_) | Op::Sgd(_) => Kernel::optimizer(&[(0, 0), (2, 1)]),
        Op::Dropout(_) | Op::LogSoftmax(_) | Op::Softmax(_) => Kernel::dense().in_place(&[(0, 0)]),
        Op::CrossEntropyGrad(_) => Kernel::dense().in_place(&[(0, 0)]),
        Op::SoftmaxGrad(_) => Kernel::dense().in_place(&[(0, 0), (1, 0)]),
        Op::Conv(_) | Op::ConvGradInput(_) | Op::ConvGradWeight(_) => {
            Kernel::dense().with_scratch(convolution::scratch)
        }
        Op::Experts(_) => Kernel::dense().with_scratch(scratch::experts),
        Op::ExpertsGrad(_) => Kernel::dense().accumulating().with_scratch(scratch::experts_grad),
        Op::Recurrent(_) | Op::RecurrentGrad(_) => Kernel::dense().with_scratch(scratch::recurrent),
        Op::GatherElementsGrad(_) | Op::GatherGrad(_) | Op::GatherNdGrad(_) => Kernel::dense().accumulating(),
        Op::Accumulate(_)
        | Op::Bitcast(_)
        | Op::Broadcast(_)
        | Op::Concat(_)
        | Op::Copy(_)
        | Op::Detach(_)
        | Op::Transfer(_)
        | Op::InTraining(_)
        | Op::Pad(_)
        | Op::Reshape(_)
        | Op::Slice(_)
        | Op::Transpose(_) => Kernel::strided(),
        Op::Addends(_)
        | Op::AvgPool(_)
        | Op::AvgPoolGrad(_)
        | Op::BatchNorm(_)
        | Op::BatchNormGrad(_)
        | Op::BatchStatistics(_)
        | Op::Collective(_)
        | Op::Constant(_)
        | Op::CrossEntropy(_)
        | Op::CumulativeSum(_)
        | Op::Det(_)
        | Op::Gather(_)
        | Op::GatherElements(_)
        | Op::GatherNd(_)
        | Op::Iota(_)
        | Op::LayerNorm(_)
        | Op::LayerNormGrad(_)
        | Op::MaxPool(_)
        | Op::MaxPoolGrad(_)
        | Op::MaxPoolGradAt(_)
        | Op::MaxPoolIndices(_)
        | Op::Orthogonalize(_)
        | Op::MaxPoolOffsets(_)
        | Op::PackBits(_)
        | Op::RandomUniform(_)
        | Op::RmsNorm(_)
        | Op::RmsNormGrad(_)
        | Op::ScatterElements(_)
        | Op::ScatterNd(_)
        | Op::Splat(_)
        | Op::TopK(_)
        | Op::UnpackBits(_) => Kernel::dense(),
    }
}
