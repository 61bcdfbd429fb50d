//! Concatenation and padding.

use crate::call::Call;
use crate::element::with_width;
use crate::walk::Walk;
use bytemuck::Pod;
use ir::Tensor;
use ir::ops::shape::{Concat, Pad};
use program::layout::Layout;
use rayon::prelude::*;

/// A dense tensor as `[outer, size, inner]` around one dim.
struct DimSplit {
    size: usize,
    inner: usize,
}

fn cut(layout: &Layout, dim: u32) -> DimSplit {
    let dim = dim as usize;
    DimSplit { size: layout.sizes[dim], inner: layout.sizes[dim + 1..].iter().product() }
}

pub(super) fn concat(concat: &Concat, mut call: Call) {
    let DimSplit { size, inner } = cut(&call.result_view(0).layout, concat.dim);
    with_width!(call.dtype().bytes(), T => {
        let operands: Vec<_> = (0..call.operands.len()).map(|i| call.source::<T>(i)).collect();
        let result = call.take_result::<T>();
        let mut start = 0;
        for operand in operands {
            let count = cut(&operand.layout, concat.dim).size * inner;
            place(result, size * inner, start, count, operand.elements, &Walk::row_major(&operand.layout));
            start += count;
        }
    });
}

pub(super) fn pad(pad: &Pad, mut call: Call) {
    let DimSplit { size, inner } = cut(&call.result_view(0).layout, pad.dim);
    let value = Tensor::splat(call.dtype(), vec![], pad.value.get()).to_bytes();
    with_width!(call.dtype().bytes(), T => {
        let operand = call.source::<T>(0);
        let result = call.take_result::<T>();
        result.fill(bytemuck::pod_read_unaligned(&value));
        let count = cut(&operand.layout, pad.dim).size * inner;
        let start = pad.before as usize * inner;
        place(result, size * inner, start, count, operand.elements, &Walk::row_major(&operand.layout));
    });
}

/// Writes `count` elements at `start` of each `stride` elements of the result.
fn place<T: Pod + Send + Sync>(
    result: &mut [T],
    stride: usize,
    start: usize,
    count: usize,
    elements: &[T],
    walk: &Walk,
) {
    if count > 0 {
        let outer = result.par_chunks_exact_mut(stride).enumerate();
        outer.for_each(|(i, out)| walk.load(elements, i * count, &mut out[start..start + count]));
    }
}
