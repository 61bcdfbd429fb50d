//! A contraction as multiplications of strided matrices. Labels of one role that can share one stride become one dim of the matrix; the
//! remaining labels become loops. So a transposed operand costs no copy.

use crate::layout::Layout;
use ir::ops::Labels;
use ir::ops::contract::Contract;
use std::ops::Range;

/// A size with its strides in the left operand, the right operand and the result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StridedLoop {
    /// The number of steps.
    pub size: usize,
    /// Elements between steps, in the left operand, the right operand and the result.
    pub strides: [isize; 3],
}

/// A loop of one step.
pub const ONE: StridedLoop = StridedLoop { size: 1, strides: [0; 3] };

/// A contraction as loops around one multiplication.
#[derive(Clone, Debug)]
pub struct ContractionPlan {
    /// The rows of the result.
    pub rows: StridedLoop,
    /// The columns of the result.
    pub columns: StridedLoop,
    /// The dim that is summed over.
    pub summed: StridedLoop,
    /// Loops of which each step writes another place.
    pub outer: Vec<StridedLoop>,
    /// Loops of which each step adds to the same place.
    pub inner: Vec<StridedLoop>,
    /// The offset of the first element of each tensor.
    pub offsets: [isize; 3],
}

impl ContractionPlan {
    /// Returns the plan of a contraction of operands and a result that lie so, in this order.
    pub fn of(contract: &Contract, layouts: [Layout; 3]) -> Self {
        let labels = [&contract.lhs, &contract.rhs, &contract.out];
        let run = |label: &u8| {
            let at = |labels: &Labels| labels.0.iter().position(|l| l == label);
            let [lhs, rhs, out] =
                [0, 1, 2].map(|i| at(labels[i]).map(|dim| (layouts[i].sizes[dim], layouts[i].strides[dim])));
            let size = lhs.or(rhs).map_or(1, |(size, _)| size);
            StridedLoop { size, strides: [lhs, rhs, out].map(|dim| dim.map_or(0, |(_, stride)| stride)) }
        };
        let roles = contract.roles();
        let runs = |labels: &[u8], by: usize| merged(labels.iter().map(run).collect(), by);
        let (mut outer, mut inner) = (runs(&roles.batch, 2), vec![]);
        let take = |mut runs: Vec<StridedLoop>, rest: &mut Vec<StridedLoop>| {
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

    /// Returns the strides, of rows and columns, of the left operand, the right operand and the result. Each must be a matrix with one dim
    /// of stride 1, whose lines do not overlap; else returns `None`.
    pub fn matrices(&self) -> Option<[[i64; 2]; 3]> {
        let side = |run: StridedLoop, tensor: usize| (run.size, run.strides[tensor]);
        let Self { rows, summed, columns, .. } = *self;
        Some([
            matrix_strides([side(rows, 0), side(summed, 0)])?,
            matrix_strides([side(summed, 1), side(columns, 1)])?,
            matrix_strides([side(rows, 2), side(columns, 2)])?,
        ])
    }

    /// Returns the contraction as batched multiplications, if its operands and its result are such matrices and its sums need no loop.
    pub fn batches(&self) -> Option<Batches> {
        let strides = self.matrices().filter(|_| self.inner.is_empty())?;
        let mut loops = self.outer.clone();
        let largest = (0..loops.len()).max_by_key(|&i| loops[i].size);
        let batch = largest.map_or(ONE, |i| loops.remove(i));
        Some(Batches { strides, batch, loops })
    }

    /// Returns whether the contraction is one multiplication of such matrices.
    pub fn is_one(&self) -> bool {
        self.outer.is_empty() && self.inner.is_empty() && self.matrices().is_some()
    }

    /// Returns the offsets of the tensors at a step of the outer loops.
    pub fn outer_step(&self, step: usize) -> [isize; 3] {
        shifted(self.offsets, &self.outer, step)
    }

    /// Returns the distance between the results of neighbouring outer steps, if each result is a block of its own that lies after the block
    /// before it.
    pub fn block(&self) -> Option<usize> {
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

    /// Returns the number of elements from the first to the last element of one multiplication's result.
    fn extent(&self) -> usize {
        [self.rows, self.columns]
            .iter()
            .map(|run| (run.size - 1) * run.strides[2].unsigned_abs())
            .sum::<usize>()
            + 1
    }

    /// Returns the elements of each operand that a contraction into one number reads, if they are a range without gaps.
    pub fn stretches(&self) -> Option<[Range<usize>; 2]> {
        let [rows, columns] = [self.rows.size, self.columns.size];
        let one = rows == 1 && columns == 1 && self.outer.is_empty() && self.inner.is_empty();
        let dense = self.summed.size > 1 && self.summed.strides[..2] == [1, 1];
        let stretch = |offset: isize| offset as usize..offset as usize + self.summed.size;
        (one && dense).then(|| [stretch(self.offsets[0]), stretch(self.offsets[1])])
    }
}

/// Sorts loops from the largest stride in tensor `by` to the smallest, and merges neighbours where every tensor allows it.
fn merged(mut runs: Vec<StridedLoop>, by: usize) -> Vec<StridedLoop> {
    runs.retain(|run| run.size != 1);
    runs.sort_by_key(|run| std::cmp::Reverse(run.strides[by]));
    let mut merged: Vec<StridedLoop> = Vec::new();
    for run in runs {
        match merged.last_mut() {
            Some(last) if (0..3).all(|i| last.strides[i] == run.strides[i] * run.size as isize) => {
                *last = StridedLoop { size: last.size * run.size, strides: run.strides };
            }
            _ => merged.push(run),
        }
    }
    merged
}

/// Returns the strides of a matrix with rows or columns of stride 1, if its lines do not overlap. A dim of size one may have any stride.
fn matrix_strides([(rows, down), (columns, right)]: [(usize, isize); 2]) -> Option<[i64; 2]> {
    let lines_of = |length: usize, along: isize, count: usize, across: isize| {
        let along_fits = length == 1 || along == 1;
        let across = if count == 1 { length as isize } else { across };
        (along_fits && across >= length as isize).then_some(across as i64)
    };
    lines_of(columns, right, rows, down)
        .map(|down| [down, 1])
        .or_else(|| lines_of(rows, down, columns, right).map(|right| [1, right]))
}

/// A contraction as batched multiplications of matrices.
#[derive(Clone, Debug)]
pub struct Batches {
    /// The strides of [`ContractionPlan::matrices`].
    pub strides: [[i64; 2]; 3],
    /// The batch of one multiplication: the largest of the outer loops.
    pub batch: StridedLoop,
    /// The other outer loops. Each of their steps is one multiplication.
    pub loops: Vec<StridedLoop>,
}

impl Batches {
    /// The number of multiplications.
    pub fn count(&self) -> usize {
        self.loops.iter().map(|run| run.size).product()
    }
}

/// Returns the offsets at step `step` of nested loops.
pub fn shifted(mut offsets: [isize; 3], loops: &[StridedLoop], mut step: usize) -> [isize; 3] {
    // A loop of no steps leaves the offsets unchanged.
    for run in loops.iter().rev().filter(|run| run.size > 0) {
        let index = (step % run.size) as isize;
        step /= run.size;
        (0..3).for_each(|i| offsets[i] += index * run.strides[i]);
    }
    offsets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str, sizes: [&[usize]; 3]) -> ContractionPlan {
        ContractionPlan::of(&Contract::new(text), sizes.map(Layout::dense))
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
