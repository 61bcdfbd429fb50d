//! Scaled dot-product attention, one head at a time, in blocks of queries whose scores stay in cache. f16 and bf16 are converted to f32 for
//! a whole head (keys and values) or for a block (queries).

use crate::call::{Call, Source, rebased};
use crate::element::{Element, with_float};
use crate::gemm::{Matrix, Multiply, gemm};
use crate::math::{Float, Real};
use crate::simd::{max, sum, vectorized};
use crate::storage::widen;
use ir::DType;
use ir::ops::attention::Attention;
use program::layout::Layout;
use rayon::prelude::*;
use std::ops::Range;

/// The number of queries of a block.
pub(super) const QUERIES: usize = 64;

/// The part that forward and gradient share: the scores of queries against keys.
pub(super) struct Scores<'a, S: Float> {
    pub(super) q: Source<'a, S>,
    pub(super) k: Source<'a, S>,
    pub(super) v: Source<'a, S>,
    mask: Option<Mask<'a>>,
    pub(super) scale: S::Real,
    causal: bool,
    pub(super) heads: usize,
    /// The number of query heads that share a key-value head.
    pub(super) group: usize,
    pub(super) queries: usize,
    /// The place of the first query among all queries.
    first: usize,
    pub(super) keys: usize,
    /// The number of features of queries and keys.
    pub(super) width: usize,
    /// The number of features of values.
    pub(super) value_width: usize,
}

/// A mask, broadcast to `[b, h, s, t]`.
struct Mask<'a> {
    bytes: &'a [u8],
    dtype: DType,
    layout: Layout,
}

/// Rows of one head in the form that multiplications read.
pub(super) type Panel<'p, T> = (&'p [T], Matrix);

/// Returns rows of one head of a tensor of this width: in place, or converted to f32 in scratch.
pub(super) fn panel<'p, S: Float>(
    source: &Source<'p, S>,
    [batch, head]: [usize; 2],
    rows: Range<usize>,
    width: usize,
    scratch: &'p mut Vec<S::Real>,
) -> Panel<'p, S::Real> {
    let matrix = matrix(source, batch, head, rows.start);
    if let Some(reals) = S::as_reals(source.elements) {
        return (reals, matrix);
    }
    scratch.resize(rows.len() * width, <S::Real>::ZERO);
    for (i, row) in scratch.chunks_exact_mut(width.max(1)).enumerate() {
        let start = (matrix.offset + i as isize * matrix.rows) as usize;
        widen(&source.elements[start..start + width], row);
    }
    (scratch, Matrix::with_rows(width))
}

/// Returns the matrix of one head's rows from row `row` on.
fn matrix<S>(source: &Source<S>, batch: usize, head: usize, row: usize) -> Matrix {
    let Layout { strides, offset, .. } = &source.layout;
    let at = [batch, head, row].into_iter().zip(strides).map(|(index, stride)| index as isize * stride);
    Matrix { offset: offset + at.sum::<isize>(), rows: strides[2], columns: 1 }
}

impl<'a, S: Float> Scores<'a, S> {
    /// Reads operands `q, k, v` and, if `masked`, a mask.
    pub(super) fn of(call: &Call<'a>, scale: f64, causal: bool, masked: bool) -> Self {
        let [q, k, v] = [0, 1, 2].map(|index| call.source::<S>(index));
        let [batch, heads, queries, width] = [0, 1, 2, 3].map(|dim| q.layout.sizes[dim]);
        let [groups, keys] = [1, 2].map(|dim| k.layout.sizes[dim]);
        let mask = masked.then(|| {
            let view = call.operand_view(3);
            let bytes = call.operands[3].expect("a mask is never overwritten");
            let layout = rebased(&view.layout).broadcast(&[batch, heads, queries, keys]);
            Mask { bytes, dtype: view.dtype, layout }
        });
        let (group, value_width) = (heads / groups.max(1), v.layout.sizes[3]);
        let (scale, first) = (<S::Real>::of(scale), call.operand_span(0, 2).start as usize);
        Self { q, k, v, mask, scale, causal, heads, group, queries, first, keys, width, value_width }
    }

    /// Returns the number of keys that a block of queries sees.
    pub(super) fn keys_of(&self, block: &Range<usize>) -> usize {
        if self.causal { (self.first + block.end).min(self.keys) } else { self.keys }
    }

    /// Returns the number of keys that a query sees, of the keys that its block sees.
    pub(super) fn keys_of_query(&self, query: usize, keys: usize) -> usize {
        if self.causal { (self.first + query + 1).min(keys) } else { keys }
    }

    /// Computes the scaled and masked scores of a block of queries, row-major, each row of length `keys_of(block)`. Scores of keys that a
    /// query does not see are undefined.
    pub(super) fn block(
        &self,
        [batch, head]: [usize; 2],
        block: Range<usize>,
        q: Panel<S::Real>,
        (k, k_matrix): Panel<S::Real>,
        scores: &mut [S::Real],
    ) {
        let keys = self.keys_of(&block);
        gemm(
            [block.len(), self.width, keys],
            (&mut *scores, Matrix::with_rows(keys)),
            q,
            (k, k_matrix.transposed()),
            Multiply { factor: self.scale, add: false, parallel: false },
        );
        if let Some(mask) = &self.mask
            && keys > 0
        {
            for (query, row) in block.zip(scores.chunks_exact_mut(keys)) {
                mask.apply(batch, head, query, row);
            }
        }
    }
}

