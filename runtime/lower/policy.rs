//! Which kernel reads which layouts, in which layout it writes, and how much scratch it needs.

use super::draft::{Draft, Located};
use super::{LowerOptions, Target};
use crate::convolution::Convolution;
use crate::cuda;
use crate::cuda::lower::Unplaced;
use crate::layout::{Layout, Sizes};
use crate::program::Kernel;
use ir::ops::contract::Contract;
use ir::ops::reduce::ReduceKind;
use ir::{DType, Op};

/// The layouts that a kernel reads of an operand; others are copied first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// Any strides.
    Any,
    /// Any, as long as neighbours along the last dim are neighbours in memory.
    InnerContiguous,
    /// Rows along the last dim, each without holes, one after the other at one distance.
    Rows,
    /// Row-major without holes.
    Dense,
}

impl Reads {
    pub(super) fn accepts(self, layout: &Layout) -> bool {
        match self {
            Self::Any => true,
            Self::InnerContiguous => layout.is_inner_contiguous(),
            Self::Rows => layout.is_dense() || layout.is_in_rows(),
            Self::Dense => layout.is_dense(),
        }
    }
}

/// The layouts that the kernel of an operator reads of operand `index`, of `count` operands.
pub(super) fn reads(op: &Op, index: usize, count: usize, target: Target) -> Reads {
    match op {
        Op::CrossEntropy(_) | Op::CrossEntropyGrad(_) if index == 0 && target == Target::Cuda => Reads::Rows,
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Logical(_) | Op::Bitwise(_) => Reads::Any,
        Op::Select(_) | Op::Cast(_) | Op::Bitcast(_) => Reads::Any,
        Op::Contract(_) | Op::Reduce(_) | Op::Concat(_) | Op::Pad(_) => Reads::Any,
        Op::Detach(_) | Op::InTraining(_) => Reads::Any,
        Op::Accumulate(_) | Op::Broadcast(_) | Op::Reshape(_) | Op::Slice(_) | Op::Transpose(_) => Reads::Any,
        // q, k, v, then perhaps a mask.
        Op::Attention(_) => {
            if index < 3 {
                Reads::InnerContiguous
            } else {
                Reads::Any
            }
        }
        // q, k, v, [mask,] out, logsumexp, d out.
        Op::AttentionGrad(_) => match count - index {
            2 => Reads::Dense,
            4 if index == 3 => Reads::Any,
            _ => Reads::InnerContiguous,
        },
        Op::Rotary(_) => Reads::InnerContiguous,
        // Gradients may lie as the contraction left them.
        Op::Adagrad(_) | Op::Adam(_) | Op::Sgd(_) if index == 1 => Reads::Any,
        Op::Adagrad(_)
        | Op::Adam(_)
        | Op::AvgPool(_)
        | Op::AvgPoolGrad(_)
        | Op::BatchNorm(_)
        | Op::BatchNormGrad(_)
        | Op::BatchStatistics(_)
        | Op::Collective(_)
        | Op::Constant(_)
        | Op::Conv(_)
        | Op::ConvGradInput(_)
        | Op::ConvGradWeight(_)
        | Op::CrossEntropy(_)
        | Op::CrossEntropyGrad(_)
        | Op::CumulativeSum(_)
        | Op::Det(_)
        | Op::Dropout(_)
        | Op::Experts(_)
        | Op::ExpertsGrad(_)
        | Op::Gather(_)
        | Op::GatherElements(_)
        | Op::GatherElementsGrad(_)
        | Op::GatherGrad(_)
        | Op::GatherNd(_)
        | Op::GatherNdGrad(_)
        | Op::Iota(_)
        | Op::LayerNorm(_)
        | Op::LayerNormGrad(_)
        | Op::LogSoftmax(_)
        | Op::MaxPool(_)
        | Op::MaxPoolGrad(_)
        | Op::MaxPoolIndices(_)
        | Op::RandomUniform(_)
        | Op::RmsNorm(_)
        | Op::RmsNormGrad(_)
        | Op::ScatterElements(_)
        | Op::ScatterNd(_)
        | Op::Sgd(_)
        | Op::Softmax(_)
        | Op::SoftmaxGrad(_)
        | Op::Splat(_)
        | Op::TopK(_) => Reads::Dense,
    }
}

