//! Multiplications of each row with the matrix of the expert that it chose. The rows of one expert are gathered and multiplied at once.

use super::conv::{make, reals};
use super::indexing::element_of_part;
use crate::call::Call;
use crate::element::with_float;
use crate::gemm::{Matrix, Multiply, add_rounded, gemm};
use crate::math::{Float, Real};
use crate::storage::{narrow, widen};
use ir::Span;
use ir::ops::experts::Experts;
use rayon::prelude::*;
use std::ops::Range;

/// The rows that chose the experts of this device, grouped by expert and in order.
struct Groups {
    rows: Vec<usize>,
    /// The place of the first row of each expert; the last entry is the end.
    starts: Vec<usize>,
}

impl Groups {
    /// Groups the rows with a counting sort, which keeps the rows of an expert in order.
    fn of(index: &[i64], span: Span, experts: usize) -> Self {
        let chosen: Vec<Option<usize>> =
            index.iter().map(|&index| element_of_part(index, span, experts)).collect();
        let mut starts = vec![0; experts + 1];
        chosen.iter().flatten().for_each(|expert| starts[expert + 1] += 1);
        (0..experts).for_each(|expert| starts[expert + 1] += starts[expert]);
        let (mut next, mut rows) = (starts.clone(), vec![0; starts[experts]]);
        for (row, expert) in chosen.into_iter().enumerate() {
            if let Some(expert) = expert {
                rows[next[expert]] = row;
                next[expert] += 1;
            }
        }
        Self { rows, starts }
    }

    /// Returns the places of the rows of an expert among all grouped rows.
    fn of_expert(&self, expert: usize) -> Range<usize> {
        self.starts[expert]..self.starts[expert + 1]
    }

    /// Returns the experts that have rows, with the places of their rows.
    fn iter(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let experts = (0..self.starts.len() - 1).map(|expert| (expert, self.of_expert(expert)));
        experts.filter(|(_, rows)| !rows.is_empty())
    }

    /// Cuts a matrix with all grouped rows, each of `width` elements, into blocks of at most [`ROWS`] rows of one expert. Returns for each
    /// the expert, the place of the first row, and the block.
    fn blocks<'m, T>(&self, mut matrix: &'m mut [T], width: usize) -> Vec<(usize, usize, &'m mut [T])> {
        let mut blocks = Vec::new();
        for (expert, rows) in self.iter() {
            for start in rows.clone().step_by(ROWS) {
                let count = ROWS.min(rows.end - start);
                let (block, rest) = matrix.split_at_mut(count * width);
                blocks.push((expert, start, block));
                matrix = rest;
            }
        }
        blocks
    }

    /// Returns the place of each row of the operand among the grouped rows; `None` for rows of other devices' experts.
    fn places(&self, rows: usize) -> Vec<Option<usize>> {
        let mut places = vec![None; rows];
        self.rows.iter().enumerate().for_each(|(place, &row)| places[row] = Some(place));
        places
    }
}

/// Copies these rows of a matrix one after the other.
fn gather<S: Float>(from: &[S], rows: &[usize], width: usize, to: &mut [S::Real]) {
    let chunks = to[..rows.len() * width].par_chunks_exact_mut(width.max(1));
    chunks.zip(rows).with_min_len(ROWS).for_each(|(to, &row)| widen(&from[row * width..][..width], to));
}

/// The number of rows of a product that one thread computes. It is fixed, so that a product does not depend on threads.
const ROWS: usize = 256;

