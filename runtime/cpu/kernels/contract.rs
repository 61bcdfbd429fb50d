//! Contractions, as multiplications of strided matrices. f16 and bf16 are multiplied in tiles, widened to f32 (`tiles`).

mod tiles;

use crate::contraction::{ContractionPlan, StridedLoop, shifted};
use crate::cpu::call::{Call, rebased};
use crate::cpu::element::{Element, with_half, with_real};
use crate::cpu::gemm::{Matrix, Multiply, gemm};
use crate::cpu::math::Real;
use crate::cpu::simd::{sum, vectorized};
use crate::cpu::storage::{Float, is_half};
use ir::ops::contract::Contract;
use rayon::prelude::*;

pub(super) fn run(contract: &Contract, mut call: Call) {
    let layouts = [&call.operand_view(0).layout, &call.operand_view(1).layout, &call.result_view(0).layout];
    let plan = ContractionPlan::of(contract, layouts.map(rebased));
    let (dtype, add) = (call.dtype(), call.add);
    if is_half(dtype) {
        return with_half!(dtype, S => {
            let (lhs, rhs) = (call.source::<S>(0).elements, call.source::<S>(1).elements);
            let scratch = call.take_scratch::<f32>();
            tiles::multiply(&plan, [lhs, rhs], call.take_result::<S>(), scratch, add);
        });
    }
    with_real!(dtype, T => {
        let (lhs, rhs) = (call.source::<T>(0).elements, call.source::<T>(1).elements);
        multiply(&plan, lhs, rhs, call.take_result::<T>(), add);
    });
}

/// A plan's matrix of a tensor: the left operand is 0, the right one 1, the result 2.
fn matrix(tensor: usize, rows: StridedLoop, columns: StridedLoop, offset: isize) -> Matrix {
    Matrix { offset, rows: rows.strides[tensor], columns: columns.strides[tensor] }
}

/// Multiplications smaller than this share the threads among them.
const SMALL: usize = 1 << 20;
/// So do those smaller than this, such as those of experts, if there are [`MANY`] for each thread: threads that divide one of them wait
/// for each other at its end.
const MEDIUM: usize = 1 << 26;
const MANY: usize = 4;

fn multiply<T: Real>(plan: &ContractionPlan, lhs: &[T], rhs: &[T], out: &mut [T], add: bool) {
    if let Some([left, right]) = plan.stretches() {
        return dot(&lhs[left], &rhs[right], &mut out[0], add);
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

/// Terms of a dot product that one task adds up. Fixed, so that the sum does not depend on threads.
const TERMS: usize = 1 << 14;

/// `out (+)= Σ x·y`, such as the square of a gradient's norm: blocks in the type that is computed in, their sums in f64.
fn dot<S: Float>(x: &[S], y: &[S], out: &mut S, add: bool) {
    let blocks = x.par_chunks(TERMS).zip(y.par_chunks(TERMS)).map(|(x, y)| block_dot(x, y).to_f64());
    let sums: Vec<f64> = blocks.collect();
    let dot = <S::Real>::of(sums.into_iter().sum());
    *out = S::narrow(if add { out.widen() + dot } else { dot });
}

vectorized! {
    fn block_dot<'a; S: Float>(x: &'a [S], y: &'a [S]) -> S::Real {
        sum([x, y], |[x, y]| x.widen() * y.widen())
    }
}

/// One step of the outer loops: the products of the inner ones, added up.
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
    // With no term at all, one empty sum: zero, unless it is added.
    let (steps, sizes) = if steps == 0 { (1, [sizes[0], 0, sizes[2]]) } else { (steps, sizes) };
    for step in 0..steps {
        let [left, right, at] = shifted([left, right, at], &plan.inner, step);
        let how = Multiply { factor: T::ONE, add: add || step > 0, parallel };
        gemm(
            sizes,
            (&mut *out, matrix(2, plan.rows, plan.columns, at)),
            (lhs, matrix(0, plan.rows, plan.summed, left)),
            (rhs, matrix(1, plan.summed, plan.columns, right)),
            how,
        );
    }
}
