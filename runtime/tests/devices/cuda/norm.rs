//! Norms: rows of a part of a warp, of a warp, of a block, and longer than registers hold; gradients summed over rows that
//! a block goes through in one round and in several.

use super::writer::{FLOATS, Writer};
use ir::ops::norm::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad};
use ir::{DType, Type, ValueId};

/// Both norms of `x` and their gradients.
fn norms(w: &mut Writer, dtype: DType, x: ValueId, sizes: &[usize]) {
    let columns = &sizes[sizes.len() - 1..];
    let [scale, bias] = [0, 1].map(|_| w.floats(dtype, columns));
    let dy = w.numbers(dtype, sizes, |x| x / 16.0);
    let layer = w.op(LayerNorm { eps: 1e-5.into() }, &[x, scale, bias]);
    w.op(LayerNormGrad, &[x, scale, layer[1], layer[2], dy]);
    let rms = w.op(RmsNorm { eps: 1e-6.into() }, &[x, scale]);
    w.op(RmsNormGrad, &[x, scale, rms[1], dy]);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn rows_of_any_length_are_normalized() {
    let cases = [
        // Held: by a part of a warp, by a warp, by two and more.
        &[3, 5, 6][..],
        &[3, 1],
        &[300, 64],
        &[37, 101],
        &[21, 768],
        &[9, 1600],
        &[2, 2, 2048],
        &[3, 6001],
        // Not held: by the gradient, by either.
        &[9, 9000],
        &[3, 33000],
        &[2, 33001],
    ];
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        for sizes in cases {
            let x = w.numbers(dtype, sizes, |x| x + 1.5);
            norms(&mut w, dtype, x, sizes);
        }
        w.check(order as u32);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn blocks_go_through_many_rows() {
    let mut w = Writer::default();
    for (dtype, sizes) in [(DType::F32, [70_001, 8]), (DType::BF16, [140_000, 3])] {
        let x = w.numbers(dtype, &sizes, |x| x + 1.5);
        norms(&mut w, dtype, x, &sizes);
    }
    w.check(3);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn rows_at_odd_places_and_no_rows() {
    let mut w = Writer::default();
    for dtype in FLOATS {
        let x = w.floats(dtype, &[1 + 5 * 64]);
        let x = w.cut(x, 0, 1);
        let to = Type::of(dtype, &[5, 64]);
        let x = w.built(|b| b.reshape(x, to.dims).expect("as many"));
        norms(&mut w, dtype, x, &[5, 64]);
        let x = w.floats(dtype, &[0, 8]);
        norms(&mut w, dtype, x, &[0, 8]);
    }
    w.check(1);
}
