//! Writing by index: rows of updates are combined into their rows of the result, in order, and rounded once. No two tasks write the same
//! row, so the result does not depend on the number of threads.

use super::indexing::{element_places, nd_rows};
use crate::call::Call;
use crate::element::{Element, with_float, with_integer, with_width};
use crate::math::{Float, Real};
use crate::storage::Scratch;
use ir::ops::elementwise::Binary;
use ir::ops::scatter::{GatherElementsGrad, GatherNdGrad, ScatterElements, ScatterKind, ScatterNd};
use rayon::prelude::*;

/// The row of the result for each row of the updates.
pub(super) struct Places {
    /// Pairs (row of the result, row of the updates), ascending.
    pairs: Vec<(usize, usize)>,
    /// The number of elements of a row.
    width: usize,
}

impl Places {
    /// Collects updates with these rows of the result; `None` drops an update.
    pub(super) fn new(rows: impl IntoIterator<Item = Option<usize>>, width: usize) -> Self {
        let rows = rows.into_iter().enumerate();
        let mut pairs: Vec<_> = rows.filter_map(|(from, to)| Some((to?, from))).collect();
        pairs.sort_unstable();
        Self { pairs, width }
    }

    /// Divides the rows of the result among tasks. Each task calls `start` with the index of its first element and its rows, and then
    /// `change` with every row that has updates, the pairs of these updates, and the value that `start` returned.
    fn for_rows<T: Send, S>(
        &self,
        result: &mut [T],
        start: impl Fn(usize, &mut [T]) -> S + Sync,
        change: impl Fn(&mut S, &mut [T], &[(usize, usize)]) + Sync,
    ) {
        let rows = (result.len() / self.width).div_ceil(2 * rayon::current_num_threads()).max(1);
        result.par_chunks_mut(rows * self.width).enumerate().for_each(|(task, result)| {
            let first = task * rows;
            let mut started = start(first * self.width, result);
            let before = |end: usize| self.pairs.partition_point(|&(row, _)| row < end);
            let own = &self.pairs[before(first)..before(first + result.len() / self.width)];
            for of_row in own.chunk_by(|one, other| one.0 == other.0) {
                let row = &mut result[(of_row[0].0 - first) * self.width..][..self.width];
                change(&mut started, row, of_row);
            }
        });
    }

    /// Adds the updates to zeros. With `add`, the sum of the updates is rounded and then added to the result, as two instructions would do
    /// it.
    pub(super) fn sum<T: Float>(&self, updates: &[T], result: &mut [T], add: bool) {
        let zero = T::from_i64(0);
        let start = |_: usize, result: &mut [T]| {
            if !add {
                result.fill(zero);
            }
            (Scratch::new(), vec![zero; if add { self.width } else { 0 }])
        };
        self.for_rows(result, start, |(wide, sum), row, pairs| {
            if !add {
                return self.fold(wide, row, pairs, updates, |x, update| x + update);
            }
            sum.fill(zero);
            self.fold(wide, sum, pairs, updates, |x, update| x + update);
            row.iter_mut().zip(&*sum).for_each(|(x, sum)| *x = T::narrow(x.widen() + sum.widen()));
        });
    }

    /// Combines a row with its updates, one after the other.
    fn fold<T: Float>(
        &self,
        wide: &mut Scratch<T::Real>,
        row: &mut [T],
        pairs: &[(usize, usize)],
        updates: &[T],
        function: impl Fn(T::Real, T::Real) -> T::Real,
    ) {
        wide.update(row, |row| {
            for &(_, from) in pairs {
                let update = &updates[from * self.width..];
                row.iter_mut().zip(update).for_each(|(x, update)| *x = function(*x, update.widen()));
            }
        });
    }

