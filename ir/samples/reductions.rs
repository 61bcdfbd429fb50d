//! Samples: reductions, softmaxes, norms, pooling.

use super::table::{f32_type, float, of};
use super::*;
use crate::Tier;
use crate::ops::Float;
use crate::ops::batch_norm::{BatchNorm, BatchNormGrad, BatchStatistics, InTraining};
use crate::ops::copy::Copy;
use crate::ops::detach::Detach;
use crate::ops::norm::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad};
use crate::ops::pool::{
    AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad, MaxPoolGradAt, MaxPoolIndices, MaxPoolOffsets, Window,
    Windows,
};
use crate::ops::ranking::TopK;
use crate::ops::reduce::{CumulativeSum, Reduce, ReduceKind};
use crate::ops::softmax::{LogSoftmax, Softmax, SoftmaxGrad};
use crate::ops::transfer::Transfer;
use smallvec::SmallVec;

pub(super) fn reductions() -> Vec<Sample> {
    let mut samples = vec![];
    for kind in [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Max, ReduceKind::Min] {
        for (dims, keep) in [(&[1u32][..], false), (&[0, 2], true), (&[0, 1, 2], false)] {
            samples.push(Sample::new(
                Reduce { kind, dims: SmallVec::from_slice(dims), keep },
                [float(&[2, 4, 6])],
            ));
        }
        if kind != ReduceKind::Mean {
            let op = Reduce { kind, dims: SmallVec::from_slice(&[0]), keep: false };
            samples.push(Sample::new(op, [of(DType::I64, &[4, 2], Fill::Normal)]));
        }
    }
    for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
        let op = CumulativeSum { dim: 1, exclusive, reverse };
        samples.push(Sample::new(op.clone(), [float(&[2, 3, 4])]));
        samples.push(Sample::new(op, [of(DType::I64, &[2, 4], Fill::Normal)]));
    }
    samples
}

pub(super) fn rankings() -> Vec<Sample> {
    let mut samples = vec![];
    for (dim, dims, count) in [(2, &[2u64, 4, 6][..], 2), (0, &[5, 4, 2], 5), (1, &[4, 40], 3)] {
        for largest in [true, false] {
            let op = TopK { dim, count, largest };
            let tied = of(DType::I64, dims, Fill::Integers(-3, 3));
            samples.extend([float(dims), tied].map(|x| Sample::new(op.clone(), [x])));
        }
    }
    samples
}

pub(super) fn softmaxes() -> Vec<Sample> {
    let mut samples = vec![];
    for (dim, dims) in [(2, &[2u64, 4, 6][..]), (0, &[6, 4])] {
        samples.push(Sample::new(Softmax { dim }, [float(dims)]));
        let probabilities = of(DType::F32, dims, Fill::Probability);
        samples.push(Sample::new(SoftmaxGrad { dim }, [probabilities, float(dims)]).undifferentiable());
        samples.push(Sample::new(LogSoftmax { dim }, [float(dims)]));
    }
    samples
}

pub(super) fn norms() -> Vec<Sample> {
    let mut samples = vec![];
    for (x, n) in [(&[2u64, 4, 6][..], 6), (&[4, 5], 5)] {
        let (layer, rms) = (LayerNorm { eps: Float::new(1e-5) }, RmsNorm { eps: Float::new(1e-6) });
        let statistic = |op: Op, operands: &[usize], result| Operand {
            ty: f32_type(&x[..x.len() - 1]),
            fill: Fill::Result(op, operands.to_vec(), result),
        };
        let (mean, rstd) =
            (statistic(layer.clone().into(), &[0, 1, 1], 1), statistic(layer.clone().into(), &[0, 1, 1], 2));
        let root = statistic(rms.clone().into(), &[0, 1], 1);
        samples.push(Sample::new(layer, [float(x), float(&[n]), float(&[n])]).statistics(&[1, 2]));
        samples.push(
            Sample::new(LayerNormGrad, [float(x), float(&[n]), mean, rstd, float(x)]).undifferentiable(),
        );
        samples.push(Sample::new(rms, [float(x), float(&[n])]).statistics(&[1]));
        samples.push(Sample::new(RmsNormGrad, [float(x), float(&[n]), root, float(x)]).undifferentiable());
    }
    samples
}

