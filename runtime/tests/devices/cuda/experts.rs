//! Rows by expert: few and many to an expert, more than a tile in every direction, and rows that none takes.

use super::writer::{FLOATS, Writer};
use ir::ops::experts::{Experts, ExpertsGrad};
use ir::{DType, Type};

#[test]
#[ignore = "needs a C++ compiler"]
fn rows_meet_the_matrix_of_their_expert() {
    // Rows, experts, numbers of a row, numbers they become, the type of the indices.
    let cases = [
        (7, 3, 5, 9, DType::I32),
        (300, 2, 17, 130, DType::I64),
        (100, 40, 70, 33, DType::I16),
        // More terms than are added up one after the other.
        (5, 1, 600, 3, DType::I64),
    ];
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        for (rows, experts, k, n, of_index) in cases {
            let x = w.numbers(dtype, &[rows, k], |x| x / 8.0);
            let dout = w.numbers(dtype, &[rows, n], |x| x / 8.0);
            let index = w.integers(of_index, &[rows], -(experts as i64) - 1..experts as i64 + 1);
            let weights = w.floats(dtype, &[experts, k, n]);
            w.op(Experts { transposed: false }, &[x, weights, index]);
            w.op(Experts { transposed: true }, &[dout, weights, index]);
            let ty = Type::of(dtype, &[experts, k, n].map(|size| size as u64));
            w.typed(ExpertsGrad, &[index, x, dout], &[ty]);
        }
        w.check(order as u32);
    }
}

/// Rows of one expert: more than are added up one after the other.
#[test]
#[ignore = "needs a C++ compiler"]
fn many_rows_are_summed_for_one_expert() {
    let mut w = Writer::default();
    let index = w.integers(DType::I64, &[1000], 0..2);
    let [x, dout] = [10, 3].map(|width| w.numbers(DType::F32, &[1000, width], |x| x / 16.0));
    w.typed(ExpertsGrad, &[index, x, dout], &[Type::of(DType::F32, &[3, 10, 3])]);
    w.check(3);
}
