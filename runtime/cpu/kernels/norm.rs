//! Normalisations over the last dim, and their gradients.

use super::PARALLEL;
use crate::cpu::call::Call;
use crate::cpu::element::with_float;
use crate::cpu::math::Real;
use crate::cpu::simd::{sum, vectorized};
use ir::ops::norm::{LayerNorm, RmsNorm};
use rayon::prelude::*;

/// Rows that one task takes, at least.
fn least_rows(width: usize) -> usize {
    (PARALLEL / 4 / width.max(1)).max(1)
}

pub(super) fn layer_norm(norm: &LayerNorm, mut call: Call) {
    with_float!(call.instruction.operands[0].dtype, T => {
        let [x, scale, bias] = [0, 1, 2].map(|i| call.dense::<T>(i));
        let eps = T::of(norm.eps.get());
        let [y, mean, rstd] = call.take_results();
        let (mean, rstd) = (bytemuck::cast_slice_mut::<u8, T>(mean), bytemuck::cast_slice_mut::<u8, T>(rstd));
        let width = scale.len();
        let rows = x.par_chunks_exact(width).zip(bytemuck::cast_slice_mut::<u8, T>(y).par_chunks_exact_mut(width));
        let rows = rows.zip(mean.par_iter_mut().zip(rstd)).with_min_len(least_rows(width));
        rows.for_each(|((x, y), (mean, rstd))| (*mean, *rstd) = layer_norm_row(x, scale, bias, eps, y));
    });
}

vectorized! {
    /// Gives mean and 1/deviation.
    fn layer_norm_row<'a; T: Real>(x: &'a [T], scale: &'a [T], bias: &'a [T], eps: T, y: &'a mut [T]) -> (T, T) {
        let count = T::of(x.len() as f64);
        let mean = sum(x.len(), |i| x[i]) / count;
        let variance = sum(x.len(), |i| (x[i] - mean) * (x[i] - mean)) / count;
        let rstd = T::ONE / (variance + eps).sqrt();
        for (((y, &x), &scale), &bias) in y.iter_mut().zip(x).zip(scale).zip(bias) {
            *y = ((x - mean) * rstd).mul_add(scale, bias);
        }
        (mean, rstd)
    }
}

pub(super) fn layer_norm_grad(mut call: Call) {
    with_float!(call.instruction.operands[0].dtype, T => {
        let [x, scale, mean, rstd, dy] = [0, 1, 2, 3, 4].map(|i| call.dense::<T>(i));
        let [dx, dscale, dbias] = call.take_results().map(bytemuck::cast_slice_mut::<u8, T>);
        let width = scale.len();
        let rows = Rows { x, dy, dx, width };
        let sums = rows.for_each(2 * width, |row, x, dy, dx, sums| {
            let (dscale, dbias) = sums.split_at_mut(width);
            layer_norm_grad_row(x, scale, mean[row], rstd[row], dy, dx, dscale, dbias);
        });
        dscale.copy_from_slice(&sums[..width]);
        dbias.copy_from_slice(&sums[width..]);
    });
}

vectorized! {
    /// With x̂ the normalised row and g = d y·scale: `d x = rstd·(g - mean g - x̂·mean(g·x̂))`; adds `d y·x̂` to
    /// `dscale` and `d y` to `dbias`.
    fn layer_norm_grad_row<'a; T: Real>(
        x: &'a [T],
        scale: &'a [T],
        mean: T,
        rstd: T,
        dy: &'a [T],
        dx: &'a mut [T],
        dscale: &'a mut [T],
        dbias: &'a mut [T],
    ) {
        let width = x.len();
        let (scale, dy, dx) = (&scale[..width], &dy[..width], &mut dx[..width]);
        let (dscale, dbias) = (&mut dscale[..width], &mut dbias[..width]);
        let count = T::of(width as f64);
        let mean_g = sum(width, |i| dy[i] * scale[i]) / count;
        let mean_gx = sum(width, |i| dy[i] * scale[i] * ((x[i] - mean) * rstd)) / count;
        for i in 0..width {
            let unit = (x[i] - mean) * rstd;
            dscale[i] = dy[i].mul_add(unit, dscale[i]);
            dbias[i] = dbias[i] + dy[i];
            dx[i] = rstd * (dy[i] * scale[i] - mean_g - unit * mean_gx);
        }
    }
}

