//! Contractions, as multiplications of strided matrices.
//!
//! Labels of one role that one stride reaches through become one dim of the matrix; what is left over is looped
//! over. So a transposed operand costs no copy. f16 and bf16 are multiplied in tiles, widened to f32 (`tiles`).

mod tiles;

use crate::cpu::call::{Call, rebased};
use crate::cpu::element::{Element, with_half, with_real};
use crate::cpu::gemm::{Matrix, Multiply, gemm};
use crate::cpu::math::Real;
use crate::cpu::simd::{sum, vectorized};
use crate::cpu::storage::{Float, is_half};
use crate::layout::Layout;
use ir::ops::Labels;
use ir::ops::contract::Contract;
use rayon::prelude::*;
use std::ops::Range;

/// A size with the strides it has in left operand, right operand and result.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    size: usize,
    strides: [isize; 3],
}

const ONE: Run = Run { size: 1, strides: [0; 3] };

/// A contraction as loops around one multiplication.
#[derive(Clone, Debug)]
struct Plan {
    rows: Run,
    columns: Run,
    summed: Run,
    /// Each step writes elsewhere.
    outer: Vec<Run>,
    /// Each step adds to the same place.
    inner: Vec<Run>,
    /// Where each tensor starts.
    offsets: [isize; 3],
}

