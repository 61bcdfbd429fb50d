//! Normalisations over the last dim, and their gradients.

use super::PARALLEL;
use crate::call::Call;
use crate::element::with_float;
use crate::math::{Float, Real};
use crate::simd::{sum, vectorized};
use crate::storage::{Scratch, narrow, number, set_number};
use ir::DType;
use ir::ops::norm::{LayerNorm, RmsNorm};
use rayon::prelude::*;

/// Returns the smallest number of rows of one task.
fn least_rows(width: usize) -> usize {
    (PARALLEL / 4 / width.max(1)).max(1)
}

/// Returns a result with statistics of any float type as chunks, one for each row.
fn statistics<'a>(bytes: &'a mut [u8], dtype: DType) -> rayon::slice::ChunksExactMut<'a, u8> {
    bytes.par_chunks_exact_mut(dtype.bytes() as usize)
}

pub(super) fn layer_norm(norm: &LayerNorm, mut call: Call) {
    let [mean_dtype, rstd_dtype] = [1, 2].map(|i| call.result_view(i).dtype);
    with_float!(call.operand_view(0).dtype, S => {
        let [x, scale, bias] = [0, 1, 2].map(|i| call.dense::<S>(i));
        let [mut wide_scale, mut wide_bias] = [Scratch::new(), Scratch::new()];
        let (scale, bias) = (wide_scale.read(scale), wide_bias.read(bias));
        let eps = <S as Float>::Real::of(norm.eps.get());
        let [y, mean, rstd] = call.take_results();
        let width = scale.len();
        let rows = x.par_chunks_exact(width).zip(bytemuck::cast_slice_mut::<u8, S>(y).par_chunks_exact_mut(width));
        let rows = rows.zip(statistics(mean, mean_dtype).zip(statistics(rstd, rstd_dtype)));
        let scratch = || [Scratch::new(), Scratch::new()];
        rows.with_min_len(least_rows(width)).for_each_init(scratch, |[wide_x, wide_y], ((x, y), (mean, rstd))| {
            let x = wide_x.read(x);
            let found = wide_y.write(y, |y| layer_norm_row(x, scale, bias, eps, y));
            set_number(mean_dtype, mean, found.0);
            set_number(rstd_dtype, rstd, found.1);
        });
    });
}

vectorized! {
    /// Returns the mean and 1/deviation. The mean is summed in f64. So the mean of equal numbers is exactly their number, also in another
    /// type, and the normalised elements equal the bias.
    fn layer_norm_row<'a; T: Real>(x: &'a [T], scale: &'a [T], bias: &'a [T], eps: T, y: &'a mut [T]) -> (T, T) {
        let count = T::of(x.len() as f64);
        let mean = T::of(sum([x], |[x]| x.to_f64()) / x.len() as f64);
        let variance = sum([x], |[x]| (x - mean) * (x - mean)) / count;
        let rstd = T::ONE / (variance + eps).sqrt();
        for (((y, &x), &scale), &bias) in y.iter_mut().zip(x).zip(scale).zip(bias) {
            *y = ((x - mean) * rstd).mul_add(scale, bias);
        }
        (mean, rstd)
    }
}

pub(super) fn layer_norm_grad(mut call: Call) {
    let (mean, rstd) = (Statistics::of(&call, 2), Statistics::of(&call, 3));
    with_float!(call.operand_view(0).dtype, S => {
        let [x, scale, dy] = [0, 1, 4].map(|i| call.dense::<S>(i));
        let mut wide_scale = Scratch::new();
        let scale = wide_scale.read(scale);
        let [dx, dscale, dbias] = call.take_results().map(bytemuck::cast_slice_mut::<u8, S>);
        let width = scale.len();
        let rows = Rows { x, dy, dx, width };
        let sums = rows.for_each(2 * width, |row, x, dy, dx, sums| {
            let (dscale, dbias) = sums.split_at_mut(width);
            layer_norm_grad_row(x, scale, mean.row(row), rstd.row(row), dy, dx, dscale, dbias);
        });
        narrow(&sums[..width], dscale);
        narrow(&sums[width..], dbias);
    });
}

vectorized! {
    /// With x̂ the normalised row and g = d y·scale, computes `d x = rstd·(g - mean g - x̂·mean(g·x̂))`, and adds `d y·x̂` to `dscale` and
    /// `d y` to `dbias`.
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
        let mean_g = sum([dy, scale], |[dy, scale]| dy * scale) / count;
        let mean_gx = sum([dy, scale, x], |[dy, scale, x]| dy * scale * ((x - mean) * rstd)) / count;
        for i in 0..width {
            let unit = (x[i] - mean) * rstd;
            dscale[i] = dy[i].mul_add(unit, dscale[i]);
            dbias[i] = dbias[i] + dy[i];
            dx[i] = rstd * (dy[i] * scale[i] - mean_g - unit * mean_gx);
        }
    }
}

