//! The gradient of attention, recomputing the probabilities from their logsumexp (Dao et al., arXiv 2205.14135).

use super::attention::{QUERIES, Scores, rows_by_head};
use crate::cpu::call::{Call, Source};
use crate::cpu::element::with_float;
use crate::cpu::gemm::{Matrix, Multiply, gemm};
use crate::cpu::math::Real;
use crate::cpu::simd::{sum, vectorized};
use ir::ops::attention::AttentionGrad;
use rayon::prelude::*;
use std::ops::Range;

/// What the gradient reads.
struct Gradient<'a, T> {
    scores: Scores<'a, T>,
    out: Source<'a, T>,
    logsumexp: &'a [T],
    dout: Source<'a, T>,
}

/// The gradients of one key-value head and of its query heads.
struct Head<'a, T> {
    /// For each query head its rows.
    dq: Vec<Vec<&'a mut [T]>>,
    dk: Vec<&'a mut [T]>,
    dv: Vec<&'a mut [T]>,
}

pub(super) fn run(op: &AttentionGrad, mut call: Call) {
    with_float!(call.dtype(), T => {
        let count = call.operands.len();
        let scores = Scores::<T>::of(&call, op.scale.get(), op.causal, count == 7);
        let [out, dout] = [count - 3, count - 1].map(|index| call.source::<T>(index));
        let logsumexp = call.dense::<T>(count - 2);
        let [dq, dk, dv] = call.take_results().map(bytemuck::cast_slice_mut::<u8, T>);
        let groups = scores.heads / scores.group.max(1);
        let mut dq = rows_by_head(dq, scores.width, scores.queries, scores.heads).into_iter();
        let dk = rows_by_head(dk, scores.width, scores.keys, groups);
        let dv = rows_by_head(dv, scores.value_width, scores.keys, groups);
        let gradient = Gradient { scores, out, logsumexp, dout };
        let group = gradient.scores.group;
        let heads = dk.into_iter().zip(dv).map(|(dk, dv)| Head { dq: dq.by_ref().take(group).collect(), dk, dv });
        let heads: Vec<Head<T>> = heads.collect();
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
}

impl<T: Real> Gradient<'_, T> {
    fn head(&self, batch: usize, group: usize, head: Head<T>) {
        let scores = &self.scores;
        let queries = QUERIES.min(scores.queries);
        let zeros = |len: usize| vec![T::ZERO; len];
        let mut scratch = Scratch {
            probabilities: zeros(queries * scores.keys),
            dscores: zeros(queries * scores.keys),
            dq: zeros(queries * scores.width),
            dk: zeros(scores.keys * scores.width),
            dv: zeros(scores.keys * scores.value_width),
        };
        for (member, mut dq) in head.dq.into_iter().enumerate() {
            for start in (0..scores.queries).step_by(QUERIES) {
                let block = start..(start + QUERIES).min(scores.queries);
                self.block(batch, group * scores.group + member, block.clone(), &mut scratch);
                let rows = scratch.dq.chunks_exact(scores.width);
                dq[block].iter_mut().zip(rows).for_each(|(to, from)| to.copy_from_slice(from));
            }
        }
        let copy = |rows: Vec<&mut [T]>, from: &[T], width: usize| {
            rows.into_iter()
                .zip(from.chunks_exact(width.max(1)))
                .for_each(|(to, from)| to.copy_from_slice(from));
        };
        copy(head.dk, &scratch.dk, scores.width);
        copy(head.dv, &scratch.dv, scores.value_width);
    }

    /// A block of queries: its `d q`, and its share of `d k` and `d v`.
    fn block(&self, batch: usize, head: usize, block: Range<usize>, scratch: &mut Scratch<T>) {
        let scores = &self.scores;
        let (keys, rows) = (scores.keys_of(&block), block.len());
        let Scratch { probabilities, dscores, dq, dk, dv } = scratch;
        let add = Multiply { factor: T::ONE, add: true, parallel: false };
        let set = Multiply { add: false, ..add };
        let square = Matrix::with_rows(keys);
        let key_head = head / scores.group;
        let dout = (self.dout.elements, Scores::matrix(&self.dout, batch, head, block.start));
        scores.block(batch, head, block.clone(), probabilities);
        for (i, query) in block.clone().enumerate() {
            let row = &mut probabilities[i * keys..(i + 1) * keys];
            let seen = scores.keys_of_query(query, keys);
            row[seen..].fill(T::ZERO);
            probabilities_of(
                &mut row[..seen],
                self.logsumexp[(batch * scores.heads + head) * scores.queries + query],
            );
        }
        let values = (scores.v.elements, Scores::matrix(&scores.v, batch, key_head, 0).transposed());
        let width = scores.value_width;
        gemm(
            [keys, rows, width],
            (dv, Matrix::with_rows(width)),
            (probabilities, square.transposed()),
            dout,
            add,
        );
        gemm([rows, width, keys], (dscores, square), dout, values, set);
        for (i, query) in block.clone().enumerate() {
            let here = i * keys..(i + 1) * keys;
            let dot = dot(self.row(&self.out, batch, head, query), self.row(&self.dout, batch, head, query));
            dscores_of(&probabilities[here.clone()], &mut dscores[here], dot, scores.scale);
        }
        let width = Matrix::with_rows(scores.width);
        let k = (scores.k.elements, Scores::matrix(&scores.k, batch, key_head, 0));
        let q = (scores.q.elements, Scores::matrix(&scores.q, batch, head, block.start));
        gemm([rows, keys, scores.width], (dq, width), (dscores, square), k, set);
        gemm([keys, rows, scores.width], (dk, width), (dscores, square.transposed()), q, add);
    }

    /// A row of a tensor of the values' width.
    fn row<'s>(&self, source: &'s Source<T>, batch: usize, head: usize, query: usize) -> &'s [T] {
        let start = Scores::matrix(source, batch, head, query).offset as usize;
        &source.elements[start..start + self.scores.value_width]
    }
}

vectorized! {
    /// `e^(score - logsumexp)` in place; zeros for a row that nothing was kept of. Normalised again: beside a mask
    /// of a huge finite number a logsumexp has no digits left for the number of keys.
    fn probabilities_of<'a; T: Real>(row: &'a mut [T], logsumexp: T) {
        if logsumexp == T::NEG_INFINITY {
            return row.fill(T::ZERO);
        }
        row.iter_mut().for_each(|x| *x = (*x - logsumexp).exp());
        let factor = T::ONE / sum(row.len(), |i| row[i]);
        row.iter_mut().for_each(|x| *x = *x * factor);
    }
}

vectorized! {
    fn dot<'a; T: Real>(x: &'a [T], y: &'a [T]) -> T {
        let y = &y[..x.len()];
        sum(x.len(), |i| x[i] * y[i])
    }
}

vectorized! {
    /// `scale·p·(d p - Σ out·d out)`, where `d p` was.
    fn dscores_of<'a; T: Real>(probabilities: &'a [T], dprobabilities: &'a mut [T], dot: T, scale: T) {
        for (dp, &p) in dprobabilities.iter_mut().zip(probabilities) {
            *dp = scale * p * (*dp - dot);
        }
    }
}