pub(super) fn run(contract: &Contract, mut call: Call) {
    let layouts = [&call.operand_view(0).layout, &call.operand_view(1).layout, &call.result_view(0).layout];
    let plan = Plan::of(contract, layouts.map(rebased));
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

impl Plan {
    fn of(contract: &Contract, layouts: [Layout; 3]) -> Self {
        let labels = [&contract.lhs, &contract.rhs, &contract.out];
        let run = |label: &u8| {
            let at = |labels: &Labels| labels.0.iter().position(|l| l == label);
            let [lhs, rhs, out] =
                [0, 1, 2].map(|i| at(labels[i]).map(|dim| (layouts[i].sizes[dim], layouts[i].strides[dim])));
            let size = lhs.or(rhs).map_or(1, |(size, _)| size);
            Run { size, strides: [lhs, rhs, out].map(|dim| dim.map_or(0, |(_, stride)| stride)) }
        };
        let roles = contract.roles();
        let runs = |labels: &[u8], by: usize| merged(labels.iter().map(run).collect(), by);
        let (mut outer, mut inner) = (runs(&roles.batch, 2), vec![]);
        let take = |mut runs: Vec<Run>, rest: &mut Vec<Run>| {
            let largest = (0..runs.len()).max_by_key(|&i| (runs[i].size, i));
            let taken = largest.map_or(ONE, |i| runs.remove(i));
            rest.extend(runs);
            taken
        };
        let rows = take(runs(&roles.rows, 2), &mut outer);
        let columns = take(runs(&roles.columns, 2), &mut outer);
        let summed = take(runs(&roles.summed, 0), &mut inner);
        Self { rows, columns, summed, outer, inner, offsets: layouts.map(|layout| layout.offset) }
    }

    /// Where the tensors of a step of the outer loops start.
    fn outer_step(&self, step: usize) -> [isize; 3] {
        shifted(self.offsets, &self.outer, step)
    }

    /// The distance between the results of neighbouring outer steps, if each is a block of its own after the one
    /// before.
    fn block(&self) -> Option<usize> {
        let mut next = self.extent();
        for (i, run) in self.outer.iter().rev().enumerate() {
            let stride = usize::try_from(run.strides[2]).ok()?;
            if (i == 0 && stride < next) || (i > 0 && stride != next) {
                return None;
            }
            next = stride * run.size;
        }
        self.outer.last().map(|run| run.strides[2] as usize)
    }

    /// From the first to the last element of one multiplication's result.
    fn extent(&self) -> usize {
        [self.rows, self.columns]
            .iter()
            .map(|run| (run.size - 1) * run.strides[2].unsigned_abs())
            .sum::<usize>()
            + 1
    }

    /// What a contraction into one number reads of each operand, if that is a stretch without holes.
    fn stretches(&self) -> Option<[Range<usize>; 2]> {
        let [rows, columns] = [self.rows.size, self.columns.size];
        let one = rows == 1 && columns == 1 && self.outer.is_empty() && self.inner.is_empty();
        let dense = self.summed.size > 1 && self.summed.strides[..2] == [1, 1];
        let stretch = |offset: isize| offset as usize..offset as usize + self.summed.size;
        (one && dense).then(|| [stretch(self.offsets[0]), stretch(self.offsets[1])])
    }

    fn matrix(&self, tensor: usize, rows: Run, columns: Run, offset: isize) -> Matrix {
        Matrix { offset, rows: rows.strides[tensor], columns: columns.strides[tensor] }
    }
}

/// Runs from the largest stride in tensor `by` to the smallest, neighbours merged where every tensor allows it.
fn merged(mut runs: Vec<Run>, by: usize) -> Vec<Run> {
    runs.retain(|run| run.size != 1);
    runs.sort_by_key(|run| std::cmp::Reverse(run.strides[by]));
    let mut merged: Vec<Run> = Vec::new();
    for run in runs {
        match merged.last_mut() {
            Some(last) if (0..3).all(|i| last.strides[i] == run.strides[i] * run.size as isize) => {
                *last = Run { size: last.size * run.size, strides: run.strides };
            }
            _ => merged.push(run),
        }
    }
    merged
}

/// Offsets after `step` of nested loops.
fn shifted(mut offsets: [isize; 3], loops: &[Run], mut step: usize) -> [isize; 3] {
    for run in loops.iter().rev() {
        let index = (step % run.size) as isize;
        step /= run.size;
        (0..3).for_each(|i| offsets[i] += index * run.strides[i]);
    }
    offsets
}

/// Multiplications smaller than this share the threads among them.
const SMALL: usize = 1 << 20;

fn multiply<T: Real>(plan: &Plan, lhs: &[T], rhs: &[T], out: &mut [T], add: bool) {
    if let Some([left, right]) = plan.stretches() {
        return dot(&lhs[left], &rhs[right], &mut out[0], add);
    }
    let steps: usize = plan.outer.iter().map(|run| run.size).product();
    let work = plan.rows.size * plan.columns.size * plan.summed.size;
    let block = plan.block().filter(|_| steps >= rayon::current_num_threads() && work < SMALL);
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
    plan: &Plan,
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
            (&mut *out, plan.matrix(2, plan.rows, plan.columns, at)),
            (lhs, plan.matrix(0, plan.rows, plan.summed, left)),
            (rhs, plan.matrix(1, plan.summed, plan.columns, right)),
            how,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str, sizes: [&[usize]; 3]) -> Plan {
        Plan::of(&Contract::new(text), sizes.map(Layout::dense))
    }

    #[test]
    fn a_linear_layer_is_one_multiplication() {
        let plan = plan("bsh,hk->bsk", [&[4, 8, 16], &[16, 32], &[4, 8, 32]]);
        assert!(plan.outer.is_empty() && plan.inner.is_empty());
        assert_eq!([plan.rows.size, plan.summed.size, plan.columns.size], [32, 16, 32]);
    }

    #[test]
    fn a_weight_gradient_sums_batch_and_sequence_at_once() {
        let plan = plan("bsh,bsk->hk", [&[4, 8, 16], &[4, 8, 32], &[16, 32]]);
        assert!(plan.outer.is_empty() && plan.inner.is_empty());
        assert_eq!([plan.rows.size, plan.summed.size, plan.columns.size], [16, 32, 32]);
    }

    #[test]
    fn heads_between_batch_and_sequence_are_looped_over() {
        let plan = plan("bshd,hdk->bsk", [&[4, 8, 3, 16], &[3, 16, 32], &[4, 8, 32]]);
        assert_eq!([plan.rows.size, plan.summed.size, plan.columns.size], [32, 48, 32]);
        assert!(plan.inner.is_empty());
    }
}