pub(super) fn rms_norm(norm: &RmsNorm, mut call: Call) {
    with_float!(call.instruction.operands[0].dtype, T => {
        let [x, scale] = [0, 1].map(|i| call.dense::<T>(i));
        let eps = T::of(norm.eps.get());
        let [y, rstd] = call.take_results().map(bytemuck::cast_slice_mut::<u8, T>);
        let width = scale.len();
        let rows = x.par_chunks_exact(width).zip(y.par_chunks_exact_mut(width)).zip(rstd);
        let rows = rows.with_min_len(least_rows(width));
        rows.for_each(|((x, y), rstd)| *rstd = rms_norm_row(x, scale, eps, y));
    });
}

vectorized! {
    /// Gives 1/root mean square.
    fn rms_norm_row<'a; T: Real>(x: &'a [T], scale: &'a [T], eps: T, y: &'a mut [T]) -> T {
        let mean = sum(x.len(), |i| x[i] * x[i]) / T::of(x.len() as f64);
        let rstd = T::ONE / (mean + eps).sqrt();
        for ((y, &x), &scale) in y.iter_mut().zip(x).zip(scale) {
            *y = x * rstd * scale;
        }
        rstd
    }
}

pub(super) fn rms_norm_grad(mut call: Call) {
    with_float!(call.instruction.operands[0].dtype, T => {
        let [x, scale, rstd, dy] = [0, 1, 2, 3].map(|i| call.dense::<T>(i));
        let [dx, dscale] = call.take_results().map(bytemuck::cast_slice_mut::<u8, T>);
        let width = scale.len();
        let rows = Rows { x, dy, dx, width };
        let sums = rows.for_each(width, |row, x, dy, dx, sums| {
            rms_norm_grad_row(x, scale, rstd[row], dy, dx, sums);
        });
        dscale.copy_from_slice(&sums);
    });
}

vectorized! {
    /// With x̂ = x·rstd and g = d y·scale: `d x = rstd·(g - x̂·mean(g·x̂))`; adds `d y·x̂` to `dscale`.
    fn rms_norm_grad_row<'a; T: Real>(
        x: &'a [T],
        scale: &'a [T],
        rstd: T,
        dy: &'a [T],
        dx: &'a mut [T],
        dscale: &'a mut [T],
    ) {
        let width = x.len();
        let (scale, dy, dx, dscale) = (&scale[..width], &dy[..width], &mut dx[..width], &mut dscale[..width]);
        let mean_gx = sum(width, |i| dy[i] * scale[i] * (x[i] * rstd)) / T::of(width as f64);
        for i in 0..width {
            let unit = x[i] * rstd;
            dscale[i] = dy[i].mul_add(unit, dscale[i]);
            dx[i] = rstd * (dy[i] * scale[i] - unit * mean_gx);
        }
    }
}

/// The rows of a gradient.
struct Rows<'a, T> {
    x: &'a [T],
    dy: &'a [T],
    dx: &'a mut [T],
    width: usize,
}

/// Blocks of rows whose sums are kept apart. A fixed number, so that sums do not depend on threads.
const BLOCKS: usize = 32;

impl<T: Real> Rows<'_, T> {
    /// Calls for every row with its index, `x`, `d y`, `d x` and a row of `sums` sums; gives the sums of all rows.
    fn for_each(self, sums: usize, row: impl Fn(usize, &[T], &[T], &mut [T], &mut [T]) + Sync) -> Vec<T> {
        let Self { x, dy, dx, width } = self;
        let count = dx.len() / width;
        let rows = count.div_ceil(BLOCKS).max(8);
        let mut partial = vec![T::ZERO; count.div_ceil(rows) * sums];
        let blocks = dx.par_chunks_mut(rows * width).zip(partial.par_chunks_mut(sums)).enumerate();
        blocks.with_min_len(least_rows(width).div_ceil(rows)).for_each(|(block, (dx, sums))| {
            for (i, dx) in dx.chunks_exact_mut(width).enumerate() {
                let index = block * rows + i;
                let here = index * width..(index + 1) * width;
                row(index, &x[here.clone()], &dy[here], dx, sums);
            }
        });
        let mut total = vec![T::ZERO; sums];
        for partial in partial.chunks_exact(sums) {
            total.iter_mut().zip(partial).for_each(|(total, &partial)| *total = *total + partial);
        }
        total
    }
}
