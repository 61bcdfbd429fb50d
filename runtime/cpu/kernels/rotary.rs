//! Rotary position embedding.

use super::PARALLEL;
use super::copy::memory_order;
use crate::call::{Call, rebased};
use crate::element::with_float;
use crate::math::{Float, Real};
use crate::storage::Scratch;
use crate::walk::Walk;
use ir::ops::rotary::Rotary;
use rayon::prelude::*;

pub(super) fn run(rotary: &Rotary, mut call: Call) {
    let layout = &call.result_view(0).layout;
    let order = memory_order(layout);
    let width = layout.sizes.last().copied().unwrap_or(0);
    let mut pairs = layout.sizes.clone();
    if let Some(width) = pairs.last_mut() {
        *width /= 2;
    }
    let walk = |index: usize| {
        let sizes = if index == 0 { &call.result_view(0).layout.sizes } else { &pairs };
        Walk::new(&rebased(&call.operand_view(index).layout).broadcast(sizes), &order)
    };
    let [x_walk, cos_walk, sin_walk] = [0, 1, 2].map(walk);
    with_float!(call.operand_view(1).dtype, U => {
        let [cos, sin] = [1, 2].map(|index| call.source::<U>(index).elements);
        let tables = Tables { cos, cos_walk, sin, sin_walk };
        with_float!(call.dtype(), S => {
            let x = call.source::<S>(0).elements;
            let rows = call.take_result::<S>().par_chunks_exact_mut(width).enumerate();
            rows.with_min_len((PARALLEL / 8 / width).max(1)).for_each_init(
                || Row::<S, U>::new(width),
                |scratch, (row, out)| {
                    x_walk.load(x, row * width, &mut scratch.x);
                    scratch.rotate(rotary.interleaved, &tables, row, out);
                },
            );
        });
    });
}

/// The tables of cosines and sines, of any float type, broadcast over the rows.
struct Tables<'a, U> {
    cos: &'a [U],
    cos_walk: Walk,
    sin: &'a [U],
    sin_walk: Walk,
}

/// Scratch for a row of each operand, in its own type and in the type in which it is computed.
struct Row<S: Float, U: Float> {
    x: Vec<S>,
    table: Vec<U>,
    wide_x: Scratch<S::Real>,
    wide_out: Scratch<S::Real>,
    cos: Vec<S::Real>,
    sin: Vec<S::Real>,
}

impl<S: Float, U: Float> Row<S, U> {
    fn new(width: usize) -> Self {
        let table = || vec![<S::Real>::ZERO; width / 2];
        let (x, own) = (vec![S::from_i64(0); width], vec![U::from_i64(0); width / 2]);
        Self { x, table: own, wide_x: Scratch::new(), wide_out: Scratch::new(), cos: table(), sin: table() }
    }

    /// Rotates the row that was loaded into `x`.
    fn rotate(&mut self, interleaved: bool, tables: &Tables<U>, row: usize, out: &mut [S]) {
        let start = row * self.table.len();
        let pairs =
            [(tables.cos, &tables.cos_walk, &mut self.cos), (tables.sin, &tables.sin_walk, &mut self.sin)];
        for (elements, walk, wide) in pairs {
            walk.load(elements, start, &mut self.table);
            let numbers = self.table.iter().map(|x| <S::Real>::of(x.to_f64()));
            wide.iter_mut().zip(numbers).for_each(|(wide, x)| *wide = x);
        }
        let x = self.wide_x.read(&self.x);
        self.wide_out.write(out, |out| rotate(interleaved, x, &self.cos, &self.sin, out));
    }
}

/// Replaces each pair `(a, b)` by `(a·cos - b·sin, b·cos + a·sin)`.
fn rotate<T: Real>(interleaved: bool, x: &[T], cos: &[T], sin: &[T], out: &mut [T]) {
    let half = cos.len();
    for i in 0..half {
        let (first, second) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
        let (a, b) = (x[first], x[second]);
        out[first] = a * cos[i] - b * sin[i];
        out[second] = b * cos[i] + a * sin[i];
    }
}