/// `out[t] = x[t] · weights[index[t]]`
pub(super) fn run(op: &Experts, mut call: Call) {
    let (k, n) = (call.operand_view(0).layout.sizes[1], call.result_view(0).layout.sizes[1]);
    let experts = call.operand_view(1).layout.sizes[0];
    let index = call.integers(2);
    let groups = Groups::of(&index, call.operand_span(1, 0), experts);
    let lies = if op.transposed { Matrix::with_rows(k).transposed() } else { Matrix::with_rows(n) };
    with_float!(call.dtype(), S => {
        let (x, weights) = (call.dense::<S>(0), call.dense::<S>(1));
        let scratch = call.take_scratch::<<S as Float>::Real>();
        let (gathered, rest) = scratch.split_at_mut(index.len() * k);
        let (product, widened) = rest.split_at_mut(index.len() * n);
        gather(x, &groups.rows, k, gathered);
        let multiply = |product: &mut [_], rows: &[_], matrix: &[_], parallel: bool| {
            let how = Multiply { factor: <S as Float>::Real::ONE, add: false, parallel };
            let sizes = [product.len() / n.max(1), k, n];
            gemm(sizes, (product, Matrix::with_rows(n)), (rows, Matrix::with_rows(k)), (matrix, lies), how);
        };
        match <S as Float>::as_reals(weights) {
            Some(weights) => groups.blocks(product, n).into_par_iter().for_each(|(expert, start, product)| {
                let rows = &gathered[start * k..][..product.len() / n.max(1) * k];
                multiply(product, rows, &weights[expert * k * n..][..k * n], false);
            }),
            // There is room for the converted matrix of one expert only.
            None => {
                for (expert, rows) in groups.iter() {
                    let matrix = reals(&weights[expert * k * n..][..k * n], widened);
                    let product = &mut product[rows.start * n..rows.end * n];
                    multiply(product, &gathered[rows.start * k..rows.end * k], matrix, true);
                }
            }
        }
        let places = groups.places(index.len());
        let result = call.take_result::<S>().par_chunks_exact_mut(n.max(1));
        result.zip(places).with_min_len(ROWS).for_each(|(row, place)| match place {
            Some(place) => narrow(&product[place * n..][..n], row),
            None => row.fill(S::narrow(<S as Float>::Real::ZERO)),
        });
    });
}

/// `out[e] = Σ rows[t]ᵀ · columns[t]` over the rows that chose `e`
pub(super) fn gradient(mut call: Call) {
    let sizes = &call.result_view(0).layout.sizes;
    let (experts, k, n) = (sizes[0], sizes[1], sizes[2]);
    let index = call.integers(0);
    let groups = Groups::of(&index, call.result_span(0, 0), experts);
    with_float!(call.dtype(), S => {
        let (rows, columns) = (call.dense::<S>(1), call.dense::<S>(2));
        let scratch = call.take_scratch::<<S as Float>::Real>();
        let (left, rest) = scratch.split_at_mut(index.len() * k);
        let (right, made) = rest.split_at_mut(index.len() * n);
        gather(rows, &groups.rows, k, left);
        gather(columns, &groups.rows, n, right);
        let (left, right) = (&*left, &*right);
        let (add, result) = (call.add, call.take_result::<S>());
        let multiply = |sum: &mut [_], expert: usize, first: usize, add: bool, parallel: bool| {
            let chosen = groups.of_expert(expert);
            let rows = Matrix::with_rows(k).transposed().skip_rows(first).skip_columns(chosen.start);
            let columns = Matrix::with_rows(n).skip_rows(chosen.start);
            let how = Multiply { factor: <S as Float>::Real::ONE, add: false, parallel };
            let sizes = [sum.len() / n.max(1), chosen.len(), n];
            let sum = (sum, Matrix::with_rows(n));
            if add {
                add_rounded(sizes, sum, [left, right], &[[rows, columns]], how)
            } else {
                gemm(sizes, sum, (left, rows), (right, columns), how)
            }
        };
        match <S as Float>::as_reals_mut(result) {
            Some(result) => {
                let blocks = result.par_chunks_mut((k * n).max(1)).enumerate().flat_map(|(expert, sum)| {
                    sum.par_chunks_mut((ROWS * n).max(1)).enumerate().map(move |(part, sum)| (expert, part, sum))
                });
                blocks.for_each(|(expert, part, sum)| multiply(sum, expert, part * ROWS, add, false));
            }
            None => {
                for expert in 0..experts {
                    let result = &mut result[expert * k * n..][..k * n];
                    make(result, made, |sum| multiply(sum, expert, 0, false, true));
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks experts 2 and 3 of eight.
    #[test]
    fn rows_lie_by_expert_in_their_order_and_in_blocks_of_one_expert() {
        let index: Vec<i64> = (0..900).map(|row| [3, 0, 2, 3, 7, 3][row % 6]).collect();
        let groups = Groups::of(&index, Span { start: 2, size: 8 }, 2);
        assert_eq!(groups.of_expert(0), 0..150);
        assert_eq!(groups.of_expert(1), 150..600);
        assert_eq!(groups.rows[..3], [2, 8, 14]);
        assert_eq!(groups.rows[150..154], [0, 3, 5, 6]);
        let mut matrix = vec![0.0; 600 * 2];
        let blocks = groups.blocks(&mut matrix, 2);
        let blocks: Vec<_> =
            blocks.iter().map(|(expert, start, block)| (*expert, *start, block.len())).collect();
        assert_eq!(blocks, [(0, 0, 300), (1, 150, 512), (1, 406, 388)]);
        let places = groups.places(index.len());
        assert_eq!(places[..6], [Some(150), None, Some(0), Some(151), None, Some(152)]);
    }
}