/// Whether what the kernel of an operator computes depends on where in the whole tensors its parts lie.
pub(super) fn depends_on_position(op: &Op) -> bool {
    match op {
        // Indices count along the whole dim.
        Op::Gather(_) | Op::GatherElements(_) | Op::GatherGrad(_) | Op::CrossEntropyGrad(_) => true,
        Op::GatherElementsGrad(_) | Op::ScatterElements(_) => true,
        Op::Experts(_) | Op::ExpertsGrad(_) => true,
        // Which elements are dropped is told by their places in the whole.
        Op::Dropout(_) | Op::RandomUniform(_) => true,
        // A query sees the keys up to its own place.
        Op::Attention(attention) => attention.causal,
        Op::AttentionGrad(attention) => attention.causal,
        _ => false,
    }
}

/// The layout in which the kernel of an operator writes result `index`.
pub(super) fn result_layout(op: &Op, index: usize, operands: &[Layout], sizes: &[usize]) -> Layout {
    match op {
        Op::Contract(contract) => contraction_layout(contract, sizes),
        // Transformers turn [batch, head, position, feature] back into [batch, position, head, feature].
        Op::Attention(_) if index == 0 => Layout::in_order(sizes, &[0, 2, 1, 3]),
        Op::AttentionGrad(_) => Layout::in_order(sizes, &[0, 2, 1, 3]),
        Op::Rotary(_) => {
            match operands[0].memory_order().filter(|order| order.last() == Some(&(sizes.len() - 1))) {
                Some(order) => Layout::in_order(sizes, &order),
                None => Layout::dense(sizes),
            }
        }
        _ => Layout::dense(sizes),
    }
}

/// Row-major if rows and columns of the multiplication each keep to one stride there; else batch, rows and columns
/// one after the other, so that one multiplication does it.
fn contraction_layout(contract: &Contract, sizes: &[usize]) -> Layout {
    let roles = contract.roles();
    let dim = |label: &u8| contract.out.0.iter().position(|l| l == label).unwrap_or_default();
    let dims = |labels: &[u8]| labels.iter().map(dim).collect::<Sizes>();
    let dense = Layout::dense(sizes);
    let one_stride = |labels: &[u8]| dense.transpose(&dims(labels)).collapsed().len() <= 1;
    if one_stride(&roles.rows) && one_stride(&roles.columns) {
        return dense;
    }
    let order: Sizes =
        [&roles.batch, &roles.rows, &roles.columns].into_iter().flat_map(|labels| dims(labels)).collect();
    Layout::in_order(sizes, &order)
}

/// The layout of a chain's results: that of the first operand of the chain's sizes that has no holes.
pub(super) fn chain_layout(operands: &[Layout], sizes: &[usize]) -> Layout {
    let order =
        operands.iter().filter(|layout| layout.sizes.as_slice() == sizes).find_map(Layout::memory_order);
    order.map_or_else(|| Layout::dense(sizes), |order| Layout::in_order(sizes, &order))
}

/// Whether the kernel can add to what its only result holds.
pub(super) fn can_accumulate(op: &Op) -> bool {
    match op {
        Op::Contract(_) | Op::ConvGradWeight(_) | Op::ExpertsGrad(_) => true,
        Op::GatherGrad(_) | Op::GatherElementsGrad(_) | Op::GatherNdGrad(_) => true,
        Op::Reduce(reduce) => matches!(reduce.kind, ReduceKind::Sum | ReduceKind::Mean),
        _ => false,
    }
}

