//! The contracts of a GPU's kernels, operator by operator.

use super::{
    attention, batch_norm, compression, contract, det, experts, loss, norm, pool, recurrent, reduce, scatter,
    shape,
};
use ir::Op;
use ir::ops::reduce::ReduceKind;
use program::convolution;
use program::kernel_contract::{KernelContract, WritableStrides};

/// Returns the contract of the kernel that runs an operator with this number of operands.
pub(crate) fn of(op: &Op, operands: usize) -> KernelContract<'_> {
    use KernelContract as Kernel;
    use WritableStrides::{Any, Rows};
    match op {
        Op::Unary(_) | Op::Cast(_) => Kernel::elementwise().writing(Any).in_place(&[(0, 0)]),
        Op::Binary(_) | Op::Bitwise(_) | Op::Compare(_) | Op::Logical(_) => {
            Kernel::elementwise().writing(Any).in_place(&[(0, 0), (1, 0)])
        }
        Op::Select(_) => Kernel::elementwise().writing(Any).in_place(&[(0, 0), (1, 0), (2, 0)]),
        // cuBLASLt adds up in f32 in any case.
        Op::Contract(op) => {
            let product = Kernel::product(op).writing(Any).writing_wide().accumulating();
            product.with_scratch(contract::scratch)
        }
        Op::Reduce(reduce) => {
            // The last product of a mean and its addition to the result would be rounded together.
            let adds = reduce.kind == ReduceKind::Sum;
            Kernel::strided().reading_half(&[0]).accumulating_if(adds).with_scratch(reduce::scratch)
        }
        Op::Attention(_) => Kernel::attention(),
        Op::AttentionGrad(_) => {
            Kernel::attention_grad(operands).writing(Any).with_scratch(attention::scratch)
        }
        Op::Rotary(_) => Kernel::rotary().writing(Any),
        Op::Adam(_) => Kernel::optimizer(&[(0, 0), (2, 1), (3, 2)]).writing_half_copy(),
        Op::Adam8bit(_) => Kernel::optimizer(&[(0, 0), (2, 1), (3, 2), (4, 3), (5, 4)]).writing_half_copy(),
        Op::Adagrad(_) | Op::Lion(_) | Op::Sgd(_) => Kernel::optimizer(&[(0, 0), (2, 1)]).writing_half_copy(),
        Op::CrossEntropy(_) => Kernel::by_rows().with_scratch(loss::scratch),
        Op::CrossEntropyGrad(_) => Kernel::by_rows().writing(Rows).in_place(&[(0, 0)]),
        Op::Dropout(_) | Op::LogSoftmax(_) | Op::Softmax(_) => Kernel::dense().in_place(&[(0, 0)]),
        Op::SoftmaxGrad(_) => Kernel::dense().in_place(&[(0, 0), (1, 0)]),
        Op::LayerNorm(_) | Op::RmsNorm(_) => Kernel::dense().reading_half(&[0]).writing_half(),
        // The half-precision operands are x and d y.
        Op::LayerNormGrad(_) => {
            let gradient = Kernel::dense().reading_half(&[0, 4]).writing_half().adding_operand();
            gradient.with_scratch(norm::scratch)
        }
        Op::RmsNormGrad(_) => {
            let gradient = Kernel::dense().reading_half(&[0, 3]).writing_half().adding_operand();
            gradient.with_scratch(norm::scratch)
        }
        // The operand that is added may be overwritten.
        Op::GatherGrad(_) => {
            let gradient = Kernel::dense().accumulating().adding_operand().in_place(&[(2, 0)]);
            gradient.with_scratch(scatter::scratch)
        }
        Op::GatherElementsGrad(_) | Op::GatherNdGrad(_) => {
            Kernel::dense().accumulating().with_scratch(scatter::scratch)
        }
        Op::Recurrent(_) => Kernel::dense().with_scratch(recurrent::scratch),
        Op::RecurrentGrad(_) => Kernel::dense().with_scratch(recurrent::scratch_of_gradient),
        Op::ScatterElements(_) | Op::ScatterNd(_) => Kernel::dense().with_scratch(scatter::scratch),
        Op::BatchNormGrad(_) | Op::BatchStatistics(_) => Kernel::dense().with_scratch(batch_norm::scratch),
        Op::CumulativeSum(_) => Kernel::dense().with_scratch(shape::scratch),
        Op::Det(_) => Kernel::dense().with_scratch(det::scratch),
        Op::Orthogonalize(_) => Kernel::dense().with_scratch(compression::scratch),
        Op::MaxPoolGrad(_) => Kernel::dense().with_scratch(pool::scratch),
        Op::Experts(_) => Kernel::dense().with_scratch(experts::scratch),
        Op::ExpertsGrad(_) => Kernel::dense().accumulating().with_scratch(experts::scratch_of_gradient),
        // The stand-in runs convolutions as the processor does.
        Op::Conv(_) | Op::ConvGradInput(_) | Op::ConvGradWeight(_) => {
            Kernel::dense().with_scratch(convolution::scratch)
        }
        Op::Accumulate(_)
        | Op::Bitcast(_)
        | Op::Broadcast(_)
        | Op::Concat(_)
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
        | Op::Collective(_)
        | Op::Constant(_)
        | Op::Copy(_)
        | Op::Gather(_)
        | Op::GatherElements(_)
        | Op::GatherNd(_)
        | Op::Iota(_)
        | Op::MaxPool(_)
        | Op::MaxPoolGradAt(_)
        | Op::MaxPoolIndices(_)
        | Op::MaxPoolOffsets(_)
        | Op::PackBits(_)
        | Op::RandomUniform(_)
        | Op::Splat(_)
        | Op::TopK(_)
        | Op::UnpackBits(_) => Kernel::dense(),
    }
}
