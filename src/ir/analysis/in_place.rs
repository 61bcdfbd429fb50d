//! Which results may take the storage of an operand that is read there for the last time.

use crate::Op;

/// Pairs (operand, result) such that the result may overwrite the operand while it is computed, provided both are
/// laid out alike: every element of the result depends, of that operand, on elements that the kernel has read by the
/// time it writes (the element itself, or its row). In order of preference.
pub fn candidates(op: &Op) -> &'static [(usize, usize)] {
    match op {
        Op::Unary(_) | Op::Cast(_) => &[(0, 0)],
        Op::Binary(_) | Op::Bitwise(_) | Op::Compare(_) | Op::Logical(_) => &[(0, 0), (1, 0)],
        Op::Select(_) => &[(1, 0), (2, 0), (0, 0)],
        Op::Dropout(_) | Op::Softmax(_) | Op::LogSoftmax(_) | Op::CrossEntropyGrad(_) => &[(0, 0)],
        Op::SoftmaxGrad(_) => &[(1, 0), (0, 0)],
        Op::Adam(_) => &[(0, 0), (2, 1), (3, 2)],
        Op::Sgd(_) | Op::Adagrad(_) => &[(0, 0), (2, 1)],
        // Same elements in the same order: not computed at all.
        Op::Reshape(_) => &[(0, 0)],
        // Other devices read the operand while the result is written.
        Op::Collective(_) => &[],
        Op::Accumulate(_)
        | Op::Attention(_)
        | Op::AttentionGrad(_)
        | Op::AvgPool(_)
        | Op::AvgPoolGrad(_)
        | Op::BatchNorm(_)
        | Op::BatchNormGrad(_)
        | Op::BatchStatistics(_)
        | Op::Bitcast(_)
        | Op::Broadcast(_)
        | Op::Concat(_)
        | Op::Constant(_)
        | Op::Contract(_)
        | Op::Conv(_)
        | Op::ConvGradInput(_)
        | Op::ConvGradWeight(_)
        | Op::CrossEntropy(_)
        | Op::CumulativeSum(_)
        | Op::Experts(_)
        | Op::ExpertsGrad(_)
        | Op::Gather(_)
        | Op::Det(_)
        | Op::Detach(_)
        | Op::GatherElements(_)
        | Op::GatherElementsGrad(_)
        | Op::GatherGrad(_)
        | Op::GatherNd(_)
        | Op::GatherNdGrad(_)
        | Op::InTraining(_)
        | Op::Iota(_)
        | Op::LayerNorm(_)
        | Op::LayerNormGrad(_)
        | Op::MaxPool(_)
        | Op::MaxPoolGrad(_)
        | Op::MaxPoolIndices(_)
        | Op::Pad(_)
        | Op::RandomUniform(_)
        | Op::Reduce(_)
        | Op::RmsNorm(_)
        | Op::RmsNormGrad(_)
        | Op::Rotary(_)
        | Op::ScatterElements(_)
        | Op::ScatterNd(_)
        | Op::Slice(_)
        | Op::Splat(_)
        | Op::TopK(_)
        | Op::Transpose(_) => &[],
    }
}
