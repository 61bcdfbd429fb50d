//! Top-k: the places of the first elements of each row in their order along a dim.

use crate::call::Call;
use crate::element::{Element, with_float, with_integer};
use ir::ops::ranking::TopK;
use rayon::prelude::*;

pub(super) fn top_k(op: &TopK, mut call: Call) {
    let sizes = &call.operand_view(0).layout.sizes;
    let size = sizes[op.dim as usize];
    let inner: usize = sizes[op.dim as usize + 1..].iter().product();
    let dtype = call.operand_view(0).dtype;
    if dtype.is_float() {
        with_float!(dtype, T => places(op, call.dense::<T>(0), call.take_result(), size, inner));
    } else {
        with_integer!(dtype, T => places(op, call.dense::<T>(0), call.take_result(), size, inner));
    }
}

/// Writes the places for rows whose `size` elements are `inner` apart.
fn places<T: Element>(op: &TopK, x: &[T], out: &mut [i64], size: usize, inner: usize) {
    let count = op.count as usize;
    out.par_chunks_exact_mut((count * inner).max(1)).enumerate().for_each(|(outer, out)| {
        let x = &x[outer * size * inner..][..size * inner];
        for column in 0..inner {
            let places = op.of_row(size, |i| x[i * inner + column]);
            places.into_iter().enumerate().for_each(|(k, place)| out[k * inner + column] = place as i64);
        }
    });
}
