//! Samples: elementwise operators, bits, and sums over microbatches.

use super::table::{float, of};
use super::*;
use crate::ops::elementwise::{Binary, Bitcast, Bitwise, Cast, Compare, Logical, Select, Unary};
use crate::ops::list::Kinds;
use crate::ops::packing::{PackBits, UnpackBits};
use crate::ops::step::Accumulate;

pub(super) fn elementwise() -> Vec<Sample> {
    let mut samples: Vec<Sample> = Unary::NAMES.iter().map(|&(op, _)| unary(op)).collect();
    samples.extend(Binary::NAMES.iter().flat_map(|&(op, _)| binary(op)));
    for &(op, _) in Compare::NAMES {
        samples.push(Sample::new(op, [float(&[2, 4]), float(&[4])]));
        let integers = |dims: &[u64]| of(DType::I64, dims, Fill::Integers(-2, 3));
        samples.push(Sample::new(op, [integers(&[4, 2]), integers(&[4, 1])]));
    }
    for &(op, _) in Logical::NAMES {
        let bools = |dims: &[u64]| of(DType::Bool, dims, Fill::Normal);
        samples.push(Sample::new(op, [bools(&[2, 4]), bools(&[4])]));
    }
    let condition = |dims: &[u64]| of(DType::Bool, dims, Fill::Normal);
    samples.push(Sample::new(Select, [condition(&[2, 4]), float(&[2, 4]), float(&[2, 4])]));
    samples.push(Sample::new(Select, [condition(&[4, 1]), float(&[]), float(&[2, 1, 6])]));
    let numbers = of(DType::I64, &[4], Fill::Normal);
    samples.push(Sample::new(Select, [condition(&[4]), numbers.clone(), numbers]));
    for (from, to) in [
        (DType::F32, DType::F64),
        (DType::F64, DType::F32),
        (DType::F32, DType::BF16),
        (DType::F32, DType::F16),
        (DType::I64, DType::F32),
        (DType::F32, DType::I64),
        (DType::I64, DType::I32),
        (DType::I64, DType::Bool),
        (DType::Bool, DType::F32),
    ] {
        samples.push(Sample::new(Cast { to }, [of(from, &[2, 4], Fill::Normal)]));
    }
    samples.push(Sample::new(Accumulate, [float(&[2, 4])]).undifferentiable());
    samples
}

pub(super) fn bits() -> Vec<Sample> {
    let of_bits = |from, to, fill| Sample::new(Bitcast { to }, [of(from, &[2, 4], fill)]);
    // The bits of floats between 1 and 4, which are large integers.
    let (double, brain) = (Fill::Integers(0x3ff0 << 48, 0x4010 << 48), Fill::Integers(0x3f80, 0x4080));
    let mut samples = vec![
        of_bits(DType::F64, DType::I64, Fill::Normal),
        of_bits(DType::F16, DType::I16, Fill::Normal),
        of_bits(DType::F16, DType::BF16, Fill::Normal).undifferentiable(),
        of_bits(DType::I64, DType::F64, double),
        of_bits(DType::U16, DType::BF16, brain),
        of_bits(DType::I32, DType::U32, Fill::Normal),
        of_bits(DType::Bool, DType::U8, Fill::Normal),
    ];
    for &(op, _) in Bitwise::NAMES {
        let pair = |dtype, fill: Fill, second: Fill| {
            Sample::new(op, [of(dtype, &[2, 4], fill), of(dtype, &[4], second)])
        };
        samples.push(pair(DType::I32, Fill::Integers(-1 << 31, 1 << 31), Fill::Integers(-2, 36)));
        samples.push(pair(DType::U8, Fill::Integers(0, 256), Fill::Integers(0, 12)));
        let [x, y] = [&[4u64, 1][..], &[2, 1, 6]].map(|dims| of(DType::I64, dims, Fill::Normal));
        samples.push(Sample::new(op, [x, y]));
    }
    samples
}

/// Rows of whole bytes, rows that end within a byte, and rows shorter than a byte.
pub(super) fn packing() -> Vec<Sample> {
    let mut samples = vec![];
    for dims in [&[4u64, 48][..], &[2, 12], &[6], &[2, 2, 1]] {
        samples.push(Sample::new(PackBits, [of(DType::Bool, dims, Fill::Normal)]));
        let mut bytes = dims.to_vec();
        if let Some(size) = bytes.last_mut() {
            *size = size.div_ceil(8);
        }
        let bytes = of(DType::U8, &bytes, Fill::Integers(0, 256));
        samples.push(Sample::new(UnpackBits, [bytes]).declared(Type::of(DType::Bool, dims)));
    }
    samples
}

fn unary(op: Unary) -> Sample {
    Sample::new(
        op,
        [match op {
            Unary::Log | Unary::Sqrt | Unary::Rsqrt | Unary::Reciprocal => {
                of(DType::F32, &[2, 4], Fill::Positive)
            }
            Unary::IsNan => of(DType::F32, &[2, 4], Fill::WithNan),
            Unary::Not => of(DType::Bool, &[2, 4], Fill::Normal),
            _ => float(&[2, 4]),
        }],
    )
}

fn binary(op: Binary) -> Vec<Sample> {
    let positive = |dims: &[u64]| of(DType::F32, dims, Fill::Positive);
    let mut samples = match op {
        Binary::Div => vec![
            Sample::new(op, [float(&[2, 4]), positive(&[2, 4])]),
            Sample::new(op, [float(&[]), positive(&[4, 2])]),
        ],
        Binary::Pow => vec![Sample::new(op, [positive(&[2, 4]), float(&[4])])],
        Binary::Mod => vec![Sample::new(op, [float(&[2, 4]), positive(&[4])])],
        _ => vec![
            Sample::new(op, [float(&[2, 4]), float(&[2, 4])]),
            Sample::new(op, [float(&[2, 1, 4]), float(&[6, 1])]),
        ],
    };
    if matches!(op, Binary::GeluGrad | Binary::GeluTanhGrad | Binary::SiluGrad | Binary::ReluGrad) {
        samples = samples.into_iter().map(Sample::undifferentiable).collect();
    } else {
        let [x, y] = [Fill::Normal, Fill::Positive].map(|fill| of(DType::I64, &[4], fill));
        samples.push(Sample::new(op, [x, y]));
    }
    samples
}
