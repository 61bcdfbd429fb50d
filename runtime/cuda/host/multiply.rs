//! cuBLASLt's part on the processor: matrices where the description says, sums in f32, of f64 in f64.

use crate::cpu::{product_f32, product_f64};
use crate::cuda::program::{Matrices, Multiply};
use bytemuck::Pod;
use half::{bf16, f16};
use ir::DType;
use std::ops::Add;

/// Slices begin where the first matrix does.
pub(super) fn multiply(multiply: &Multiply, lhs: &[u8], rhs: &[u8], out: &mut [u8], add: bool) {
    match multiply.dtype {
        DType::F64 => of_type(multiply, [lhs, rhs], out, add, (|x: f64| x, |x| x, product_f64)),
        DType::F16 => of_type(multiply, [lhs, rhs], out, add, (f16::to_f32, f16::from_f32, product_f32)),
        DType::BF16 => of_type(multiply, [lhs, rhs], out, add, (bf16::to_f32, bf16::from_f32, product_f32)),
        _ => of_type(multiply, [lhs, rhs], out, add, (|x: f32| x, |x| x, product_f32)),
    }
}

/// Elements are widened to be computed with, multiplied, and narrowed to be stored.
fn of_type<T: Pod, C: Copy + Add<Output = C>>(
    multiply: &Multiply,
    [lhs, rhs]: [&[u8]; 2],
    out: &mut [u8],
    add: bool,
    (widen, narrow, product): (impl Fn(T) -> C, impl Fn(C) -> T, impl Fn([usize; 3], &[C], &[C]) -> Vec<C>),
) {
    let [m, k, n] = multiply.sizes;
    for matrix in 0..multiply.batch {
        let left = dense(lhs, &multiply.lhs, matrix, [m, k], &widen);
        let right = dense(rhs, &multiply.rhs, matrix, [k, n], &widen);
        for (i, product) in product([m, k, n], &left, &right).into_iter().enumerate() {
            let at = place::<T>(&multiply.out, matrix, [i / n, i % n]);
            let held = widen(bytemuck::pod_read_unaligned::<T>(&out[at.clone()]));
            let sum = if add { held + product } else { product };
            out[at].copy_from_slice(bytemuck::bytes_of(&narrow(sum)));
        }
    }
}

fn place<T>(matrices: &Matrices, matrix: usize, [row, column]: [usize; 2]) -> std::ops::Range<usize> {
    let [down, right] = matrices.strides;
    let element = matrix as i64 * matrices.apart + row as i64 * down + column as i64 * right;
    let start = element as usize * size_of::<T>();
    start..start + size_of::<T>()
}

fn dense<T: Pod, C>(
    bytes: &[u8],
    matrices: &Matrices,
    matrix: usize,
    [rows, columns]: [usize; 2],
    widen: &impl Fn(T) -> C,
) -> Vec<C> {
    let element = |i: usize| {
        let at = place::<T>(matrices, matrix, [i / columns, i % columns]);
        widen(bytemuck::pod_read_unaligned::<T>(&bytes[at]))
    };
    (0..rows * columns).map(element).collect()
}
