//! Batch normalisation: the statistics of each channel, the normalisation with them, and the gradient.

use super::PARALLEL;
use crate::call::Call;
use crate::element::{Element, with_float};
use crate::math::{Float, Real};
use crate::simd::{sum, vectorized};
use ir::ops::batch_norm::{BatchNorm, BatchNormGrad};
use rayon::prelude::*;
use std::ops::Range;

/// The sizes of a tensor `[samples, channels, ..]`.
#[derive(Clone, Copy)]
struct Shape {
    samples: usize,
    channels: usize,
    /// The number of elements of one channel in a sample.
    plane: usize,
}

impl Shape {
    /// Returns the sizes of an operand.
    fn of(call: &Call, operand: usize) -> Self {
        let sizes = &call.operand_view(operand).layout.sizes;
        Self { samples: sizes[0], channels: sizes[1], plane: sizes[2..].iter().product() }
    }

    /// Returns the number of elements of a channel.
    fn count(self) -> usize {
        self.samples * self.plane
    }

    /// Returns the number of elements of a sample.
    fn sample(self) -> usize {
        self.channels * self.plane
    }

    /// Returns the places of a channel's elements, sample by sample.
    #[inline(always)]
    fn planes(self, channel: usize) -> impl Iterator<Item = Range<usize>> {
        (0..self.samples).map(move |sample| {
            let start = (sample * self.channels + channel) * self.plane;
            start..start + self.plane
        })
    }

    /// Returns the smallest number of channels of one task.
    fn least_channels(self) -> usize {
        (PARALLEL / 4 / self.count().max(1)).max(1)
    }

    /// Returns the smallest number of samples of one task.
    fn least_samples(self) -> usize {
        (PARALLEL / 4 / self.sample().max(1)).max(1)
    }
}

/// The size from which a plane is summed in lanes.
const SHORT: usize = 32;

/// `Σ f` over the elements of a plane.
#[inline(always)]
fn plane_sum<S: Float, T: Real, const N: usize>(planes: [&[S]; N], f: impl Fn([S; N]) -> T) -> T {
    let count = planes[0].len();
    if count >= SHORT {
        return sum(planes, f);
    }
    (0..count).fold(T::ZERO, |total, i| total + f(planes.map(|plane| plane[i])))
}

fn widened<S: Float>(elements: &[S]) -> Vec<S::Real> {
    elements.iter().map(|x| x.widen()).collect()
}

pub(super) fn statistics(mut call: Call) {
    let shape = Shape::of(&call, 0);
    with_float!(call.operand_view(0).dtype, S => {
        let x = call.dense::<S>(0);
        let [mean, variance, unbiased] = call.take_results().map(bytemuck::cast_slice_mut::<u8, S>);
        let results = mean.par_iter_mut().zip(variance).zip(unbiased).enumerate();
        results.with_min_len(shape.least_channels()).for_each(|(channel, ((mean, variance), unbiased))| {
            let (centre, squares) = channel_statistics(x, shape, channel);
            let over = |count: usize| S::narrow(squares / <S as Float>::Real::of(count as f64));
            *mean = S::narrow(centre);
            (*variance, *unbiased) = (over(shape.count()), over(shape.count().saturating_sub(1).max(1)));
        });
    });
}

vectorized! {
    /// Returns the mean, and the sum of the squares of the distances from it. Planes are added in f64, because an error of the statistics
    /// affects every element. The elements are added in f64 for the mean, so that equal numbers (of another type than f64) have exactly
    /// themselves as their mean. They then become the bias, where a ReLU may have its kink.
    fn channel_statistics<'a; S: Float>(x: &'a [S], shape: Shape, channel: usize) -> (S::Real, S::Real) {
        let mut total = 0.0;
        for plane in shape.planes(channel) {
            total += plane_sum([&x[plane]], |[x]| x.widen().to_f64());
        }
        let mean = S::Real::of(total / shape.count() as f64);
        let mut squares = 0.0;
        for plane in shape.planes(channel) {
            let sum = plane_sum([&x[plane]], |[x]| {
                let apart = x.widen() - mean;
                apart * apart
            });
            squares += sum.to_f64();
        }
        (mean, S::Real::of(squares))
    }
}

/// Returns `1/√(variance + eps)` of each channel.
fn rstd<S: Float>(variance: &[S], eps: f64) -> Vec<S::Real> {
    let eps = S::Real::of(eps);
    variance.iter().map(|variance| S::Real::ONE / (variance.widen() + eps).sqrt()).collect()
}

