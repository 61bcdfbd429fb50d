//! Rows that each meet a matrix of their choice: the rows of one expert are laid together, and multiplied at once.

use super::conv::{make, reals};
use super::indexing::element_of_part;
use crate::cpu::call::Call;
use crate::cpu::element::with_float;
use crate::cpu::gemm::{Matrix, Multiply, gemm};
use crate::cpu::math::Real;
use crate::cpu::storage::{Float, narrow, widen};
use ir::Span;
use ir::ops::experts::Experts;

/// The rows that chose each expert of this device, in their order.
struct Groups {
    rows: Vec<usize>,
    /// Where the rows of each expert start; the last entry is the end.
    starts: Vec<usize>,
}

impl Groups {
    /// By a counting sort, which keeps the rows of an expert in their order.
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

    /// Each expert with its rows, where there are any.
    fn iter(&self) -> impl Iterator<Item = (usize, &[usize])> {
        let group = |(expert, ends): (usize, &[usize])| (expert, &self.rows[ends[0]..ends[1]]);
        self.starts.windows(2).enumerate().map(group)
    }
}

/// Rows of a matrix, laid together.
fn together<'a, S: Float>(from: &[S], rows: &[usize], width: usize, to: &'a mut [S::Real]) -> &'a [S::Real] {
    let to = &mut to[..rows.len() * width];
    for (to, &row) in to.chunks_exact_mut(width.max(1)).zip(rows) {
        widen(&from[row * width..][..width], to);
    }
    to
}

/// `out[t] = x[t] · weights[index[t]]`
pub(super) fn run(op: &Experts, mut call: Call) {
    let (k, n) = (call.operand_view(0).layout.sizes[1], call.result_view(0).layout.sizes[1]);
    let experts = call.operand_view(1).layout.sizes[0];
    let index = call.integers(2);
    let groups = Groups::of(&index, call.operand_span(1, 0), experts);
    with_float!(call.dtype(), S => {
        let (x, weights) = (call.dense::<S>(0), call.dense::<S>(1));
        let scratch = call.take_scratch::<<S as Float>::Real>();
        let (gathered, rest) = scratch.split_at_mut(index.len() * k);
        let (product, widened) = rest.split_at_mut(index.len() * n);
        let result = call.take_result::<S>();
        result.fill(S::narrow(<S as Float>::Real::ZERO));
        for (expert, rows) in groups.iter().filter(|(_, rows)| !rows.is_empty()) {
            let lies = if op.transposed { Matrix::with_rows(k).transposed() } else { Matrix::with_rows(n) };
            let product = &mut product[..rows.len() * n];
            gemm(
                [rows.len(), k, n],
                (&mut *product, Matrix::with_rows(n)),
                (together(x, rows, k, gathered), Matrix::with_rows(k)),
                (reals(&weights[expert * k * n..][..k * n], widened), lies),
                Multiply { factor: <S as Float>::Real::ONE, add: false, parallel: true },
            );
            for (product, &row) in product.chunks_exact(n).zip(rows) {
                narrow(product, &mut result[row * n..][..n]);
            }
        }
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
        let (add, result) = (call.add, call.take_result::<S>());
        for (expert, chosen) in groups.iter() {
            make(&mut result[expert * k * n..][..k * n], made, add, |sum, add| {
                gemm(
                    [k, chosen.len(), n],
                    (sum, Matrix::with_rows(n)),
                    (together(rows, chosen, k, left), Matrix::with_rows(k).transposed()),
                    (together(columns, chosen, n, right), Matrix::with_rows(n)),
                    Multiply { factor: <S as Float>::Real::ONE, add, parallel: true },
                );
            });
        }
    });
}
