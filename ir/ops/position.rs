//! The operators whose numbers depend on the place of a part in the whole tensor.
//!
//! This is a property of [`Operator::interp`](super::Operator::interp): the `interp` of such an operator asks
//! [`Interp`](super::Interp) for spans. Every backend tells all kernels of such an operator the place of the device's part. The
//! conformance test compares the answers with `interp`.

use super::Op;

impl Op {
    /// Whether the numbers that a device computes from its parts of the operands depend on the places of these parts in the whole
    /// tensors.
    pub fn depends_on_position(&self) -> bool {
        match self {
            // Indices count along the whole dim.
            Self::Gather(_) | Self::GatherElements(_) | Self::GatherElementsGrad(_) | Self::GatherGrad(_) => {
                true
            }
            Self::ScatterElements(_) | Self::CrossEntropyGrad(_) => true,
            Self::Experts(_) | Self::ExpertsGrad(_) => true,
            // A random number depends on the place of its element in the whole tensor.
            Self::Dropout(_) | Self::RandomUniform(_) => true,
            // A query reads the keys up to its own place.
            Self::Attention(attention) => attention.causal,
            Self::AttentionGrad(attention) => attention.causal,
            // Each part has different elements.
            Self::Constant(_) | Self::Iota(_) => true,
            Self::Accumulate(_)
            | Self::Adagrad(_)
            | Self::Adam(_)
            | Self::Adam8bit(_)
            | Self::Addends(_)
            | Self::AvgPool(_)
            | Self::AvgPoolGrad(_)
            | Self::BatchNorm(_)
            | Self::BatchNormGrad(_)
            | Self::BatchStatistics(_)
            | Self::Binary(_)
            | Self::Bitcast(_)
            | Self::Bitwise(_)
            | Self::Broadcast(_)
            | Self::Cast(_)
            | Self::Collective(_)
            | Self::Compare(_)
            | Self::Concat(_)
            | Self::Contract(_)
            | Self::Conv(_)
            | Self::ConvGradInput(_)
            | Self::ConvGradWeight(_)
            | Self::Copy(_)
            | Self::CrossEntropy(_)
            | Self::CumulativeSum(_)
            | Self::Det(_)
            | Self::TopK(_)
            | Self::Detach(_)
            | Self::GatherNd(_)
            | Self::GatherNdGrad(_)
            | Self::InTraining(_)
            | Self::LayerNorm(_)
            | Self::LayerNormGrad(_)
            | Self::Lion(_)
            | Self::LogSoftmax(_)
            | Self::Logical(_)
            | Self::MaxPool(_)
            | Self::MaxPoolGrad(_)
            | Self::MaxPoolGradAt(_)
            | Self::MaxPoolIndices(_)
            | Self::Orthogonalize(_)
            | Self::MaxPoolOffsets(_)
            | Self::PackBits(_)
            | Self::Pad(_)
            | Self::Reduce(_)
            | Self::Reshape(_)
            | Self::RmsNorm(_)
            | Self::RmsNormGrad(_)
            | Self::Rotary(_)
            | Self::ScatterNd(_)
            | Self::Select(_)
            | Self::Sgd(_)
            | Self::Slice(_)
            | Self::Softmax(_)
            | Self::SoftmaxGrad(_)
            | Self::Splat(_)
            | Self::Transfer(_)
            | Self::Transpose(_)
            | Self::Unary(_)
            | Self::UnpackBits(_) => false,
        }
    }
}
