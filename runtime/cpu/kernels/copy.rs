//! Moving elements: copies into a dense layout, and sums over microbatches.

use super::PARALLEL;
use crate::call::{Call, Source, rebased};
use crate::element::{with_float, with_width};
use crate::math::Float;
use crate::walk::Walk;
use program::layout::{Layout, Sizes};
use program::{LocalPart, View};
use rayon::prelude::*;

/// The number of elements that a task moves at a time.
const BLOCK: usize = 1 << 13;

/// Copies the operand's elements in the memory order of the result.
pub(super) fn run(mut call: Call) {
    let order = memory_order(&call.result_view(0).layout);
    with_width!(call.dtype().bytes(), T => {
        let Source { elements, layout } = call.source::<T>(0);
        let walk = Walk::new(&layout, &order);
        for_blocks(call.take_result::<T>(), |start, out| walk.load(elements, start, out));
    });
}

/// Copies this device's part of the operand.
pub(super) fn part(part: &LocalPart, mut call: Call) {
    let device = call.device;
    with_width!(call.dtype().bytes(), T => {
        let Source { elements, mut layout } = call.source::<T>(0);
        for (dim, axes) in &part.dims {
            let size = call.result_view(0).layout.sizes[*dim];
            let start = device.mesh.place(device.rank, axes) as i64 * size as i64;
            layout = layout.slice(*dim, start, 1, size);
        }
        let walk = Walk::row_major(&layout);
        for_blocks(call.take_result::<T>(), |start, out| walk.load(elements, start, out));
    });
}

/// `result += operand`, or `result = operand` in the first microbatch.
pub(super) fn accumulate(mut call: Call) {
    if !call.add {
        return run(call);
    }
    let order = memory_order(&call.result_view(0).layout);
    with_float!(call.dtype(), T => {
        let Source { elements, layout } = call.source::<T>(0);
        let walk = Walk::new(&layout, &order);
        for_blocks(call.take_result::<T>(), |start, out| add(&walk, elements, start, out));
    });
}

fn add<T: Float>(walk: &Walk, elements: &[T], start: usize, out: &mut [T]) {
    walk.for_runs(start, out.len(), |at, position, stride, count| {
        for (i, out) in out[at..at + count].iter_mut().enumerate() {
            let element = elements[(position as isize + i as isize * stride) as usize];
            *out = T::narrow(out.widen() + element.widen());
        }
    });
}

/// Copies the elements of a view, whose bytes are `bytes`, in row-major order. Needs no alignment.
pub fn gather(bytes: &[u8], view: &View, out: &mut [u8]) {
    let width = view.dtype.bytes() as usize;
    let walk = Walk::row_major(&rebased(&view.layout));
    walk.for_runs(0, out.len() / width, |at, position, stride, count| {
        for i in 0..count {
            let from = (position as isize + i as isize * stride) as usize * width;
            out[(at + i) * width..][..width].copy_from_slice(&bytes[from..from + width]);
        }
    });
}

/// Returns the dims of a result in memory order.
pub(super) fn memory_order(layout: &Layout) -> Sizes {
    layout.memory_order().unwrap_or_else(|| (0..layout.sizes.len()).collect())
}

/// Calls `block` for blocks of a result, in parallel if it is large, each with the index of its first element.
pub(super) fn for_blocks<T: Send>(result: &mut [T], block: impl Fn(usize, &mut [T]) + Sync) {
    if result.len() < PARALLEL {
        block(0, result);
    } else {
        result.par_chunks_mut(BLOCK).enumerate().for_each(|(i, out)| block(i * BLOCK, out));
    }
}
