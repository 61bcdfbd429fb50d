//! Rows by expert: few and many to an expert, more than a tile in every direction, and rows that none takes.

use super::writer::{FLOATS, Writer};
use ir::ops::experts::{Experts, ExpertsGrad};
use ir::{DType, Type};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The sizes of a problem: rows, experts, the numbers of a row, and the numbers that they become.
type Sizes = (usize, usize, usize, usize);

/// Both forms of experts and the gradient, with indices of this type.
fn write(w: &mut Writer, dtype: DType, (rows, experts, k, n): Sizes, of_index: DType) {
    let x = w.numbers(dtype, &[rows, k], |x| x / 8.0);
    let dout = w.numbers(dtype, &[rows, n], |x| x / 8.0);
    let index = w.integers(of_index, &[rows], -(experts as i64) - 1..experts as i64 + 1);
    let weights = w.floats(dtype, &[experts, k, n]);
    w.op(Experts { transposed: false }, &[x, weights, index]);
    w.op(Experts { transposed: true }, &[dout, weights, index]);
    let ty = Type::of(dtype, &[experts, k, n].map(|size| size as u64));
    w.typed(ExpertsGrad, &[index, x, dout], &[ty]);
}

/// The names of a program's kernels that multiply, without their hashes.
fn kernels(w: &Writer) -> Vec<String> {
    let cuda = cuda::lower::lower(Arc::new(w.lowered())).unwrap_or_else(|error| panic!("{error}"));
    let names = cuda.kernels.iter().filter_map(|kernel| Some(kernel.name.rsplit_once('_')?.0.to_owned()));
    names.filter(|name| name.starts_with("experts")).collect::<BTreeSet<_>>().into_iter().collect()
}

#[test]
#[ignore = "needs a C++ compiler"]
fn rows_meet_the_matrix_of_their_expert() {
    let cases = [
        ((7, 3, 5, 9), DType::I32),
        ((300, 2, 17, 130), DType::I64),
        ((100, 40, 70, 33), DType::I16),
        // More terms than are added up one after the other.
        ((5, 1, 600, 3), DType::I64),
    ];
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        for (sizes, of_index) in cases {
            write(&mut w, dtype, sizes, of_index);
        }
        assert_eq!(kernels(&w), ["experts", "experts_grad"]);
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

/// Problems that fill no tile, and those that take several tiles and stages in every direction.
pub(super) fn on_tensor_cores(half: DType) -> Writer {
    let mut w = Writer::default();
    for (sizes, of_index) in [
        ((7, 3, 8, 16), DType::I32),
        ((300, 2, 40, 136), DType::I64),
        ((100, 40, 16, 8), DType::I16),
        ((90, 1, 264, 72), DType::I64),
    ] {
        write(&mut w, half, sizes, of_index);
    }
    w
}

#[test]
#[ignore = "needs a C++ compiler"]
fn tensor_cores_multiply_experts_of_halves() {
    for (dtype, orders) in [(DType::F16, [0, 1]), (DType::BF16, [2, 3])] {
        let w = on_tensor_cores(dtype);
        assert_eq!(kernels(&w), ["experts_grad_mma", "experts_mma"]);
        orders.into_iter().for_each(|order| w.check(order));
    }
}

/// As many rows and columns as give each block a tile of 128 rows.
#[test]
#[ignore = "needs a C++ compiler"]
fn large_problems_have_larger_tiles() {
    let mut w = Writer::default();
    let index = w.integers(DType::I64, &[600], 0..2);
    let x = w.numbers(DType::BF16, &[600, 8], |x| x / 8.0);
    let weights = w.floats(DType::BF16, &[1, 8, 8704]);
    w.op(Experts { transposed: false }, &[x, weights, index]);
    let index = w.integers(DType::I64, &[50], 0..9);
    let rows = w.numbers(DType::BF16, &[50, 384], |x| x / 8.0);
    let columns = w.numbers(DType::BF16, &[50, 1400], |x| x / 8.0);
    w.typed(ExpertsGrad, &[index, rows, columns], &[Type::of(DType::BF16, &[8, 384, 1400])]);
    let cuda = cuda::lower::lower(Arc::new(w.lowered())).unwrap_or_else(|error| panic!("{error}"));
    for call in ["multiply_rows_mma<1, 8, 8704, false, 2>", "sum_of_rows_mma<8, 384, 1400, 2>"] {
        assert!(cuda.kernels.iter().any(|kernel| kernel.text.contains(call)), "{call}");
    }
    w.check(2);
}