impl Mask<'_> {
    fn apply<T: Real>(&self, batch: usize, head: usize, query: usize, row: &mut [T]) {
        let Layout { strides, offset, .. } = &self.layout;
        let at = [batch, head, query].into_iter().zip(strides).map(|(index, stride)| index as isize * stride);
        let (start, step) = (offset + at.sum::<isize>(), strides[3]);
        let position = |key: usize| (start + key as isize * step) as usize;
        if self.dtype == DType::Bool {
            let kept = self.bytes;
            row.iter_mut()
                .enumerate()
                .filter(|(key, _)| kept[position(*key)] == 0)
                .for_each(|(_, x)| *x = T::NEG_INFINITY);
        } else {
            with_float!(self.dtype, M => {
                let added = bytemuck::cast_slice::<u8, M>(self.bytes);
                row.iter_mut().enumerate().for_each(|(key, x)| *x = *x + T::of(added[position(key)].to_f64()));
            });
        }
    }
}

/// Returns the rows of each (batch, head) in a result with the layout `[b, s, h, width]`.
pub(super) fn rows_by_head<T>(
    result: &mut [T],
    width: usize,
    rows: usize,
    heads: usize,
) -> Vec<Vec<&mut [T]>> {
    let batches = result.len() / (width * rows * heads).max(1);
    let mut by_head: Vec<Vec<&mut [T]>> = (0..batches * heads).map(|_| Vec::with_capacity(rows)).collect();
    for (index, row) in result.chunks_exact_mut(width.max(1)).enumerate() {
        by_head[index / (rows * heads) * heads + index % heads].push(row);
    }
    by_head
}

pub(super) fn run(op: &Attention, mut call: Call) {
    with_float!(call.operand_view(0).dtype, S => {
        let masked = call.operands.len() == 4;
        let scores = Scores::<S>::of(&call, op.scale.get(), op.causal, masked);
        let [out, logsumexp] = call.take_results();
        let logsumexp = bytemuck::cast_slice_mut::<u8, <S as Float>::Real>(logsumexp);
        let rows = rows_by_head(bytemuck::cast_slice_mut::<u8, S>(out), scores.value_width, scores.queries, scores.heads);
        let heads = rows.into_par_iter().zip(logsumexp.par_chunks_exact_mut(scores.queries)).enumerate();
        heads.for_each(|(index, (out, logsumexp))| {
            run_head(&scores, [index / scores.heads, index % scores.heads], out, logsumexp);
        });
    });
}

fn run_head<S: Float>(
    scores: &Scores<S>,
    [batch, head]: [usize; 2],
    mut out: Vec<&mut [S]>,
    logsumexp: &mut [S::Real],
) {
    let zero = <S::Real>::ZERO;
    let width = scores.value_width;
    let mut weights = vec![zero; QUERIES.min(scores.queries) * scores.keys];
    let mut product = vec![zero; QUERIES.min(scores.queries) * width];
    let [mut wide_q, mut wide_k, mut wide_v] = [vec![], vec![], vec![]];
    let shared = [batch, head / scores.group];
    let k = panel(&scores.k, shared, 0..scores.keys, scores.width, &mut wide_k);
    let v = panel(&scores.v, shared, 0..scores.keys, width, &mut wide_v);
    for start in (0..scores.queries).step_by(QUERIES) {
        let block = start..(start + QUERIES).min(scores.queries);
        let keys = scores.keys_of(&block);
        let q = panel(&scores.q, [batch, head], block.clone(), scores.width, &mut wide_q);
        scores.block([batch, head], block.clone(), q, k, &mut weights);
        let mut factors = [zero; QUERIES];
        for (i, query) in block.clone().enumerate() {
            let row = &mut weights[i * keys..(i + 1) * keys];
            let seen = scores.keys_of_query(query, keys);
            row[seen..].fill(zero);
            let (largest, total) = exponentials(&mut row[..seen]);
            // A row whose keys are all masked gives zeros.
            let empty = largest == <S::Real>::NEG_INFINITY;
            factors[i] = if empty { zero } else { <S::Real>::ONE / total };
            logsumexp[query] = if empty { largest } else { largest + total.ln() };
        }
        gemm(
            [block.len(), keys, width],
            (&mut product, Matrix::with_rows(width)),
            (&weights, Matrix::with_rows(keys)),
            v,
            Multiply { factor: <S::Real>::ONE, add: false, parallel: false },
        );
        for (i, query) in block.enumerate() {
            let product = &product[i * width..(i + 1) * width];
            out[query].iter_mut().zip(product).for_each(|(out, &x)| *out = S::narrow(x * factors[i]));
        }
    }
}

vectorized! {
    /// Computes `e^(x - largest)` in place, and returns the largest element and the sum. All elements are zeros if the largest is -∞.
    fn exponentials<'a; T: Real>(row: &'a mut [T]) -> (T, T) {
        let largest = max(row);
        if largest == T::NEG_INFINITY && row.iter().all(|x| !x.is_nan()) {
            row.fill(T::ZERO);
            return (largest, T::ZERO);
        }
        row.iter_mut().for_each(|x| *x = (*x - largest).exp());
        (largest, sum([&*row], |[x]| x))
    }
}
