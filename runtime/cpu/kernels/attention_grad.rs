//! The gradient of attention. It recomputes the probabilities from their logsumexp (Dao et al., arXiv 2205.14135).

use super::attention::{Panel, QUERIES, Scores, panel, rows_by_head};
use crate::call::{Call, Source};
use crate::element::with_float;
use crate::gemm::{Matrix, Multiply, gemm};
use crate::math::{Float, Real};
use crate::simd::{sum, vectorized};
use crate::storage::narrow;
use ir::ops::attention::AttentionGrad;
use rayon::prelude::*;
use std::ops::Range;

/// The operands of the gradient.
struct Gradient<'a, S: Float> {
    scores: Scores<'a, S>,
    out: Source<'a, S>,
    logsumexp: &'a [S::Real],
    dout: Source<'a, S>,
}

/// The gradients of one key-value head and of its query heads.
struct Head<'a, S> {
    /// The rows of each query head.
    dq: Vec<Vec<&'a mut [S]>>,
    dk: Vec<&'a mut [S]>,
    dv: Vec<&'a mut [S]>,
}

pub(super) fn run(op: &AttentionGrad, mut call: Call) {
    with_float!(call.dtype(), S => {
        let count = call.operands.len();
        let scores = Scores::<S>::of(&call, op.scale.get(), op.causal, count == 7);
        let [out, dout] = [count - 3, count - 1].map(|index| call.source::<S>(index));
        let logsumexp = call.dense::<<S as Float>::Real>(count - 2);
        let [dq, dk, dv] = call.take_results().map(bytemuck::cast_slice_mut::<u8, S>);
        let groups = scores.heads / scores.group.max(1);
        let mut dq = rows_by_head(dq, scores.width, scores.queries, scores.heads).into_iter();
        let dk = rows_by_head(dk, scores.width, scores.keys, groups);
        let dv = rows_by_head(dv, scores.value_width, scores.keys, groups);
        let gradient = Gradient { scores, out, logsumexp, dout };
        let group = gradient.scores.group;
        let heads = dk.into_iter().zip(dv).map(|(dk, dv)| Head { dq: dq.by_ref().take(group).collect(), dk, dv });
        let heads: Vec<Head<S>> = heads.collect();
        heads.into_par_iter().enumerate().for_each(|(index, head)| gradient.head(index / groups, index % groups, head));
    });
}

/// Scratch of one head.
struct Scratch<T> {
    probabilities: Vec<T>,
    dscores: Vec<T>,
    dq: Vec<T>,
    dk: Vec<T>,
    dv: Vec<T>,
    /// The rows of the block, converted to f32: of q, out, d out.
    wide: [Vec<T>; 3],
}

