//! Determinants of small, larger and large matrices.

use super::writer::{FLOATS, Writer};
use ir::DType;
use ir::ops::det::Det;

#[test]
#[ignore = "needs a C++ compiler"]
fn determinants_of_matrices_of_any_size() {
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        for (count, n) in [(300, 1), (70, 2), (5, 3), (40, 5), (3, 6), (2, 32), (2, 40), (2, 77)] {
            // So that determinants stay near 1.
            let x = w.numbers(dtype, &[count, n, n], |x| 1.6 * x / (n as f64).sqrt());
            w.op(Det, &[x]);
        }
        // Pivots of zero, equal ones, singular matrices.
        let x = w.integers(DType::I64, &[60, 3, 3], -1..2);
        let x = w.built(|b| b.cast(x, dtype).expect("numbers"));
        w.op(Det, &[x]);
        let x = w.integers(DType::I64, &[20, 12, 12], -1..2);
        let x = w.built(|b| b.cast(x, dtype).expect("numbers"));
        w.op(Det, &[x]);
        w.check(order as u32);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_matrix_with_a_nan_has_none() {
    let mut w = Writer::default();
    for n in [3, 10] {
        let x = w.numbers(DType::F32, &[30, n, n], |x| if x > 2.0 { f64::NAN } else { x });
        w.op(Det, &[x]);
    }
    w.check(1);
}
