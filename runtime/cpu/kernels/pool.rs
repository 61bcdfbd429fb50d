//! Pooling and its gradients, plane by plane. A plane has the dims over which windows slide.
//!
//! Kernels walk over whole rows of a plane. A row of the result covers some rows of the operand, and in each of these the same columns.

use super::PARALLEL;
use crate::call::Call;
use crate::element::with_float;
use crate::math::{Float, Real};
use crate::storage::{Scratch, narrow};
use ir::ops::pool::{
    AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad, MaxPoolGradAt, MaxPoolIndices, MaxPoolOffsets, Window,
    Windows, covered, element_at, offset_of,
};
use rayon::prelude::*;

/// The elements that the windows of a plane cover.
struct Plane {
    /// The rows that each row of pooled elements covers.
    rows: Vec<Vec<usize>>,
    /// For each pooled element of a row, the first column that it covers, and the number of columns.
    columns: Vec<(usize, usize)>,
    /// The distance between these columns.
    dilation: usize,
    /// The number of elements of a row of `x`.
    width: usize,
    /// The number of elements of a plane of `x`.
    len: usize,
    /// The number of elements of a plane of the pooled tensor.
    pooled: usize,
    /// The number of elements of a whole window, including padding.
    window: f64,
}

impl Plane {
    fn new(windows: &Windows, x: &[usize], pooled: &[usize]) -> Self {
        let [x, pooled] = [x, pooled].map(|sizes| &sizes[sizes.len() - windows.len()..]);
        let last = windows.len() - 1;
        Self {
            rows: covered(&windows[..last], &x[..last], &pooled[..last]),
            columns: (0..pooled[last]).map(|at| windows[last].covers(at, x[last])).collect(),
            dilation: usize::try_from(windows[last].dilation).unwrap_or(usize::MAX),
            width: x[last],
            len: x.iter().product(),
            pooled: pooled.iter().product(),
            window: windows.iter().map(|window| window.size as f64).product(),
        }
    }

    /// Returns the smallest number of planes of one task.
    fn least(&self) -> usize {
        (PARALLEL / 4 / self.len.max(self.pooled)).max(1)
    }

    /// Calls `element` for every element that a row of pooled elements covers, row by row, with the column of the pooled element and the
    /// place of the covered element in the plane.
    #[inline(always)]
    fn for_covered(&self, rows: &[usize], mut element: impl FnMut(usize, usize)) {
        for row in rows {
            for (column, &(first, count)) in self.columns.iter().enumerate() {
                let start = row * self.width + first;
                (0..count).for_each(|k| element(column, start + k * self.dilation));
            }
        }
    }

    /// Returns the divisor of the sum over a pooled element's window.
    fn divisor<T: Real>(&self, count_padding: bool, rows: &[usize], column: usize) -> T {
        let covered = || (rows.len() * self.columns[column].1).max(1) as f64;
        T::of(if count_padding { self.window } else { covered() })
    }
}

pub(super) fn max_pool(pool: &MaxPool, mut call: Call) {
    let plane = Plane::new(&pool.windows, sizes(&call, 0), &call.result_view(0).layout.sizes);
    with_float!(call.dtype(), S => {
        pooled(&plane, call.dense::<S>(0), call.take_result(), |x, rows, y| largest(&plane, x, rows, y));
    });
}

fn largest<S: Float>(plane: &Plane, x: &[S], rows: &[usize], largest: &mut [S::Real]) {
    largest.fill(S::Real::NEG_INFINITY);
    plane.for_covered(rows, |column, at| largest[column] = largest[column].larger(x[at].widen()));
}

pub(super) fn avg_pool(pool: &AvgPool, mut call: Call) {
    let plane = Plane::new(&pool.windows, sizes(&call, 0), &call.result_view(0).layout.sizes);
    let count_padding = pool.count_padding;
    with_float!(call.dtype(), S => {
        let (x, y) = (call.dense::<S>(0), call.take_result());
        pooled(&plane, x, y, |x, rows, y| means(&plane, count_padding, x, rows, y));
    });
}

fn means<S: Float>(plane: &Plane, count_padding: bool, x: &[S], rows: &[usize], means: &mut [S::Real]) {
    means.fill(S::Real::ZERO);
    plane.for_covered(rows, |column, at| means[column] = means[column] + x[at].widen());
    let divide = |(column, sum): (usize, &mut S::Real)| {
        *sum = *sum / plane.divisor::<S::Real>(count_padding, rows, column);
    };
    means.iter_mut().enumerate().for_each(divide);
}