/// The most f32 numbers of scratch an instruction gets: 4 MiB.
const MOST_SCRATCH: usize = 1 << 20;
/// Multiplications of one contraction that have scratch of their own, at most.
const MOST_SHARES: usize = 16;

fn unplaced(all: &[Located]) -> Vec<Unplaced> {
    all.iter().map(|one| Unplaced { dtype: one.dtype, layout: one.layout.clone() }).collect()
}

/// The f32 numbers of scratch that a kernel takes. A contraction of f16 or bf16 widens its operands there and adds up
/// there, whole ones if they are small, else tile by tile.
pub(super) fn scratch(draft: &Draft, options: &LowerOptions) -> usize {
    let target = options.target;
    if let (Kernel::Collective(exchange), Target::Cuda) = (&draft.kernel, target) {
        return cuda::lower::collective_scratch(
            exchange,
            &unplaced(&draft.operands),
            &unplaced(&draft.results),
        );
    }
    let Kernel::Op(op) = &draft.kernel else { return 0 };
    let convolutes = matches!(op, Op::Conv(_) | Op::ConvGradInput(_) | Op::ConvGradWeight(_));
    if target == Target::Cuda && !convolutes {
        return cuda::lower::scratch(
            op,
            &unplaced(&draft.operands),
            &unplaced(&draft.results),
            options.multiprocessors,
        );
    }
    if let Op::Experts(_) | Op::ExpertsGrad(_) = op {
        return experts_scratch(op, draft);
    }
    let Op::Contract(contract) = op else { return convolution_scratch(op, draft) };
    if !matches!(draft.results[0].dtype, DType::F16 | DType::BF16) {
        return 0;
    }
    let size = |label: &u8| {
        let of =
            |labels: &ir::ops::Labels, sizes: &Sizes| Some(sizes[labels.0.iter().position(|l| l == label)?]);
        let [lhs, rhs] = [0, 1].map(|index| &draft.operands[index].layout.sizes);
        of(&contract.lhs, lhs).or_else(|| of(&contract.rhs, rhs)).unwrap_or(1)
    };
    let product = |labels: &[u8]| labels.iter().map(size).fold(1, usize::saturating_mul);
    let roles = contract.roles();
    let [rows, columns, summed] = [&roles.rows, &roles.columns, &roles.summed].map(|labels| product(labels));
    let pairs = [(rows, summed), (summed, columns), (rows, columns)];
    let numbers = pairs.iter().map(|(a, b)| a.saturating_mul(*b)).fold(0, usize::saturating_add);
    numbers.saturating_mul(product(&roles.batch).min(MOST_SHARES)).clamp(3, MOST_SCRATCH)
}

/// The f32 numbers of scratch that experts take: rows of both sides laid together, and a matrix.
fn experts_scratch(op: &Op, draft: &Draft) -> usize {
    let sizes = |index: usize| &draft.operands[index].layout.sizes;
    let result = &draft.results[0];
    let [rows, k, n] = match op {
        Op::Experts(_) => [sizes(0)[0], sizes(0)[1], result.layout.sizes[1]],
        _ => [sizes(1)[0], sizes(1)[1], sizes(2)[1]],
    };
    let width = if result.dtype == DType::F64 { 2 } else { 1 };
    let numbers = rows.saturating_mul(k.saturating_add(n)).saturating_add(k.saturating_mul(n));
    numbers.saturating_mul(width)
}

/// The f32 numbers of scratch that a convolution takes; none if the operator is another.
fn convolution_scratch(op: &Op, draft: &Draft) -> usize {
    let ([first, second], [result]) = (&draft.operands[..], &draft.results[..]) else { return 0 };
    let operands = [&first.layout.sizes[..], &second.layout.sizes[..]];
    let convolution = Convolution::of(op, result.dtype, operands, &result.layout.sizes);
    let width = if result.dtype == DType::F64 { 2 } else { 1 };
    convolution.map_or(0, |convolution| convolution.scratch() * width)
}
