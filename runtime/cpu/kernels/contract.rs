//! Contractions, as multiplications of strided matrices. f16 and bf16 are converted to f32 and multiplied in tiles (`tiles`). A target with
//! instructions for bf16 multiplies it by them (`panels`).

mod panels;
mod tiles;

use crate::call::{Call, rebased};
use crate::element::{Element, with_half, with_real};
use crate::gemm::{Matrix, Multiply, add_rounded, gemm};
use crate::math::{Float, Real};
use crate::simd::vectorized;
use crate::storage::is_half;
use half::bf16;
use ir::DType;
use ir::ops::contract::Contract;
use program::contraction::{ContractionPlan, StridedLoop, shifted};
use rayon::prelude::*;
use smallvec::SmallVec;

pub(super) fn run(contract: &Contract, mut call: Call) {
    let layouts = [&call.operand_view(0).layout, &call.operand_view(1).layout, &call.result_view(0).layout];
    let plan = ContractionPlan::of(contract, layouts.map(rebased));
    let (dtype, add) = (call.dtype(), call.add);
    if let (DType::BF16, Some(multiply)) = (dtype, call.device.products.multiply()) {
        let operands = [0, 1].map(|index| call.source::<bf16>(index).elements);
        let scratch = call.take_scratch::<u32>();
        return panels::multiply(&plan, operands, call.take_result::<bf16>(), scratch, multiply);
    }
    if is_half(dtype) {
        return with_half!(dtype, S => {
            let (lhs, rhs) = (call.source::<S>(0).elements, call.source::<S>(1).elements);
            let scratch = call.take_scratch::<f32>();
            tiles::multiply(&plan, [lhs, rhs], call.take_result::<S>(), scratch);
        });
    }
    with_real!(dtype, T => {
        let (lhs, rhs) = (call.source::<T>(0).elements, call.source::<T>(1).elements);
        multiply(&plan, lhs, rhs, call.take_result::<T>(), add);
    });
}

/// Returns a plan's matrix of a tensor: 0 is the left operand, 1 the right one, 2 the result.
fn matrix(tensor: usize, rows: StridedLoop, columns: StridedLoop, offset: isize) -> Matrix {
    Matrix { offset, rows: rows.strides[tensor], columns: columns.strides[tensor] }
}

/// Multiplications smaller than this are distributed over the threads.
const SMALL: usize = 1 << 20;
/// Multiplications smaller than this, such as those of experts, are distributed too if there are [`MANY`] for each thread: threads that
/// divide one multiplication wait for each other at its end.
const MEDIUM: usize = 1 << 26;
const MANY: usize = 4;

fn multiply<T: Real>(plan: &ContractionPlan, lhs: &[T], rhs: &[T], out: &mut [T], add: bool) {
    let put = |out: &mut T, dot: T| *out = if add { *out + dot } else { dot };
    if let Some([left, right]) = plan.stretches() {
        return put(&mut out[0], dot(&lhs[left], &rhs[right]));
    }
    if plan.rows.size == 1 && plan.columns.size == 1 && plan.outer.is_empty() {
        return put(&mut out[plan.offsets[2] as usize], scattered_dot(plan, lhs, rhs));
    }
    let steps: usize = plan.outer.iter().map(|run| run.size).product();
    let work = plan.rows.size * plan.columns.size * plan.summed.size;
    let threads = rayon::current_num_threads();
    let block =
        plan.block().filter(|_| steps >= threads && work < SMALL || steps >= MANY * threads && work < MEDIUM);
    match block.filter(|block| steps * work > SMALL / 16 && *block > 0) {
        Some(block) => out.par_chunks_mut(block).enumerate().for_each(|(step, out)| {
            let [left, right, _] = plan.outer_step(step);
            multiply_step(plan, (lhs, left), (rhs, right), (out, 0), add, false);
        }),
        None => {
            for step in 0..steps {
                let [left, right, at] = plan.outer_step(step);
                multiply_step(plan, (lhs, left), (rhs, right), (out, at), add, true);
            }
        }
    }
}

/// Calls `multiply` for each multiplication of a contraction that takes scratch, with the places of its first elements and with scratch.
/// Small multiplications, each with scratch for a `whole` one, are distributed over the threads. Other multiplications have all of it; the
/// last argument says so.
fn with_scratch<S: Send, N: Send>(
    plan: &ContractionPlan,
    out: &mut [S],
    scratch: &mut [N],
    whole: usize,
    multiply: impl Fn([isize; 3], &mut [S], &mut [N], bool) + Sync,
) {
    let steps: usize = plan.outer.iter().map(|run| run.size).product();
    let work = plan.rows.size * plan.columns.size * plan.summed.size;
    let shares = (scratch.len() / whole).min(steps);
    let block = plan.block().filter(|block| *block > 0 && shares > 1 && work < SMALL);
    match block.filter(|_| steps * work > SMALL / 16) {
        Some(block) => {
            let each = steps.div_ceil(shares);
            let parts = out.par_chunks_mut(block * each).zip(scratch.par_chunks_exact_mut(whole));
            parts.enumerate().for_each(|(share, (out, scratch))| {
                for step in share * each..((share + 1) * each).min(steps) {
                    let [left, right, _] = plan.outer_step(step);
                    let at = ((step - share * each) * block) as isize;
                    multiply([left, right, at], out, scratch, false);
                }
            });
        }
        None => (0..steps).for_each(|step| multiply(plan.outer_step(step), out, scratch, true)),
    }
}

