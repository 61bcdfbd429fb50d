//! Bools in the bits of bytes: rows of whole bytes, rows that end within a byte, and bools that a chain has just made.

use super::writer::Writer;
use ir::ops::elementwise::{Compare, Select};
use ir::ops::packing::{PackBits, UnpackBits};
use ir::ops::shape::Reshape;
use ir::{DType, Type};

#[test]
#[ignore = "needs a C++ compiler"]
fn rows_of_any_length_are_packed_and_come_back() {
    let mut w = Writer::default();
    for sizes in [&[5usize, 64][..], &[3, 301], &[1], &[7], &[33, 2, 9], &[4096]] {
        let x = w.floats(DType::F32, sizes);
        let zero = w.scalar(DType::F32, 0.0);
        let signs = w.op(Compare::Greater, &[x, zero])[0];
        let bytes = w.op(PackBits, &[signs])[0];
        let dims: Vec<u64> = sizes.iter().map(|&size| size as u64).collect();
        let back = w.typed(UnpackBits, &[bytes], &[Type::of(DType::Bool, &dims)])[0];
        w.op(Select, &[back, x, zero]);
    }
    w.check(0);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn dims_that_are_one_in_memory_are_packed_as_one() {
    let mut w = Writer::default();
    let x = w.floats(DType::BF16, &[2, 3, 5, 7]);
    let zero = w.scalar(DType::BF16, 0.0);
    let signs = w.op(Compare::Greater, &[x, zero])[0];
    let flat = w.typed(Reshape, &[signs], &[Type::of(DType::Bool, &[210])])[0];
    let bytes = w.op(PackBits, &[flat])[0];
    let back = w.typed(UnpackBits, &[bytes], &[Type::of(DType::Bool, &[210])])[0];
    w.typed(Reshape, &[back], &[Type::of(DType::Bool, &[2, 3, 5, 7])]);
    w.check(1);
}
