//! Contractions of f16 and bf16: tiles of the operands are converted to f32 in scratch, multiplied and summed there, and each sum is
//! rounded once.
//!
//! The tiles depend on the sizes and the scratch alone, so the result does not depend on the number of threads.

use super::{dot, with_scratch};
use crate::gemm::{Matrix, Multiply, gemm};
use crate::math::Float;
use crate::storage::{narrow, widen};
use program::contraction::{ContractionPlan, StridedLoop, shifted};
use rayon::prelude::*;
use std::ops::Range;

/// Computes `out = lhs × rhs` in the instruction's scratch, which may have any length of at least three.
pub(super) fn multiply<S: Float<Real = f32>>(
    plan: &ContractionPlan,
    operands: [&[S]; 2],
    out: &mut [S],
    scratch: &mut [f32],
) {
    if let Some([left, right]) = plan.stretches() {
        out[0] = S::narrow(dot(&operands[0][left], &operands[1][right]));
        return;
    }
    let whole = Tile::whole(plan);
    with_scratch(plan, out, scratch, whole.len(), |starts, out, scratch, parallel| {
        let tile = if parallel { whole.within(scratch.len()) } else { whole };
        Tiles { plan, operands, starts, tile, parallel }.multiply(out, scratch);
    });
}

/// The sizes of one tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    rows: usize,
    summed: usize,
    columns: usize,
}

impl Tile {
    fn whole(plan: &ContractionPlan) -> Self {
        Self { rows: plan.rows.size, summed: plan.summed.size.max(1), columns: plan.columns.size }
    }

    /// Returns the number of elements that both operands and the result take.
    fn len(&self) -> usize {
        self.rows * self.summed + self.summed * self.columns + self.rows * self.columns
    }

    /// Halves the largest size until the tile takes no more than `len` elements.
    fn within(mut self, len: usize) -> Self {
        while self.len() > len && self.len() > 3 {
            let Self { rows, summed, columns } = &mut self;
            let largest = [rows, columns, summed].into_iter().max_by_key(|size| **size).expect("three sizes");
            *largest = largest.div_ceil(2);
        }
        self
    }
}

/// One multiplication in tiles.
struct Tiles<'a, S> {
    plan: &'a ContractionPlan,
    operands: [&'a [S]; 2],
    /// The offsets of both operands and the result.
    starts: [isize; 3],
    tile: Tile,
    parallel: bool,
}

impl<S: Float<Real = f32>> Tiles<'_, S> {
    fn multiply(&self, out: &mut [S], scratch: &mut [f32]) {
        let Tile { rows, summed, columns } = self.tile;
        let (left, rest) = scratch.split_at_mut(rows * summed);
        let (right, sums) = rest.split_at_mut(summed * columns);
        let mut left = Widened { numbers: left, what: None, parallel: self.parallel };
        let mut right = Widened { numbers: right, what: None, parallel: self.parallel };
        let inner: usize = self.plan.inner.iter().map(|run| run.size).product();
        for rows in ranges(self.plan.rows.size, rows) {
            for columns in ranges(self.plan.columns.size, columns) {
                let to = Lines::of(2, (self.plan.rows, &rows), (self.plan.columns, &columns), self.starts[2]);
                let sums = &mut sums[..rows.len() * columns.len()];
                let mut first = true;
                for step in 0..inner {
                    let starts = shifted(self.starts, &self.plan.inner, step);
                    for summed in ranges(self.plan.summed.size, summed) {
                        let lines = |tensor, rows, columns| Lines::of(tensor, rows, columns, starts[tensor]);
                        let k = (self.plan.summed, &summed);
                        let left = left.bring(self.operands[0], lines(0, (self.plan.rows, &rows), k));
                        let right = right.bring(self.operands[1], lines(1, k, (self.plan.columns, &columns)));
                        let sizes = [rows.len(), summed.len(), columns.len()];
                        let how = Multiply { factor: 1.0, add: !first, parallel: self.parallel };
                        gemm(sizes, (&mut *sums, to.packed()), left, right, how);
                        first = false;
                    }
                }
                if first {
                    sums.fill(0.0);
                }
                to.store(sums, out, self.parallel);
            }
        }
    }
}