pub(super) fn rms_norm(norm: &RmsNorm, mut call: Call) {
    let rstd_dtype = call.result_view(1).dtype;
    with_float!(call.operand_view(0).dtype, S => {
        let [x, scale] = [0, 1].map(|i| call.dense::<S>(i));
        let mut wide_scale = Scratch::new();
        let scale = wide_scale.read(scale);
        let eps = <S as Float>::Real::of(norm.eps.get());
        let [y, rstd] = call.take_results();
        let width = scale.len();
        let rows = x.par_chunks_exact(width).zip(bytemuck::cast_slice_mut::<u8, S>(y).par_chunks_exact_mut(width));
        let rows = rows.zip(statistics(rstd, rstd_dtype)).with_min_len(least_rows(width));
        rows.for_each_init(|| [Scratch::new(), Scratch::new()], |[wide_x, wide_y], ((x, y), rstd)| {
            let x = wide_x.read(x);
            set_number(rstd_dtype, rstd, wide_y.write(y, |y| rms_norm_row(x, scale, eps, y)));
        });
    });
}

vectorized! {
    /// Returns 1/root mean square.
    fn rms_norm_row<'a; T: Real>(x: &'a [T], scale: &'a [T], eps: T, y: &'a mut [T]) -> T {
        let mean = sum([x], |[x]| x * x) / T::of(x.len() as f64);
        let rstd = T::ONE / (mean + eps).sqrt();
        for ((y, &x), &scale) in y.iter_mut().zip(x).zip(scale) {
            *y = x * rstd * scale;
        }
        rstd
    }
}

pub(super) fn rms_norm_grad(mut call: Call) {
    let rstd = Statistics::of(&call, 2);
    with_float!(call.operand_view(0).dtype, S => {
        let [x, scale, dy] = [0, 1, 3].map(|i| call.dense::<S>(i));
        let mut wide_scale = Scratch::new();
        let scale = wide_scale.read(scale);
        let [dx, dscale] = call.take_results().map(bytemuck::cast_slice_mut::<u8, S>);
        let width = scale.len();
        let rows = Rows { x, dy, dx, width };
        let sums = rows.for_each(width, |row, x, dy, dx, sums| {
            rms_norm_grad_row(x, scale, rstd.row(row), dy, dx, sums);
        });
        narrow(&sums, dscale);
    });
}

vectorized! {
    /// With x̂ = x·rstd and g = d y·scale, computes `d x = rstd·(g - x̂·mean(g·x̂))`, and adds `d y·x̂` to `dscale`.
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
        let mean_gx = sum([dy, scale, x], |[dy, scale, x]| dy * scale * (x * rstd)) / T::of(width as f64);
        for i in 0..width {
            let unit = x[i] * rstd;
            dscale[i] = dy[i].mul_add(unit, dscale[i]);
            dx[i] = rstd * (dy[i] * scale[i] - unit * mean_gx);
        }
    }
}

/// The statistics that a normalisation kept, of any float type.
struct Statistics<'a> {
    dtype: DType,
    bytes: &'a [u8],
}

impl<'a> Statistics<'a> {
    fn of(call: &Call<'a>, operand: usize) -> Self {
        Self { dtype: call.operand_view(operand).dtype, bytes: call.dense(operand) }
    }

    fn row<T: Real>(&self, row: usize) -> T {
        number(self.dtype, self.bytes, row)
    }
}

/// The operands and the result of a gradient, by rows.
struct Rows<'a, S> {
    x: &'a [S],
    dy: &'a [S],
    dx: &'a mut [S],
    width: usize,
}

/// The number of blocks of rows with separate sums. It is fixed, so that sums do not depend on threads.
const BLOCKS: usize = 32;

impl<S: Float> Rows<'_, S> {
    /// Calls `row` for every row with its index, `x`, `d y`, `d x` and a buffer of `sums` sums. Returns the sums over all rows.
    fn for_each(
        self,
        sums: usize,
        row: impl Fn(usize, &[S::Real], &[S::Real], &mut [S::Real], &mut [S::Real]) + Sync,
    ) -> Vec<S::Real> {
        let Self { x, dy, dx, width } = self;
        let count = dx.len() / width;
        let rows = count.div_ceil(BLOCKS).max(8);
        let mut partial = vec![<S::Real>::ZERO; count.div_ceil(rows) * sums];
        let blocks = dx.par_chunks_mut(rows * width).zip(partial.par_chunks_mut(sums)).enumerate();
        blocks.with_min_len(least_rows(width).div_ceil(rows)).for_each(|(block, (dx, sums))| {
            let mut wide = [Scratch::new(), Scratch::new(), Scratch::new()];
            let [wide_x, wide_dy, wide_dx] = &mut wide;
            for (i, dx) in dx.chunks_exact_mut(width).enumerate() {
                let index = block * rows + i;
                let here = index * width..(index + 1) * width;
                let (x, dy) = (wide_x.read(&x[here.clone()]), wide_dy.read(&dy[here]));
                wide_dx.write(dx, |dx| row(index, x, dy, dx, sums));
            }
        });
        let mut total = vec![<S::Real>::ZERO; sums];
        for partial in partial.chunks_exact(sums) {
            total.iter_mut().zip(partial).for_each(|(total, &partial)| *total = *total + partial);
        }
        total
    }
}
