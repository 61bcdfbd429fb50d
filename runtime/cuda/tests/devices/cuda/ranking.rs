//! Places of elements in their order: short and long rows, rows beside each other, ties and NaN.

use super::writer::{FLOATS, Writer};
use ir::DType;
use ir::ops::ranking::TopK;

#[test]
#[ignore = "needs a C++ compiler"]
fn rows_of_any_length_along_any_dim() {
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        for (dim, sizes, count) in [
            (1, &[70usize, 8][..], 2),
            (1, &[3, 301], 301),
            (0, &[1], 1),
            (0, &[33, 9], 4),
            (1, &[2, 5, 3], 5),
            (2, &[2, 3, 31], 7),
        ] {
            for largest in [true, false] {
                let x = w.floats(dtype, sizes);
                w.op(TopK { dim, count, largest }, &[x]);
            }
        }
        w.check(order as u32);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn equal_elements_keep_their_order_and_a_nan_is_larger_than_every_number() {
    let mut w = Writer::default();
    for largest in [true, false] {
        for dtype in [DType::I64, DType::I8, DType::U8] {
            let x = w.integers(dtype, &[9, 40], 0..5);
            w.op(TopK { dim: 1, count: 11, largest }, &[x]);
        }
        let x = w.numbers(DType::F32, &[9, 40], |x| if x > 1.0 { f64::NAN } else { x });
        w.op(TopK { dim: 1, count: 40, largest }, &[x]);
        w.op(TopK { dim: 0, count: 3, largest }, &[x]);
    }
    w.check(1);
}
