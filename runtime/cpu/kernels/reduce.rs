//! Reductions and running sums.
//!
//! The elements are divided into blocks of fixed size. Each block is reduced in order, and the results of the blocks are combined in order,
//! so the result depends on the sizes alone. Floats are summed in f64 and rounded once. So the mean of equal numbers is the number itself,
//! if f64 holds their sum exactly.

use super::PARALLEL;
use crate::call::{Call, Source};
use crate::element::{Element, with_float, with_integer};
use crate::math::Real;
use crate::simd::vectorized;
use crate::walk::Walk;
use half::{bf16, f16};
use ir::ops::reduce::{CumulativeSum, Reduce, ReduceKind};
use program::layout::{Layout, Sizes};
use rayon::prelude::*;

/// A type of elements, and the type in which they combine.
trait Reduced: Element {
    type Sum: Combine;
    fn wide(self) -> Self::Sum;
    fn rounded(sum: Self::Sum) -> Self;
}

macro_rules! reduced {
    ($($ty:ty: $sum:ty, $wide:expr, $rounded:expr;)*) => { $(
        impl Reduced for $ty {
            type Sum = $sum;

            #[inline(always)]
            fn wide(self) -> $sum {
                $wide(self)
            }
            #[inline(always)]
            fn rounded(sum: $sum) -> Self {
                $rounded(sum)
            }
        }
    )* };
}
reduced! {
    f32: f64, Element::to_f64, Element::from_f64;
    f16: f64, Element::to_f64, Element::from_f64;
    bf16: f64, Element::to_f64, Element::from_f64;
}

/// Implements `Reduced` for types that combine in their own type.
macro_rules! combined {
    ($($ty:ty),*) => {
        reduced! { $($ty: $ty, std::convert::identity, std::convert::identity;)* }
    };
}
combined!(f64, i64, i32, i16, i8, u64, u32, u16, u8);

/// The operations with which numbers of a type combine.
trait Combine: Reduced<Sum = Self> {
    fn start(kind: ReduceKind) -> Self;
    fn combine(kind: ReduceKind, a: Self, b: Self) -> Self;
    fn over(self, count: usize) -> Self;
}

impl Combine for f64 {
    fn start(kind: ReduceKind) -> Self {
        match kind {
            ReduceKind::Sum | ReduceKind::Mean => 0.0,
            ReduceKind::Max => f64::NEG_INFINITY,
            ReduceKind::Min => f64::INFINITY,
        }
    }
    #[inline(always)]
    fn combine(kind: ReduceKind, a: Self, b: Self) -> Self {
        match kind {
            ReduceKind::Sum | ReduceKind::Mean => a + b,
            ReduceKind::Max => a.larger(b),
            ReduceKind::Min => a.smaller(b),
        }
    }
    fn over(self, count: usize) -> Self {
        self / count as f64
    }
}

macro_rules! combine_integers {
    ($($ty:ty),*) => { $(
        impl Combine for $ty {
            fn start(kind: ReduceKind) -> Self {
                match kind {
                    ReduceKind::Sum | ReduceKind::Mean => 0,
                    ReduceKind::Max => <$ty>::MIN,
                    ReduceKind::Min => <$ty>::MAX,
                }
            }
            #[inline(always)]
            fn combine(kind: ReduceKind, a: Self, b: Self) -> Self {
                match kind {
                    ReduceKind::Sum | ReduceKind::Mean => a.wrapping_add(b),
                    ReduceKind::Max => a.max(b),
                    ReduceKind::Min => a.min(b),
                }
            }
            fn over(self, _: usize) -> Self {
                self // integers have no mean
            }
        }
    )* };
}
combine_integers!(i64, i32, i16, i8, u64, u32, u16, u8);

pub(super) fn run(reduce: &Reduce, mut call: Call) {
    let add = call.add;
    let dtype = call.dtype();
    if dtype.is_float() {
        with_float!(dtype, T => {
            let source = call.source::<T>(0);
            reduce_tensor(reduce, source, call.take_result::<T>(), add);
        });
    } else {
        with_integer!(dtype, T => {
            let source = call.source::<T>(0);
            reduce_tensor(reduce, source, call.take_result::<T>(), add);
        });
    }
}

/// The number of elements of a result that one task computes.
const WIDTH: usize = 256;
/// The number of elements that are reduced one after the other.
const DEPTH: usize = 256;

/// The operand as a matrix: dims that are kept, times dims that are reduced.
struct Reduction<'a, T> {
    kind: ReduceKind,
    elements: &'a [T],
    kept: Walk,
    reduced: Walk,
    /// The number of elements that are reduced into one.
    count: usize,
}