    fn run(&self, kind: ScatterKind, mut call: Call) {
        let dtype = call.dtype();
        match kind.function() {
            None => with_width!(dtype.bytes(), T => {
                let (data, updates) = (call.dense::<T>(0), call.dense::<T>(2));
                self.set(data, updates, call.take_result());
            }),
            Some(function) if dtype.is_float() => with_float!(dtype, T => {
                let (data, updates) = (call.dense::<T>(0), call.dense::<T>(2));
                self.change_floats(function, data, updates, call.take_result());
            }),
            Some(function) => with_integer!(dtype, T => {
                let (data, updates) = (call.dense::<T>(0), call.dense::<T>(2));
                self.change_integers(function, data, updates, call.take_result());
            }),
        }
    }

    fn set<T: Element>(&self, data: &[T], updates: &[T], result: &mut [T]) {
        let start = |at: usize, result: &mut [T]| result.copy_from_slice(&data[at..][..result.len()]);
        self.for_rows(result, start, |(), row, pairs| {
            let last = pairs.last().map_or(0, |&(_, from)| from);
            row.copy_from_slice(&updates[last * self.width..][..self.width]);
        });
    }

    fn change_floats<T: Float>(&self, function: Binary, data: &[T], updates: &[T], result: &mut [T]) {
        let function: fn(T::Real, T::Real) -> T::Real = match function {
            Binary::Add => |x, update| x + update,
            Binary::Mul => |x, update| x * update,
            Binary::Max => |x, update| x.larger(update),
            Binary::Min => |x, update| x.smaller(update),
            other => unreachable!("no scatter does {other:?}"),
        };
        let start = |at: usize, result: &mut [T]| {
            result.copy_from_slice(&data[at..][..result.len()]);
            Scratch::new()
        };
        self.for_rows(result, start, |wide, row, pairs| self.fold(wide, row, pairs, updates, function));
    }

    fn change_integers<T: Element>(&self, function: Binary, data: &[T], updates: &[T], result: &mut [T]) {
        let start = |at: usize, result: &mut [T]| result.copy_from_slice(&data[at..][..result.len()]);
        self.for_rows(result, start, |(), row, pairs| {
            for &(_, from) in pairs {
                let update = &updates[from * self.width..];
                row.iter_mut().zip(update).for_each(|(x, update)| {
                    *x = T::from_i64(function.integer(x.to_i64(), update.to_i64()));
                });
            }
        });
    }
}

pub(super) fn scatter_elements(op: &ScatterElements, call: Call) {
    let dim = op.dim as usize;
    let sizes = [0, 1].map(|index| &call.operand_view(index).layout.sizes[..]);
    let indices = call.integers(1);
    let places = element_places(sizes, &indices, dim, call.operand_span(0, dim));
    Places::new(places, 1).run(op.kind, call);
}

pub(super) fn scatter_nd(op: &ScatterNd, call: Call) {
    let sizes = [0, 1].map(|index| &call.operand_view(index).layout.sizes[..]);
    let (rows, width) = nd_rows(sizes, &call.integers(1), op.batch_dims as usize);
    Places::new(rows, width).run(op.kind, call);
}

pub(super) fn gather_elements_grad(op: &GatherElementsGrad, mut call: Call) {
    let dim = op.dim as usize;
    let sizes = [&call.result_view(0).layout.sizes[..], &call.operand_view(0).layout.sizes];
    let indices = call.integers(0);
    let places = Places::new(element_places(sizes, &indices, dim, call.result_span(0, dim)), 1);
    let add = call.add;
    with_float!(call.dtype(), T => places.sum(call.dense::<T>(1), call.take_result(), add));
}

pub(super) fn gather_nd_grad(op: &GatherNdGrad, mut call: Call) {
    let sizes = [&call.result_view(0).layout.sizes[..], &call.operand_view(0).layout.sizes];
    let (rows, width) = nd_rows(sizes, &call.integers(0), op.batch_dims as usize);
    let (places, add) = (Places::new(rows, width), call.add);
    with_float!(call.dtype(), T => places.sum(call.dense::<T>(1), call.take_result(), add));
}
