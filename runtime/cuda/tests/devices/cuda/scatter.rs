//! Writing at indices: every kind of update, few and many in one place, rows of any width.

use super::writer::Writer;
use ir::ops::scatter::{ScatterElements, ScatterKind, ScatterNd};
use ir::{DType, ValueId};

const KINDS: [ScatterKind; 5] =
    [ScatterKind::Set, ScatterKind::Add, ScatterKind::Mul, ScatterKind::Max, ScatterKind::Min];
const TYPES: [DType; 8] =
    [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I16, DType::I8, DType::U8];

/// Floats near 1, so that products of many stay in the range of a half type.
fn made(w: &mut Writer, dtype: DType, sizes: &[usize]) -> ValueId {
    match dtype {
        DType::U8 => w.integers(dtype, sizes, 0..200),
        dtype if dtype.is_float() => w.numbers(dtype, sizes, |x| 1.0 + x / 64.0),
        dtype => w.integers(dtype, sizes, -100..100),
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn updates_of_every_kind_and_type() {
    for (order, kind) in KINDS.into_iter().enumerate() {
        let mut w = Writer::default();
        for (i, dtype) in TYPES.into_iter().enumerate() {
            let (count, width) = [(1, 4), (63, 16), (300, 3)][(i + order) % 3];
            let data = made(&mut w, dtype, &[2, 3, width]);
            let updates = made(&mut w, dtype, &[count, width]);
            let places = w.integers(DType::I64, &[count, 2], -4..4);
            w.op(ScatterNd { batch_dims: 0, kind }, &[data, places, updates]);
            let updates = made(&mut w, dtype, &[2, count, width]);
            let places = w.integers(DType::I32, &[2, count, 1], -4..4);
            w.op(ScatterNd { batch_dims: 1, kind }, &[data, places, updates]);
            let places = w.integers(DType::I32, &[2, count, width], -4..4);
            w.op(ScatterElements { dim: 1, kind }, &[data, places, updates]);
        }
        w.check(order as u32);
    }
}

/// Of updates with one place the last stays, also where several blocks sorted them.
#[test]
#[ignore = "needs a C++ compiler"]
fn many_updates_are_taken_in_their_order() {
    let mut w = Writer::default();
    for (kind, count) in [(ScatterKind::Set, 9000), (ScatterKind::Max, 5000), (ScatterKind::Mul, 4097)] {
        for dtype in [DType::F32, DType::I32] {
            let (data, updates) = (made(&mut w, dtype, &[7, 2]), made(&mut w, dtype, &[count, 2]));
            let places = w.integers(DType::I64, &[count, 1], -8..9);
            w.op(ScatterNd { batch_dims: 0, kind }, &[data, places, updates]);
        }
    }
    let data = w.integers(DType::I64, &[3], 0..5);
    let (places, updates) = (w.integers(DType::I64, &[0], 0..3), w.integers(DType::I64, &[0], 0..3));
    w.op(ScatterElements { dim: 0, kind: ScatterKind::Set }, &[data, places, updates]);
    w.check(2);
}
