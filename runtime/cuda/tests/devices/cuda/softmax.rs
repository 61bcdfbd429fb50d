//! Softmax, its logarithm and its gradient: along the last dim and along others, held in registers and not, in place.

use super::writer::{FLOATS, Writer};
use ir::ops::softmax::{LogSoftmax, Softmax, SoftmaxGrad};
use ir::{DType, Tensor};

/// All along a dim: in places of their own, or in those of operands that die.
fn softmaxes(w: &mut Writer, dtype: DType, sizes: &[usize], dim: u32) {
    let x = w.floats(dtype, sizes);
    let y = w.numbers(dtype, sizes, f64::abs);
    // A sum over a row of half numbers is rounded where it is large: the differences are not to be.
    let dy = w.numbers(dtype, sizes, |x| x / sizes[dim as usize] as f64);
    for dies in [false, true] {
        let mut operand = |x| if dies { w.dying(x) } else { x };
        let operands = [x, x, y, dy].map(&mut operand);
        w.op(Softmax { dim }, &operands[..1]);
        w.op(LogSoftmax { dim }, &operands[1..2]);
        w.op(SoftmaxGrad { dim }, &operands[2..]);
    }
    let (y, dy) = (w.dying(y), dy);
    w.op(SoftmaxGrad { dim }, &[y, dy]);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn rows_along_any_dim() {
    let cases = [
        // Along the last dim: by a part of a warp, by a warp, by more, by more than hold it.
        (&[70, 6][..], 1),
        (&[3, 5, 64], 2),
        (&[9, 1024], 1),
        (&[9, 1023], 1),
        (&[3, 5000], 1),
        (&[2, 33_000], 1),
        (&[2, 33_001], 1),
        // Along others: by a thread, by several, by more than hold it.
        (&[2, 3, 4100], 1),
        (&[3, 21, 70], 1),
        (&[300, 9], 0),
        (&[2, 1100, 40], 1),
        (&[1, 1, 3], 1),
    ];
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        for (sizes, dim) in cases {
            softmaxes(&mut w, dtype, sizes, dim);
        }
        w.check(order as u32);
    }
}

/// Rows beside each other that do not fill the last block: its other threads must not read behind the tensor.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_partial_last_block_reads_nothing_behind_the_tensor() {
    let mut w = Writer::default();
    softmaxes(&mut w, DType::F32, &[1, 1200, 300], 1);
    w.check(0);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn rows_without_a_sum_are_nan_and_their_gradient_is_zero_where_nothing_reads_them() {
    let mut w = Writer::default();
    for (dtype, size) in FLOATS.into_iter().zip([5, 40, 100, 2000]) {
        let sizes = [4, size];
        let row = |i: usize| i / size;
        let at = |i: usize| match (row(i), i % size) {
            (0, _) => f64::NEG_INFINITY,
            (1, 3) => f64::INFINITY,
            (2, 0) => f64::NEG_INFINITY,
            (3, 4) => f64::NAN,
            _ => i as f64 / 64.0,
        };
        let x = w.input(Tensor::float(dtype, sizes.to_vec(), (0..4 * size).map(at).collect()).rounded());
        let dy = |i: usize| if row(i) < 2 { 0.0 } else { 1.0 };
        let dy = w.input(Tensor::float(dtype, sizes.to_vec(), (0..4 * size).map(dy).collect()));
        let y = w.op(Softmax { dim: 1 }, &[x]);
        w.op(LogSoftmax { dim: 1 }, &[x]);
        w.op(SoftmaxGrad { dim: 1 }, &[y[0], dy]);
    }
    w.check(2);
}