/// Returns neighbouring ranges of this length; the last may be shorter.
fn ranges(size: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
    (0..size).step_by(length.max(1)).map(move |start| start..(start + length).min(size))
}

/// A part of a matrix as lines. Lines run along the dim whose neighbours are neighbours in memory, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lines {
    /// The offset of the first element.
    start: isize,
    count: usize,
    /// The distance from line to line.
    stride: isize,
    length: usize,
    /// The distance between elements of a line.
    step: isize,
    /// Whether lines are the rows of the matrix, and not its columns.
    by_rows: bool,
}

impl Lines {
    fn of(
        tensor: usize,
        rows: (StridedLoop, &Range<usize>),
        columns: (StridedLoop, &Range<usize>),
        start: isize,
    ) -> Self {
        let Matrix { rows: down, columns: right, offset } = super::matrix(tensor, rows.0, columns.0, start);
        let start = offset + rows.1.start as isize * down + columns.1.start as isize * right;
        let (down, right) = ((rows.1.len(), down), (columns.1.len(), right));
        let by_rows = right.1 == 1 || down.1 != 1;
        let ((count, stride), (length, step)) = if by_rows { (down, right) } else { (right, down) };
        Self { start, count, stride, length, step, by_rows }
    }

    /// Returns the matrix whose lines are stored one after the other.
    fn packed(&self) -> Matrix {
        let matrix = Matrix::with_rows(self.length);
        if self.by_rows { matrix } else { matrix.transposed() }
    }

    /// Returns the offset of an element.
    fn at(&self, line: usize, index: usize) -> usize {
        (self.start + line as isize * self.stride + index as isize * self.step) as usize
    }

    /// Converts the lines to f32 into `to`, one after the other.
    fn load<S: Float<Real = f32>>(&self, from: &[S], to: &mut [f32], parallel: bool) {
        let line = |(line, to): (usize, &mut [f32])| match self.step {
            1 => widen(&from[self.at(line, 0)..][..self.length], to),
            _ => to.iter_mut().enumerate().for_each(|(i, to)| *to = from[self.at(line, i)].widen()),
        };
        let to = &mut to[..self.count * self.length];
        if parallel {
            let lines = to.par_chunks_exact_mut(self.length).enumerate();
            lines.with_min_len((SHARE / self.length).max(1)).for_each(line);
        } else {
            to.chunks_exact_mut(self.length).enumerate().for_each(line)
        }
    }

    /// Rounds the lines, stored one after the other in `from`, into their places in `out`.
    fn store<S: Float<Real = f32>>(&self, from: &[f32], out: &mut [S], parallel: bool) {
        let lines = from.chunks_exact(self.length).enumerate();
        if self.step != 1 {
            return lines.for_each(|(line, from)| {
                from.iter().enumerate().for_each(|(i, &from)| out[self.at(line, i)] = S::narrow(from));
            });
        }
        let apart = usize::try_from(self.stride).ok().filter(|&stride| stride >= self.length);
        match apart.filter(|_| parallel && self.count > 1) {
            Some(stride) => {
                let out =
                    out[self.start as usize..].par_chunks_mut(stride).zip(from.par_chunks_exact(self.length));
                let lines = out.with_min_len((SHARE / self.length).max(1));
                lines.for_each(|(out, from)| narrow(from, &mut out[..self.length]));
            }
            None => lines.for_each(|(line, from)| narrow(from, &mut out[self.at(line, 0)..][..self.length])),
        }
    }
}

/// The smallest number of elements that a thread converts.
const SHARE: usize = 1 << 14;

/// A tile of an operand, converted to f32.
struct Widened<'a> {
    numbers: &'a mut [f32],
    what: Option<Lines>,
    parallel: bool,
}

impl Widened<'_> {
    /// Converts these lines, unless they are still there from the call before.
    fn bring<S: Float<Real = f32>>(&mut self, operand: &[S], lines: Lines) -> (&[f32], Matrix) {
        if self.what != Some(lines) {
            lines.load(operand, self.numbers, self.parallel);
            self.what = Some(lines);
        }
        (self.numbers, lines.packed())
    }
}