/// Calls `row` for every row of pooled elements with the plane of `x`, the rows that it covers, and the row to fill.
fn pooled<S: Float>(
    plane: &Plane,
    x: &[S],
    y: &mut [S],
    row: impl Fn(&[S], &[usize], &mut [S::Real]) + Sync,
) {
    let planes = x.par_chunks_exact(plane.len).zip(y.par_chunks_exact_mut(plane.pooled));
    planes.with_min_len(plane.least()).for_each_init(Vec::new, |made, (x, y)| {
        made.resize(plane.columns.len(), S::Real::ZERO);
        for (rows, y) in plane.rows.iter().zip(y.chunks_exact_mut(plane.columns.len())) {
            row(x, rows, made);
            narrow(made, y);
        }
    });
}

pub(super) fn max_pool_grad(pool: &MaxPoolGrad, mut call: Call) {
    let plane = Plane::new(&pool.windows, sizes(&call, 0), sizes(&call, 1));
    with_float!(call.dtype(), S => {
        let (x, dy) = (call.dense::<S>(0), call.dense::<S>(1));
        let x = x.par_chunks_exact(plane.len);
        spread(&plane, x, dy, call.take_result(), |x, rows, dy, dx| route(&plane, x, rows, dy, dx));
    });
}

/// Adds the gradient of each pooled element of a row to the largest covered element, or to the first of several.
fn route<S: Float>(plane: &Plane, x: &[S], rows: &[usize], dy: &[S], dx: &mut [S::Real]) {
    for (found, dy) in first_largest(plane, x, rows).into_iter().zip(dy) {
        if let Some((at, _)) = found {
            dx[at] = dx[at] + dy.widen();
        }
    }
}

/// Returns for each pooled element of a row the largest covered element (the first of several) and its place in the plane. A NaN is larger
/// than any number.
fn first_largest<S: Float>(plane: &Plane, x: &[S], rows: &[usize]) -> Vec<Option<(usize, S::Real)>> {
    let mut largest: Vec<Option<(usize, S::Real)>> = vec![None; plane.columns.len()];
    plane.for_covered(rows, |column, at| {
        let x = x[at].widen();
        let is_larger = |(_, best): (usize, S::Real)| x > best || (x.is_nan() && !best.is_nan());
        if largest[column].is_none_or(is_larger) {
            largest[column] = Some((at, x));
        }
    });
    largest
}

pub(super) fn max_pool_indices(pool: &MaxPoolIndices, mut call: Call) {
    let plane = Plane::new(&pool.windows, sizes(&call, 0), &call.result_view(0).layout.sizes);
    with_float!(call.operand_view(0).dtype, S => {
        let (x, indices) = (call.dense::<S>(0), call.take_result::<i64>());
        write_places(&plane, x, indices, |_, found| found.map_or(-1, |at| at as i64));
    });
}

pub(super) fn max_pool_offsets(pool: &MaxPoolOffsets, mut call: Call) {
    let plane = Plane::new(&pool.windows, sizes(&call, 0), &call.result_view(0).layout.sizes);
    let places = Places::new(&pool.windows, sizes(&call, 0), &call.result_view(0).layout.sizes);
    with_float!(call.operand_view(0).dtype, S => {
        let (x, offsets) = (call.dense::<S>(0), call.take_result::<u8>());
        write_places(&plane, x, offsets, |position, found| {
            found.map_or(0, |at| places.offset(position, at) as u8)
        });
    });
}

/// Writes the place of the largest element of each window, in the form that `place` returns.
fn write_places<S: Float, P: Send>(
    plane: &Plane,
    x: &[S],
    out: &mut [P],
    place: impl Fn(usize, Option<usize>) -> P + Sync,
) {
    let planes = x.par_chunks_exact(plane.len).zip(out.par_chunks_exact_mut(plane.pooled));
    planes.with_min_len(plane.least()).for_each(|(x, out)| {
        let found = plane.rows.iter().flat_map(|rows| first_largest(plane, x, rows));
        for (position, (found, out)) in found.zip(out).enumerate() {
            *out = place(position, found.map(|(at, _)| at));
        }
    });
}

