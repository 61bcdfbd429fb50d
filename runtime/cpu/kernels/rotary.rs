//! Rotary position embedding.

use super::PARALLEL;
use super::copy::memory_order;
use crate::cpu::call::{Call, rebased};
use crate::cpu::element::{Element, with_float};
use crate::cpu::math::Real;
use crate::cpu::walk::Walk;
use crate::layout::Layout;
use ir::ops::rotary::Rotary;
use rayon::prelude::*;

pub(super) fn run(rotary: &Rotary, mut call: Call) {
    let layout = &call.result_view(0).layout;
    let order = memory_order(layout);
    let width = layout.sizes.last().copied().unwrap_or(0);
    let mut pairs = layout.sizes.clone();
    pairs.last_mut().into_iter().for_each(|width| *width /= 2);
    let walk = |index: usize, layout: &Layout| {
        let sizes = if index == 0 { &call.result_view(0).layout.sizes } else { &pairs };
        Walk::new(&layout.broadcast(sizes), &order)
    };
    let [x_walk, cos_walk, sin_walk] =
        [0, 1, 2].map(|index| walk(index, &rebased(&call.operand_view(index).layout)));
    with_float!(call.dtype(), T => {
        let x = call.source::<T>(0).elements;
        let [cos, sin] = [1, 2].map(|index| as_type::<T>(&call, index));
        let rows = call.take_result::<T>().par_chunks_exact_mut(width).enumerate();
        rows.with_min_len((PARALLEL / 8 / width).max(1)).for_each_init(
            || vec![T::ZERO; 2 * width],
            |scratch, (row, out)| {
                let (row_x, tables) = scratch.split_at_mut(width);
                let (row_cos, row_sin) = tables.split_at_mut(width / 2);
                x_walk.load(x, row * width, row_x);
                cos_walk.load(&cos, row * width / 2, row_cos);
                sin_walk.load(&sin, row * width / 2, row_sin);
                rotate(rotary.interleaved, row_x, row_cos, row_sin, out);
            },
        );
    });
}

/// A table in the type of `x`, which it may not have.
fn as_type<'a, T: Real>(call: &Call<'a>, index: usize) -> std::borrow::Cow<'a, [T]> {
    if call.operand_view(index).dtype == call.dtype() {
        return call.source::<T>(index).elements.into();
    }
    with_float!(call.operand_view(index).dtype, U => {
        call.source::<U>(index).elements.iter().map(|&x| T::of(x.to_f64())).collect()
    })
}

/// `(a, b)` becomes `(a·cos - b·sin, b·cos + a·sin)`.
fn rotate<T: Real>(interleaved: bool, x: &[T], cos: &[T], sin: &[T], out: &mut [T]) {
    let half = cos.len();
    for i in 0..half {
        let (first, second) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
        let (a, b) = (x[first], x[second]);
        out[first] = a * cos[i] - b * sin[i];
        out[second] = b * cos[i] + a * sin[i];
    }
}
