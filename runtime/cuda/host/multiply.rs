//! Multiplications by cuBLASLt, on the processor. Sums are in f32, or in f64 for matrices of f64.

use crate::driver::DriverError;
use crate::program::{Matrices, Multiply};
use cpu::{product_f32, product_f64};
use half::{bf16, f16};
use ir::DType;
use ir::ops::elementwise::{Binary, Unary};
use program::Activation;
use std::ops::Range;

/// The memory of a multiplication: slices that begin at its matrices and vectors.
pub(super) struct MatrixMemory<'a> {
    pub(super) lhs: &'a [u8],
    pub(super) rhs: &'a [u8],
    pub(super) out: &'a mut [u8],
    pub(super) bias: Option<&'a mut [u8]>,
    pub(super) addend: Option<&'a mut [u8]>,
    pub(super) aux: Option<&'a mut [u8]>,
    pub(super) sums: Option<&'a mut [u8]>,
}

/// Refuses a multiplication that touches bytes beyond the memory of one of its sides.
pub(super) fn check_bounds(multiply: &Multiply, memory: &MatrixMemory) -> Result<(), DriverError> {
    let Multiply { sizes: [m, k, n], batch, dtype, out_dtype, epilogue, .. } = multiply;
    let of = |matrices: &Matrices, dtype: DType, batch, sizes| {
        let bytes = matrices.touched(dtype, batch, sizes).bytes;
        bytes.end - bytes.start
    };
    let result = |matrices: &Matrices| of(matrices, *out_dtype, 1, [*m, *n]);
    let vector = |count: &usize| *count as u64 * out_dtype.bytes();
    let sums = epilogue.sums.map(|(side, _)| vector([m, n][side as usize]));
    let sides = [
        ("its left side", Some(of(&multiply.lhs, *dtype, *batch, [*m, *k])), Some(memory.lhs.len())),
        ("its right side", Some(of(&multiply.rhs, *dtype, *batch, [*k, *n])), Some(memory.rhs.len())),
        ("its result", Some(of(&multiply.out, *out_dtype, *batch, [*m, *n])), Some(memory.out.len())),
        ("its bias", epilogue.bias.map(|_| vector(n)), memory.bias.as_deref().map(<[u8]>::len)),
        ("its addend", epilogue.addend.as_ref().map(result), memory.addend.as_deref().map(<[u8]>::len)),
        ("the operand of GELU", epilogue.aux.as_ref().map(result), memory.aux.as_deref().map(<[u8]>::len)),
        ("its sums", sums, memory.sums.as_deref().map(<[u8]>::len)),
    ];
    for (name, needed, given) in sides {
        let beyond = needed.unwrap_or_default().saturating_sub(given.unwrap_or_default() as u64);
        if beyond > 0 {
            return Err(DriverError(format!("a multiplication touches {beyond} bytes behind {name}")));
        }
    }
    Ok(())
}

pub(super) fn multiply(multiply: &Multiply, mut memory: MatrixMemory, add: bool) {
    let [m, k, n] = multiply.sizes;
    let (dtype, out_dtype) = (multiply.dtype, multiply.out_dtype);
    for matrix in 0..multiply.batch {
        let left = dense(memory.lhs, dtype, &multiply.lhs, matrix, [m, k]);
        let right = dense(memory.rhs, dtype, &multiply.rhs, matrix, [k, n]);
        for (i, product) in product(dtype, [m, k, n], &left, &right).into_iter().enumerate() {
            let element = [i / n, i % n];
            let at = place(&multiply.out, out_dtype, matrix, element);
            let held = add.then(|| read(out_dtype, &memory.out[at.clone()]));
            let made = epilogue(multiply, &mut memory, element, product);
            write(out_dtype, &mut memory.out[at.clone()], made);
            if let Some(held) = held {
                let made = read(out_dtype, &memory.out[at.clone()]);
                write(out_dtype, &mut memory.out[at], held + made);
            }
        }
        if let (Some((side, _)), Some(sums)) = (multiply.epilogue.sums, &mut memory.sums) {
            let width = out_dtype.bytes() as usize;
            for (i, bytes) in sums.chunks_exact_mut(width).take([m, n][side as usize]).enumerate() {
                let term = |t: usize| if side == 0 { left[i * k + t] } else { right[t * n + i] };
                write(out_dtype, bytes, (0..k).map(term).sum());
            }
        }
    }
}

