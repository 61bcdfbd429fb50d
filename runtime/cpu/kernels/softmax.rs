//! Softmax, its logarithm and its gradient, row by row.

use super::PARALLEL;
use crate::call::Call;
use crate::element::with_float;
use crate::math::{Float, Real};
use crate::simd::{max, sum, vectorized};
use crate::storage::Scratch;
use program::layout::Layout;
use rayon::prelude::*;

pub(super) fn softmax(dim: u32, mut call: Call) {
    with_float!(call.dtype(), T => {
        let x = call.dense_or_in_place::<T>(0);
        let layout = &call.result_view(0).layout;
        for_rows(layout, dim, [x], call.take_result(), |_, row| softmax_row(row));
    });
}

pub(super) fn log_softmax(dim: u32, mut call: Call) {
    with_float!(call.dtype(), T => {
        let x = call.dense_or_in_place::<T>(0);
        let layout = &call.result_view(0).layout;
        for_rows(layout, dim, [x], call.take_result(), |_, row| {
            let total = logsumexp(row);
            row.iter_mut().for_each(|x| *x -= total);
        });
    });
}

/// Computes `d x = y·(d y - Σ y·d y)`. The result may lie in the place of `y` or of `d y`.
pub(super) fn softmax_grad(dim: u32, mut call: Call) {
    with_float!(call.dtype(), T => {
        let [y, dy] = [0, 1].map(|i| call.dense_or_in_place::<T>(i));
        let layout = &call.result_view(0).layout;
        match y {
            Some(_) => for_rows(layout, dim, [dy, y], call.take_result::<T>(), softmax_grad_row),
            None => for_rows(layout, dim, [y, dy], call.take_result::<T>(), |dy, row| softmax_grad_row_of_y(row, dy)),
        }
    });
}

vectorized! {
    /// Softmax in place.
    fn softmax_row<'a; T: Real>(row: &'a mut [T]) {
        let largest = max(row);
        row.iter_mut().for_each(|x| *x = (*x - largest).exp());
        let total = sum([&*row], |[x]| x);
        let factor = T::ONE / total;
        row.iter_mut().for_each(|x| *x = *x * factor);
    }
}

/// Returns `log Σ eˣ`; `-∞` if all elements are `-∞`.
fn logsumexp<T: Real>(row: &[T]) -> T {
    let (largest, rest) = logsumexp_parts(row);
    largest + rest
}

vectorized! {
    /// Returns the largest x, and the difference of `log Σ eˣ` to it. If numbers are large, their sum loses the digits of the difference.
    pub(super) fn logsumexp_parts<'a; T: Real>(row: &'a [T]) -> (T, T) {
        let largest = max(row);
        if largest == T::NEG_INFINITY {
            return (largest, T::ZERO);
        }
        (largest, sum([row], |[x]| (x - largest).exp()).ln())
    }

    /// Computes the gradient in place of `d y`. A row of zeros stays zero, even if `y` has a NaN.
    fn softmax_grad_row<'a, 'b; T: Real>(y: &'a [T], dy: &'b mut [T]) {
        let dot = sum([y, dy], |[y, dy]| y * dy);
        if dot.is_nan() && is_zero(dy) {
            return;
        }
        dy.iter_mut().zip(y).for_each(|(dy, &y)| *dy = y * (*dy - dot));
    }

    /// Computes the gradient in place of `y`.
    fn softmax_grad_row_of_y<'a; T: Real>(y: &'a mut [T], dy: &'a [T]) {
        let dot = sum([y, dy], |[y, dy]| y * dy);
        if dot.is_nan() && is_zero(dy) {
            return y.fill(T::ZERO);
        }
        y.iter_mut().zip(dy).for_each(|(y, &dy)| *y = *y * (dy - dot));
    }
}

fn is_zero<T: Real>(row: &[T]) -> bool {
    row.iter().all(|x| *x == T::ZERO)
}

/// Calls `row` for every row along a dim, with the row of the second operand (empty if there is none) and the row of the result, which
/// holds the first operand. The first operand is copied there, unless the result lies in its place. Rows have the type in which the kernel
/// computes.
fn for_rows<S: Float, const N: usize>(
    layout: &Layout,
    dim: u32,
    operands: [Option<&[S]>; N],
    result: &mut [S],
    row: impl Fn(&[S::Real], &mut [S::Real]) + Sync,
) {
    let size = layout.sizes[dim as usize];
    let inner: usize = layout.sizes[dim as usize + 1..].iter().product();
    let block = size * inner;
    let task = |[own_scratch, other_scratch]: &mut [Scratch<S::Real>; 2], (index, out): (usize, &mut [S])| {
        let own = index * block..(index + 1) * block;
        if let Some(x) = operands.first().copied().flatten() {
            out.copy_from_slice(&x[own.clone()]);
        }
        let other = operands.get(1).copied().flatten().map_or(&[][..], |x| &x[own]);
        if inner == 1 {
            let other = other_scratch.read(other);
            return own_scratch.update(out, |out| row(other, out));
        }
        // One column at a time, through contiguous scratch.
        let mut column = vec![<S::Real>::ZERO; size];
        let mut other_column = vec![<S::Real>::ZERO; if other.is_empty() { 0 } else { size }];
        for start in 0..inner {
            (0..size).for_each(|i| column[i] = out[i * inner + start].widen());
            other_column.iter_mut().enumerate().for_each(|(i, x)| *x = other[i * inner + start].widen());
            row(&other_column, &mut column);
            (0..size).for_each(|i| out[i * inner + start] = S::narrow(column[i]));
        }
    };
    let min_len = (PARALLEL / 8 / block.max(1)).max(1);
    let blocks = result.par_chunks_exact_mut(block).enumerate().with_min_len(min_len);
    blocks.for_each_init(|| [Scratch::new(), Scratch::new()], task);
}
