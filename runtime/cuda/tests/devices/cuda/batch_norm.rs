//! Batch norm: planes that packs divide and others, few and many channels, one slice and several.

use super::writer::{FLOATS, Writer};
use ir::ops::batch_norm::{BatchNorm, BatchNormGrad, BatchStatistics};
use ir::{DType, Type, ValueId};

fn norms(w: &mut Writer, dtype: DType, x: ValueId, sizes: &[usize]) {
    w.op(BatchStatistics, &[x]);
    let channels = &sizes[1..2];
    let [mean, scale, bias] = [0, 1, 2].map(|_| w.floats(dtype, channels));
    let variance = w.numbers(dtype, channels, |x| x.abs() + 0.5);
    let eps = 1e-3.into();
    w.op(BatchNorm { eps }, &[x, mean, variance, scale, bias]);
    // Small, so that sums over a channel are within the range of a half type.
    let dy = w.numbers(dtype, sizes, |x| x / 64.0);
    w.op(BatchNormGrad { eps }, &[x, mean, variance, scale, dy]);
}

/// Channels of any shape.
pub(super) fn of_shapes(dtype: DType) -> Writer {
    let cases = [
        // In packs: several slices, one slice.
        &[40, 3, 16, 40][..],
        &[4, 5, 8, 6],
        // Planes that packs do not divide.
        &[9, 4, 7, 7],
        &[300, 3, 3, 5],
        &[4, 3, 3, 2, 3],
        // Channels side by side: several slices, one slice, and a channel of one element.
        &[300, 40],
        &[33, 70, 2],
        &[1, 3, 1, 1],
        // Enough channels for long slices.
        &[3, 600, 16],
    ];
    let mut w = Writer::default();
    for sizes in cases {
        let x = w.numbers(dtype, sizes, |x| x + 1.5);
        norms(&mut w, dtype, x, sizes);
    }
    w
}

#[test]
#[ignore = "needs a C++ compiler"]
fn channels_of_any_shape_are_normalized() {
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        of_shapes(dtype).check(order as u32);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_tensor_at_an_odd_place_is_normalized() {
    let mut w = Writer::default();
    for dtype in FLOATS {
        let x = w.floats(dtype, &[1 + 3 * 4 * 16]);
        let x = w.cut(x, 0, 1);
        let to = Type::of(dtype, &[3, 4, 16]);
        let x = w.built(|b| b.reshape(x, to.dims).expect("as many"));
        norms(&mut w, dtype, x, &[3, 4, 16]);
    }
    w.check(2);
}