/// Returns the number that an element of the product becomes. It is stored, or rounded and added to the previous number. Everything is
/// computed in f32 or better.
fn epilogue(multiply: &Multiply, memory: &mut MatrixMemory, element: [usize; 2], product: f64) -> f64 {
    let (epilogue, dtype) = (&multiply.epilogue, multiply.out_dtype);
    let mut x = product;
    if let Some(bias) = &memory.bias {
        let width = dtype.bytes() as usize;
        x += read(dtype, &bias[element[1] * width..][..width]);
    }
    if let (Some(matrices), Some(addend)) = (&epilogue.addend, &memory.addend) {
        x += read(dtype, &addend[place(matrices, dtype, 0, element)]);
    }
    let aux = epilogue.aux.as_ref().map(|matrices| place(matrices, dtype, 0, element));
    match (epilogue.activation, aux.zip(memory.aux.as_deref_mut())) {
        (Activation::None, _) => x,
        (Activation::GeluTanh, kept) => {
            if let Some((at, aux)) = kept {
                write(dtype, &mut aux[at], x);
            }
            Unary::GeluTanh.scalar(x)
        }
        (Activation::GeluTanhGrad, Some((at, aux))) => Binary::GeluTanhGrad.scalar(read(dtype, &aux[at]), x),
        (Activation::GeluTanhGrad, None) => unreachable!("a gradient is taken somewhere"),
    }
}

/// Returns the product of two dense matrices, in the type of sums.
fn product(dtype: DType, sizes: [usize; 3], lhs: &[f64], rhs: &[f64]) -> Vec<f64> {
    if dtype == DType::F64 {
        return product_f64(sizes, lhs, rhs);
    }
    let single = |numbers: &[f64]| numbers.iter().map(|&x| x as f32).collect::<Vec<_>>();
    product_f32(sizes, &single(lhs), &single(rhs)).into_iter().map(f64::from).collect()
}

fn place(matrices: &Matrices, dtype: DType, matrix: usize, [row, column]: [usize; 2]) -> Range<usize> {
    let [down, right] = matrices.strides;
    let element = matrix as i64 * matrices.apart + row as i64 * down + column as i64 * right;
    let width = dtype.bytes() as usize;
    element as usize * width..(element as usize + 1) * width
}

fn dense(
    bytes: &[u8],
    dtype: DType,
    matrices: &Matrices,
    matrix: usize,
    [rows, columns]: [usize; 2],
) -> Vec<f64> {
    let element = |i| read(dtype, &bytes[place(matrices, dtype, matrix, [i / columns, i % columns])]);
    (0..rows * columns).map(element).collect()
}

fn read(dtype: DType, bytes: &[u8]) -> f64 {
    match dtype {
        DType::F64 => bytemuck::pod_read_unaligned(bytes),
        DType::F16 => bytemuck::pod_read_unaligned::<f16>(bytes).to_f64(),
        DType::BF16 => bytemuck::pod_read_unaligned::<bf16>(bytes).to_f64(),
        _ => f64::from(bytemuck::pod_read_unaligned::<f32>(bytes)),
    }
}

fn write(dtype: DType, bytes: &mut [u8], x: f64) {
    match dtype {
        DType::F64 => bytes.copy_from_slice(&x.to_le_bytes()),
        DType::F16 => bytes.copy_from_slice(&f16::from_f32(x as f32).to_le_bytes()),
        DType::BF16 => bytes.copy_from_slice(&bf16::from_f32(x as f32).to_le_bytes()),
        _ => bytes.copy_from_slice(&(x as f32).to_le_bytes()),
    }
}