pub(super) fn max_pool_grad_at(pool: &MaxPoolGradAt, mut call: Call) {
    let plane = Plane::new(&pool.windows, &call.result_view(0).layout.sizes, sizes(&call, 1));
    let places = Places::new(&pool.windows, &call.result_view(0).layout.sizes, sizes(&call, 1));
    with_float!(call.operand_view(1).dtype, S => {
        let (offsets, dy) = (call.dense::<u8>(0), call.dense::<S>(1));
        at_offsets(&plane, &places, offsets, dy, call.take_result::<S>());
    });
}

/// Adds the gradient of each pooled element to the element at its offset in the window.
fn at_offsets<S: Float>(plane: &Plane, places: &Places, offsets: &[u8], dy: &[S], dx: &mut [S]) {
    let pooled = offsets.par_chunks_exact(plane.pooled).zip(dy.par_chunks_exact(plane.pooled));
    let planes = dx.par_chunks_exact_mut(plane.len).zip(pooled).with_min_len(plane.least());
    planes.for_each_init(Scratch::new, |scratch, (dx, (offsets, dy))| {
        scratch.write(dx, |dx| {
            dx.fill(S::Real::ZERO);
            for (position, (&offset, dy)) in offsets.iter().zip(dy).enumerate() {
                if let Some(at) = places.element(position, usize::from(offset)) {
                    dx[at] = dx[at] + dy.widen();
                }
            }
        });
    });
}

/// The windows, with the sizes of a plane and of its pooled plane.
struct Places<'a> {
    windows: &'a [Window],
    plane: &'a [usize],
    positions: &'a [usize],
}

impl<'a> Places<'a> {
    fn new(windows: &'a Windows, x: &'a [usize], pooled: &'a [usize]) -> Self {
        let [plane, positions] = [x, pooled].map(|sizes| &sizes[sizes.len() - windows.len()..]);
        Self { windows, plane, positions }
    }

    fn offset(&self, position: usize, element: usize) -> u64 {
        offset_of(self.windows, self.plane, self.positions, position, element)
    }

    fn element(&self, position: usize, offset: usize) -> Option<usize> {
        element_at(self.windows, self.plane, self.positions, position, offset)
    }
}

pub(super) fn avg_pool_grad(pool: &AvgPoolGrad, mut call: Call) {
    let plane = Plane::new(&pool.windows, &call.result_view(0).layout.sizes, sizes(&call, 0));
    let count_padding = pool.count_padding;
    with_float!(call.dtype(), S => {
        let (dy, dx) = (call.dense::<S>(0), call.take_result::<S>());
        let no_operand = rayon::iter::repeat_n((), dx.len() / plane.len);
        spread(&plane, no_operand, dy, dx, |(), rows, dy, dx| share(&plane, count_padding, rows, dy, dx));
    });
}

/// Adds to each covered element its share of the gradient of each pooled element of a row.
fn share<S: Float>(plane: &Plane, count_padding: bool, rows: &[usize], dy: &[S], dx: &mut [S::Real]) {
    let share =
        |(column, dy): (usize, &S)| dy.widen() / plane.divisor::<S::Real>(count_padding, rows, column);
    let shares: Vec<S::Real> = dy.iter().enumerate().map(share).collect();
    plane.for_covered(rows, |column, at| dx[at] = dx[at] + shares[column]);
}

/// Calls `row` for every row of pooled elements with the item of `x` for its plane, the rows that it covers, its gradient, and the plane of
/// `d x` to add to.
fn spread<S: Float, X: Copy + Send>(
    plane: &Plane,
    x: impl IndexedParallelIterator<Item = X>,
    dy: &[S],
    dx: &mut [S],
    row: impl Fn(X, &[usize], &[S], &mut [S::Real]) + Sync,
) {
    let planes = dy.par_chunks_exact(plane.pooled).zip(dx.par_chunks_exact_mut(plane.len));
    let planes = x.zip(planes).with_min_len(plane.least());
    planes.for_each_init(Scratch::new, |scratch, (x, (dy, dx))| {
        scratch.write(dx, |dx| {
            dx.fill(S::Real::ZERO);
            let dy = dy.chunks_exact(plane.columns.len());
            plane.rows.iter().zip(dy).for_each(|(rows, dy)| row(x, rows, dy, dx));
        });
    });
}

fn sizes<'a>(call: &Call<'a>, operand: usize) -> &'a [usize] {
    &call.operand_view(operand).layout.sizes
}