pub(super) fn batch_norms() -> Vec<Sample> {
    let eps = Float::new(1e-5);
    let mut samples = vec![Sample::new(InTraining, [float(&[4]), float(&[4])])];
    // The slope in finite differences includes the part that `detach` leaves out of the gradient.
    samples.push(Sample { smooth: false, ..Sample::new(Detach, [float(&[4, 6])]) });
    samples.push(Sample::new(Transfer, [float(&[4, 6])]));
    samples.push(Sample::new(Copy { to: Tier::Host }, [float(&[4, 6])]).undifferentiable());
    for (x, c) in [(&[4u64, 2, 6][..], 2), (&[6, 4], 4), (&[2, 4, 2, 4], 4), (&[2, 2, 1, 2, 4], 2)] {
        let (x, c) = (float(x), float(&[c]));
        let variance = Operand { fill: Fill::Positive, ..c.clone() };
        samples.push(Sample::new(BatchStatistics, [x.clone()]).statistics(&[2]));
        let operands = [x.clone(), c.clone(), variance.clone(), c.clone(), c.clone()];
        samples.push(Sample::new(BatchNorm { eps }, operands));
        let operands = [x.clone(), c.clone(), variance, c, x];
        samples.push(Sample::new(BatchNormGrad { eps }, operands).undifferentiable());
    }
    samples
}

pub(super) fn pools() -> Vec<Sample> {
    let window = |size, stride, dilation, before, after| Window { size, stride, dilation, before, after };
    let plain = window(2, 1, 1, 0, 0);
    // A window with only padding.
    let mut outside = pool(&[2, 4], &[window(2, 3, 1, 3, 1)]);
    outside[0].smooth = false;
    [
        outside,
        pool(&[2, 4, 7], &[window(3, 2, 1, 0, 0)]),
        pool(&[2, 2, 6], &[window(3, 2, 2, 2, 3)]),
        // Some elements are covered by no window.
        pool(&[2, 9], &[window(2, 5, 1, 1, 1)]),
        pool(&[2, 2, 5, 6], &[plain, plain]),
        pool(&[2, 2, 7, 8], &[window(3, 2, 1, 1, 1), window(2, 3, 3, 0, 2)]),
        pool(&[2, 4, 3, 5], &[window(3, 1, 1, 0, 0), window(5, 1, 1, 0, 0)]),
        pool(&[2, 2, 4, 3, 5], &[window(2, 2, 1, 0, 0), window(3, 1, 1, 1, 1), window(2, 2, 2, 1, 0)]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Makes samples of pooling for an operand of these sizes, and of its gradients. Max pooling also gets windows whose elements are equal.
fn pool(sizes: &[u64], windows: &[Window]) -> Vec<Sample> {
    let windows = Windows::from_slice(windows);
    let largest = Sample::new(MaxPool { windows: windows.clone() }, [float(sizes)]);
    let ty = largest.result_types().expect("samples are well-typed").remove(0);
    let dy = Operand { ty, fill: Fill::Normal };
    let indices =
        |fill| Sample::new(MaxPoolIndices { windows: windows.clone() }, [of(DType::F32, sizes, fill)]);
    let mut samples = vec![largest, indices(Fill::Normal), indices(Fill::Integers(-1, 2))];
    for fill in [Fill::Normal, Fill::Integers(-1, 2)] {
        let grad = MaxPoolGrad { windows: windows.clone() };
        samples.push(Sample::new(grad, [of(DType::F32, sizes, fill), dy.clone()]).undifferentiable());
    }
    for fill in [Fill::Normal, Fill::Integers(-1, 2)] {
        samples.push(Sample::new(MaxPoolOffsets { windows: windows.clone() }, [of(DType::F32, sizes, fill)]));
    }
    // One offset lies beyond the window.
    let size: u64 = windows.iter().map(|window| window.size).product();
    let fill = Fill::Integers(0, size as i64 + 1);
    let offsets = Operand { ty: Type::new(DType::U8, dy.ty.dims.clone()), fill };
    let grad = Sample::new(MaxPoolGradAt { windows: windows.clone() }, [offsets, dy.clone()]);
    samples.push(grad.declared(f32_type(sizes)).undifferentiable());
    for count_padding in [false, true] {
        samples.push(Sample::new(AvgPool { windows: windows.clone(), count_padding }, [float(sizes)]));
        let grad = AvgPoolGrad { windows: windows.clone(), count_padding };
        samples.push(Sample::new(grad, [dy.clone()]).declared(f32_type(sizes)).undifferentiable());
    }
    samples
}