/// The number of terms of a dot product that one task adds. It is fixed, so that the sum does not depend on threads.
const TERMS: usize = 1 << 14;

/// Computes `Σ x·y`, such as the square of a gradient's norm. The sum is rounded once, so it does not depend on the order in which the
/// tensors lie in memory, which recomputation and offload change.
fn dot<S: Float>(x: &[S], y: &[S]) -> S::Real {
    let blocks = x.par_chunks(TERMS).zip(y.par_chunks(TERMS)).map(|(x, y)| block_dot(x, y));
    let sums: Vec<WideSum> = blocks.collect();
    <S::Real>::of(sums.into_iter().reduce(WideSum::joined).unwrap_or_default().value())
}

/// Computes the same sum for tensors with any strides.
fn scattered_dot<T: Real>(plan: &ContractionPlan, lhs: &[T], rhs: &[T]) -> T {
    let steps: usize = plan.inner.iter().map(|run| run.size).product();
    let mut sum = WideSum::default();
    for step in 0..steps {
        let [left, right, _] = shifted(plan.offsets, &plan.inner, step);
        for i in 0..plan.summed.size as isize {
            let x = lhs[(left + i * plan.summed.strides[0]) as usize];
            let y = rhs[(right + i * plan.summed.strides[1]) as usize];
            sum = sum.with(x.to_f64() * y.to_f64());
        }
    }
    T::of(sum.value())
}

vectorized! {
    fn block_dot<'a; S: Float>(x: &'a [S], y: &'a [S]) -> WideSum {
        let mut lanes = [WideSum::default(); DOT_LANES];
        for (x, y) in x.chunks(DOT_LANES).zip(y.chunks(DOT_LANES)) {
            for ((lane, x), y) in lanes.iter_mut().zip(x).zip(y) {
                *lane = lane.with(x.widen().to_f64() * y.widen().to_f64());
            }
        }
        lanes.into_iter().reduce(WideSum::joined).unwrap_or_default()
    }
}

/// The number of sums that a dot product adds side by side.
const DOT_LANES: usize = 16;

/// A sum with twice the digits of f64: the sum, and the errors of its roundings (Knuth, The Art of Computer Programming 2, section 4.2.2,
/// theorem B).
#[derive(Clone, Copy, Debug, Default)]
struct WideSum {
    sum: f64,
    error: f64,
}

impl WideSum {
    #[inline(always)]
    fn with(self, x: f64) -> Self {
        let sum = self.sum + x;
        let added = sum - self.sum;
        let error = (self.sum - (sum - added)) + (x - added);
        Self { sum, error: self.error + error }
    }

    #[inline(always)]
    fn joined(self, other: Self) -> Self {
        let Self { sum, error } = self.with(other.sum);
        Self { sum, error: error + other.error }
    }

    /// Returns the rounded sum. Infinite sums have no error.
    fn value(self) -> f64 {
        if self.sum.is_finite() { self.sum + self.error } else { self.sum }
    }
}

/// Runs one step of the outer loops: the sum of the products of the inner loops. A sum over microbatches adds the rounded sum of the
/// products, as a separate instruction would.
fn multiply_step<T: Real>(
    plan: &ContractionPlan,
    (lhs, left): (&[T], isize),
    (rhs, right): (&[T], isize),
    (out, at): (&mut [T], isize),
    add: bool,
    parallel: bool,
) {
    let sizes = [plan.rows.size, plan.summed.size, plan.columns.size];
    let steps: usize = plan.inner.iter().map(|run| run.size).product();
    // If there are no terms, one empty sum: zero.
    let (steps, sizes) = if steps == 0 { (1, [sizes[0], 0, sizes[2]]) } else { (steps, sizes) };
    let to = matrix(2, plan.rows, plan.columns, at);
    let places = (0..steps).map(|step| {
        let [left, right, _] = shifted([left, right, at], &plan.inner, step);
        [matrix(0, plan.rows, plan.summed, left), matrix(1, plan.summed, plan.columns, right)]
    });
    let how = Multiply { factor: T::ONE, add: false, parallel };
    if add {
        let places: SmallVec<[_; 1]> = places.collect();
        return add_rounded(sizes, (out, to), [lhs, rhs], &places, how);
    }
    for (step, [left, right]) in places.enumerate() {
        gemm(sizes, (&mut *out, to), (lhs, left), (rhs, right), Multiply { add: step > 0, ..how });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_product_is_the_same_in_any_order() {
        let x: Vec<f32> =
            (0..40_000).map(|i| ir::random::philox(3, [i, 0, 0, 0])[0] as f32 * 1e-6 - 2000.0).collect();
        let (rows, columns) = (200, 200);
        let transposed: Vec<f32> = (0..x.len()).map(|i| x[i % rows * columns + i / rows]).collect();
        let reversed: Vec<f32> = x.iter().rev().copied().collect();
        let squares = |x: &[f32]| dot(x, x).to_bits();
        let exact: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        assert_eq!(squares(&x), (exact as f32).to_bits());
        assert_eq!([squares(&transposed), squares(&reversed)], [squares(&x); 2]);
        assert_eq!(squares(&[f32::INFINITY, 1.0]), f32::INFINITY.to_bits());
    }
}