pub(super) fn normalize(norm: &BatchNorm, mut call: Call) {
    let shape = Shape::of(&call, 0);
    with_float!(call.dtype(), S => {
        let [x, mean, variance, scale, bias] = [0, 1, 2, 3, 4].map(|i| call.dense::<S>(i));
        let rstd = rstd(variance, norm.eps.get());
        let factor: Vec<_> = rstd.iter().zip(scale).map(|(&rstd, scale)| rstd * scale.widen()).collect();
        let (mean, bias) = (widened(mean), widened(bias));
        let y = call.take_result::<S>().par_chunks_exact_mut(shape.sample());
        let samples = x.par_chunks_exact(shape.sample()).zip(y).with_min_len(shape.least_samples());
        samples.for_each(|(x, y)| normalize_sample(x, &mean, &factor, &bias, y));
    });
}

vectorized! {
    /// `y = (x - mean)·factor + bias`
    fn normalize_sample<'a; S: Float>(
        x: &'a [S],
        mean: &'a [S::Real],
        factor: &'a [S::Real],
        bias: &'a [S::Real],
        y: &'a mut [S],
    ) {
        let (channels, plane) = (mean.len(), x.len() / mean.len());
        let (factor, bias) = (&factor[..channels], &bias[..channels]);
        if plane == 1 {
            let (x, y) = (&x[..channels], &mut y[..channels]);
            for i in 0..channels {
                y[i] = S::narrow((x[i].widen() - mean[i]).mul_add(factor[i], bias[i]));
            }
            return;
        }
        for (channel, (x, y)) in x.chunks_exact(plane).zip(y.chunks_exact_mut(plane)).enumerate() {
            let (mean, factor, bias) = (mean[channel], factor[channel], bias[channel]);
            for (y, x) in y.iter_mut().zip(x) {
                *y = S::narrow((x.widen() - mean).mul_add(factor, bias));
            }
        }
    }
}

/// With r = 1/√(variance + eps): `d x = d y·r·scale`, `d mean = -r·scale·Σ d y`,
/// `d variance = -½·r³·scale·Σ d y·(x - mean)`, `d scale = r·Σ d y·(x - mean)`, `d bias = Σ d y`.
pub(super) fn gradient(norm: &BatchNormGrad, mut call: Call) {
    let shape = Shape::of(&call, 0);
    with_float!(call.operand_view(0).dtype, S => {
        let [x, mean, variance, scale, dy] = [0, 1, 2, 3, 4].map(|i| call.dense::<S>(i));
        let (rstd, half) = (rstd(variance, norm.eps.get()), <S as Float>::Real::of(0.5));
        let factor: Vec<_> = rstd.iter().zip(scale).map(|(&rstd, scale)| rstd * scale.widen()).collect();
        let [dx, of_channels @ ..]: [&mut [S]; 5] = call.take_results().map(bytemuck::cast_slice_mut);
        let [dmean, dvariance, dscale, dbias] = of_channels;
        let results = dmean.par_iter_mut().zip(dvariance).zip(dscale.par_iter_mut().zip(dbias)).enumerate();
        let results = results.with_min_len(shape.least_channels());
        results.for_each(|(channel, ((dmean, dvariance), (dscale, dbias)))| {
            let (total, dot) = channel_sums(x, dy, mean[channel].widen(), shape, channel);
            let (rstd, factor) = (rstd[channel], factor[channel]);
            *dmean = S::narrow(-factor * total);
            *dvariance = S::narrow(-half * rstd * rstd * factor * dot);
            *dscale = S::narrow(rstd * dot);
            *dbias = S::narrow(total);
        });
        let dx = dx.par_chunks_exact_mut(shape.sample());
        let samples = dy.par_chunks_exact(shape.sample()).zip(dx).with_min_len(shape.least_samples());
        samples.for_each(|(dy, dx)| scale_sample(dy, &factor, dx));
    });
}

vectorized! {
    /// Returns `Σ d y` and `Σ d y·(x - mean)`.
    fn channel_sums<'a; S: Float>(
        x: &'a [S],
        dy: &'a [S],
        mean: S::Real,
        shape: Shape,
        channel: usize,
    ) -> (S::Real, S::Real) {
        let (mut total, mut dot) = (0.0, 0.0);
        for plane in shape.planes(channel) {
            let (x, dy) = (&x[plane.clone()], &dy[plane]);
            total += plane_sum([dy], |[dy]| dy.widen()).to_f64();
            dot += plane_sum([dy, x], |[dy, x]| dy.widen() * (x.widen() - mean)).to_f64();
        }
        (S::Real::of(total), S::Real::of(dot))
    }

    /// `d x = d y·factor`
    fn scale_sample<'a; S: Float>(dy: &'a [S], factor: &'a [S::Real], dx: &'a mut [S]) {
        let plane = dy.len() / factor.len();
        let planes = dy.chunks_exact(plane).zip(dx.chunks_exact_mut(plane)).zip(factor);
        for ((dy, dx), &factor) in planes {
            dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx = S::narrow(dy.widen() * factor));
        }
    }
}