impl<S: Float> Gradient<'_, S> {
    fn head(&self, batch: usize, group: usize, head: Head<S>) {
        let scores = &self.scores;
        let queries = QUERIES.min(scores.queries);
        let zeros = |len: usize| vec![<S::Real>::ZERO; len];
        let mut scratch = Scratch {
            probabilities: zeros(queries * scores.keys),
            dscores: zeros(queries * scores.keys),
            dq: zeros(queries * scores.width),
            dk: zeros(scores.keys * scores.width),
            dv: zeros(scores.keys * scores.value_width),
            wide: [vec![], vec![], vec![]],
        };
        let [mut wide_k, mut wide_v] = [vec![], vec![]];
        let k = panel(&scores.k, [batch, group], 0..scores.keys, scores.width, &mut wide_k);
        let v = panel(&scores.v, [batch, group], 0..scores.keys, scores.value_width, &mut wide_v);
        for (member, mut dq) in head.dq.into_iter().enumerate() {
            for start in (0..scores.queries).step_by(QUERIES) {
                let block = start..(start + QUERIES).min(scores.queries);
                let query_head = group * scores.group + member;
                self.block([batch, query_head], block.clone(), [k, v], &mut scratch);
                let rows = scratch.dq.chunks_exact(scores.width);
                dq[block].iter_mut().zip(rows).for_each(|(to, from)| narrow(from, to));
            }
        }
        let copy = |rows: Vec<&mut [S]>, from: &[S::Real], width: usize| {
            rows.into_iter().zip(from.chunks_exact(width.max(1))).for_each(|(to, from)| narrow(from, to));
        };
        copy(head.dk, &scratch.dk, scores.width);
        copy(head.dv, &scratch.dv, scores.value_width);
    }

    /// Computes the `d q` of a block of queries, and adds its share of `d k` and `d v`.
    fn block(
        &self,
        [batch, head]: [usize; 2],
        block: Range<usize>,
        [k, v]: [Panel<S::Real>; 2],
        scratch: &mut Scratch<S::Real>,
    ) {
        let scores = &self.scores;
        let (keys, rows, width) = (scores.keys_of(&block), block.len(), scores.value_width);
        let Scratch { probabilities, dscores, dq, dk, dv, wide: [wide_q, wide_out, wide_dout] } = scratch;
        let add = Multiply { factor: <S::Real>::ONE, add: true, parallel: false };
        let set = Multiply { add: false, ..add };
        let square = Matrix::with_rows(keys);
        let q = panel(&scores.q, [batch, head], block.clone(), scores.width, wide_q);
        let out = panel(&self.out, [batch, head], block.clone(), width, wide_out);
        let dout = panel(&self.dout, [batch, head], block.clone(), width, wide_dout);
        scores.block([batch, head], block.clone(), q, k, probabilities);
        for (i, query) in block.enumerate() {
            let row = &mut probabilities[i * keys..(i + 1) * keys];
            let seen = scores.keys_of_query(query, keys);
            row[seen..].fill(<S::Real>::ZERO);
            probabilities_of(
                &mut row[..seen],
                self.logsumexp[(batch * scores.heads + head) * scores.queries + query],
            );
        }
        let values = Matrix::with_rows(width);
        gemm([keys, rows, width], (dv, values), (probabilities, square.transposed()), dout, add);
        gemm([rows, width, keys], (dscores, square), dout, (v.0, v.1.transposed()), set);
        for i in 0..rows {
            let here = i * keys..(i + 1) * keys;
            let dot = dot(row(out, i, width), row(dout, i, width));
            dscores_of(&probabilities[here.clone()], &mut dscores[here], dot, scores.scale);
        }
        let width = Matrix::with_rows(scores.width);
        gemm([rows, keys, scores.width], (dq, width), (dscores, square), k, set);
        gemm([keys, rows, scores.width], (dk, width), (dscores, square.transposed()), q, add);
    }
}

/// Returns a row of this width.
fn row<T>((elements, matrix): Panel<'_, T>, row: usize, width: usize) -> &[T] {
    let start = (matrix.offset + row as isize * matrix.rows) as usize;
    &elements[start..start + width]
}

vectorized! {
    /// Computes `e^(score - logsumexp)` in place, and zeros for a row whose keys are all masked. Normalises the row again: with a mask of
    /// huge finite numbers, the logsumexp has no digits left for the number of keys.
    fn probabilities_of<'a; T: Real>(row: &'a mut [T], logsumexp: T) {
        if logsumexp == T::NEG_INFINITY {
            return row.fill(T::ZERO);
        }
        row.iter_mut().for_each(|x| *x = (*x - logsumexp).exp());
        let factor = T::ONE / sum([&*row], |[x]| x);
        row.iter_mut().for_each(|x| *x = *x * factor);
    }

    fn dot<'a; T: Real>(x: &'a [T], y: &'a [T]) -> T {
        sum([x, y], |[x, y]| x * y)
    }

    /// Computes `scale·p·(d p - Σ out·d out)` in place of `d p`.
    fn dscores_of<'a; T: Real>(probabilities: &'a [T], dprobabilities: &'a mut [T], dot: T, scale: T) {
        for (dp, &p) in dprobabilities.iter_mut().zip(probabilities) {
            *dp = scale * p * (*dp - dot);
        }
    }
}