fn reduce_tensor<T: Reduced>(reduce: &Reduce, source: Source<T>, result: &mut [T], add: bool) {
    let Source { elements, layout } = source;
    let (gone, stays): (Sizes, Sizes) =
        (0..layout.sizes.len()).partition(|&dim| reduce.dims.contains(&(dim as u32)));
    let part = |dims: &Sizes, offset: isize| Layout { offset, ..layout.transpose(dims) };
    let count = gone.iter().map(|&dim| layout.sizes[dim]).product();
    let kept = Walk::row_major(&part(&stays, layout.offset));
    let reduced = Walk::row_major(&part(&gone, 0));
    let reduction = Reduction { kind: reduce.kind, elements, kept, reduced, count };
    let depths = count.div_ceil(DEPTH).max(1);
    let (start, combine) = (T::Sum::start(reduce.kind), T::Sum::combine);
    let finish = |out: &mut T, total: T::Sum| {
        let total = T::rounded(if reduce.kind == ReduceKind::Mean { total.over(count) } else { total });
        *out = if add { T::rounded(combine(ReduceKind::Sum, out.wide(), total.wide())) } else { total };
    };
    // Few results from many elements: all blocks in parallel, with partial results. Otherwise each task reduces block after block.
    let width = result.len();
    if width < 4 * WIDTH && depths > 1 && width * count >= PARALLEL {
        let mut partial = vec![start; width * depths];
        let blocks = partial.par_chunks_mut(width).enumerate();
        blocks.for_each(|(depth, partial)| reduction.block(0, depth, partial));
        for (i, out) in result.iter_mut().enumerate() {
            let column = partial.iter().skip(i).step_by(width);
            finish(out, column.fold(start, |a, &b| combine(reduce.kind, a, b)));
        }
        return;
    }
    let task = |index: usize, out: &mut [T]| {
        let (mut total, mut partial) = ([start; WIDTH], [start; WIDTH]);
        for depth in 0..depths {
            partial.fill(start);
            reduction.block(index * WIDTH, depth, &mut partial[..out.len()]);
            let pairs = total.iter_mut().zip(&partial);
            pairs.for_each(|(total, &partial)| *total = combine(reduce.kind, *total, partial));
        }
        out.iter_mut().zip(total).for_each(|(out, total)| finish(out, total));
    };
    if width * count < PARALLEL {
        result.chunks_mut(WIDTH).enumerate().for_each(|(index, out)| task(index, out));
    } else {
        result.par_chunks_mut(WIDTH).enumerate().for_each(|(index, out)| task(index, out));
    }
}

impl<T: Reduced> Reduction<'_, T> {
    /// Combines block `depth` of the reduced elements into the kept elements from `start` on.
    fn block(&self, start: usize, depth: usize, out: &mut [T::Sum]) {
        let first = depth * DEPTH;
        let length = DEPTH.min(self.count - first.min(self.count));
        let elements = self.elements;
        self.kept.for_runs(start, out.len(), |at, position, stride, count| {
            let out = &mut out[at..at + count];
            self.reduced.for_runs(first, length, |_, shift, step, length| {
                let position = position + shift;
                if step == 1 && (stride != 1 || count == 1) {
                    for (i, out) in out.iter_mut().enumerate() {
                        let from = (position as isize + i as isize * stride) as usize;
                        let stretch = along(self.kind, &elements[from..from + length]);
                        *out = T::Sum::combine(self.kind, *out, stretch);
                    }
                    return;
                }
                for j in 0..length {
                    let row = position as isize + j as isize * step;
                    match stride {
                        1 => across(self.kind, out, &elements[row as usize..row as usize + count]),
                        _ => {
                            for (i, out) in out.iter_mut().enumerate() {
                                let x = elements[(row + i as isize * stride) as usize];
                                *out = T::Sum::combine(self.kind, *out, x.wide());
                            }
                        }
                    }
                }
            });
        });
    }
}

vectorized! {
    /// Combines contiguous elements into one, in 16 lanes.
    fn along<'a; T: Reduced>(kind: ReduceKind, x: &'a [T]) -> T::Sum {
        let mut lanes = [T::Sum::start(kind); 16];
        let chunks = x.chunks_exact(16);
        let rest = chunks.remainder();
        for chunk in chunks {
            combine_each(kind, &mut lanes, chunk);
        }
        let start = lanes.into_iter().reduce(|a, b| T::Sum::combine(kind, a, b)).unwrap_or(T::Sum::start(kind));
        rest.iter().fold(start, |a, &b| T::Sum::combine(kind, a, b.wide()))
    }

    /// Combines each `out[i]` with `x[i]`.
    fn across<'a; T: Reduced>(kind: ReduceKind, out: &'a mut [T::Sum], x: &'a [T]) {
        combine_each(kind, out, x);
    }
}

#[inline(always)]
fn combine_each<T: Reduced>(kind: ReduceKind, out: &mut [T::Sum], x: &[T]) {
    macro_rules! each {
        ($kind:ident) => {
            out.iter_mut()
                .zip(x)
                .for_each(|(out, &x)| *out = T::Sum::combine(ReduceKind::$kind, *out, x.wide()))
        };
    }
    match kind {
        ReduceKind::Sum | ReduceKind::Mean => each!(Sum),
        ReduceKind::Max => each!(Max),
        ReduceKind::Min => each!(Min),
    }
}

pub(super) fn cumulative_sum(op: &CumulativeSum, mut call: Call) {
    let sizes = &call.result_view(0).layout.sizes;
    let size = sizes[op.dim as usize];
    let inner: usize = sizes[op.dim as usize + 1..].iter().product();
    let dtype = call.dtype();
    if dtype.is_float() {
        with_float!(dtype, T => run_sum(op, call.dense::<T>(0), call.take_result(), size, inner));
    } else {
        with_integer!(dtype, T => run_sum(op, call.dense::<T>(0), call.take_result(), size, inner));
    }
}

fn run_sum<T: Reduced>(op: &CumulativeSum, x: &[T], out: &mut [T], size: usize, inner: usize) {
    for (x, out) in x.chunks_exact(size * inner).zip(out.chunks_exact_mut(size * inner)) {
        for column in 0..inner {
            let mut sum = T::Sum::start(ReduceKind::Sum);
            for step in 0..size {
                let at = if op.reverse { size - 1 - step } else { step } * inner + column;
                let after = T::Sum::combine(ReduceKind::Sum, sum, x[at].wide());
                out[at] = T::rounded(if op.exclusive { sum } else { after });
                sum = after;
            }
        }
    }
}
