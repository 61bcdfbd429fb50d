//! Compression of gradients: addends, and orthonormal bases of tall, wide and dependent columns.

use super::writer::{FLOATS, Writer};
use ir::DType;
use ir::ops::compression::{Addends, Orthogonalize};

#[test]
#[ignore = "needs a C++ compiler"]
fn bases_of_matrices_of_any_size() {
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        for (count, m, r) in [(3, 1, 1), (2, 5, 5), (1, 33, 4), (2, 512, 2), (1, 1500, 3)] {
            let x = w.numbers(dtype, &[count, m, r], |x| x);
            w.op(Orthogonalize, &[x]);
        }
        // Columns of zeros, equal ones, and sums of others.
        let x = w.numbers(dtype, &[2, 9, 3], |_| 0.0);
        w.op(Orthogonalize, &[x]);
        let x = w.integers(DType::I64, &[40, 4, 4], -1..2);
        let x = w.built(|b| b.cast(x, dtype).expect("numbers"));
        w.op(Orthogonalize, &[x]);
        w.check(order as u32);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_column_with_a_nan_is_replaced() {
    let mut w = Writer::default();
    let x = w.numbers(DType::F32, &[10, 30, 3], |x| if x > 2.0 { f64::NAN } else { x });
    w.op(Orthogonalize, &[x]);
    w.check(1);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_value_is_its_own_first_addend() {
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        for (count, sizes) in [(1, &[3usize, 7][..]), (3, &[301]), (2, &[20, 31])] {
            let x = w.floats(dtype, sizes);
            w.op(Addends { count }, &[x]);
        }
        w.check(order as u32);
    }
}
