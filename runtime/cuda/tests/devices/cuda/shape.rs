//! Tensors laid together, padded and summed along a dim, in words of several widths, in chunks and whole.

use super::writer::{FLOATS, Writer};
use ir::ops::reduce::CumulativeSum;
use ir::ops::shape::{Concat, Pad};
use ir::{DType, Type};

const TYPES: [DType; 6] = [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I8];

fn made(w: &mut Writer, dtype: DType, sizes: &[usize]) -> ir::ValueId {
    if dtype.is_float() { w.floats(dtype, sizes) } else { w.integers(dtype, sizes, -100..100) }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn pieces_of_any_width_are_laid_together() {
    let mut w = Writer::default();
    for dtype in TYPES {
        for dim in 0..3 {
            let sizes = |size: usize| {
                let mut sizes = [4, 6, 16];
                sizes[dim] = size;
                sizes
            };
            let [wide, empty, odd] = [8, 0, 3].map(|size| made(&mut w, dtype, &sizes(size)));
            let mut turned = sizes(16);
            turned.reverse();
            let turned = made(&mut w, dtype, &turned);
            let turned = w.transposed(turned, &[2, 1, 0]);
            let concat = Concat { dim: dim as u32 };
            w.op(concat.clone(), &[wide, empty, turned]);
            w.op(concat, &[odd, wide]);
        }
    }
    w.check(1);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_tensor_is_padded_on_all_sides() {
    let mut w = Writer::default();
    for dtype in TYPES {
        for (dim, before, after) in [(0, 1, 0), (1, 0, 3), (2, 8, 16), (2, 4, 4), (2, 1, 2), (2, 0, 0)] {
            for size in [16, 5, 0] {
                let mut sizes = [3, 4, size];
                let x = made(&mut w, dtype, &sizes);
                sizes[dim] += before + after;
                let pad = Pad { dim: dim as u32, before: before as u64, value: (-3.0).into() };
                let to = Type::of(dtype, &sizes.map(|size| size as u64));
                w.typed(pad, &[x], &[to]);
            }
        }
        let x = made(&mut w, dtype, &[7, 16]);
        let x = w.transposed(x, &[1, 0]);
        let pad = Pad { dim: 1, before: 1, value: 1.0.into() };
        w.typed(pad, &[x], &[Type::of(dtype, &[16, 8])]);
    }
    w.check(3);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn running_sums_of_short_and_long_rows() {
    let ways = [(false, false), (true, false), (false, true), (true, true)];
    // By threads and by blocks, whole and in chunks.
    let cases = [
        (vec![3, 5, 4], 1),
        (vec![70, 20], 1),
        (vec![2, 1000], 1),
        (vec![2, 5000], 1),
        (vec![3, 200, 5], 1),
        (vec![64, 7], 0),
        (vec![66, 7], 0),
    ];
    for (order, dtype) in FLOATS.into_iter().chain([DType::I64, DType::I8, DType::U16]).enumerate() {
        let mut w = Writer::default();
        for (i, (sizes, dim)) in cases.iter().enumerate() {
            // Small, so that the sum of a long row is within the range of a half type.
            let x = if dtype.is_float() {
                w.numbers(dtype, sizes, |x| x / 16.0)
            } else {
                w.integers(dtype, sizes, 0..100)
            };
            for (exclusive, reverse) in [ways[i % 4], ways[(i + 1) % 4]] {
                w.op(CumulativeSum { dim: *dim, exclusive, reverse }, &[x]);
            }
        }
        w.check(order as u32);
    }
}

/// 70000 rows leave no thread idle: each takes a row.
#[test]
#[ignore = "needs a C++ compiler"]
fn running_sums_of_many_rows() {
    let mut w = Writer::default();
    let x = w.floats(DType::F32, &[2, 100, 35_000]);
    w.op(CumulativeSum { dim: 1, exclusive: false, reverse: true }, &[x]);
    w.check(0);
}
