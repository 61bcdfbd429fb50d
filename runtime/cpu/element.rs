//! Element types: conversions, and the choice of a generic kernel by type.

use bytemuck::Pod;
use ir::DType;

/// A type of elements in memory. Bools are `u8`, 0 or 1.
pub(super) trait Element: Pod + PartialOrd + Send + Sync {
    fn to_f64(self) -> f64;
    fn from_f64(x: f64) -> Self;
    fn to_i64(self) -> i64;
    fn from_i64(x: i64) -> Self;
}

macro_rules! elements {
    ($($ty:ty),*) => { $(
        impl Element for $ty {
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $ty
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                self as i64
            }
            #[inline(always)]
            fn from_i64(x: i64) -> Self {
                x as $ty
            }
        }
    )* };
}
elements!(f64, f32, i64, i32, i16, i8, u64, u32, u16, u8);

/// Matches `$value` with a list of patterns, and runs `$body` with `$t` as the type of the pattern that fits. If no pattern fits,
/// `$otherwise` runs.
macro_rules! with_type {
    ($value:expr, $t:ident => $body:expr, $($pattern:pat => $ty:ty),+ $(; $other:ident => $otherwise:expr)?) => {
        match $value {
            $($pattern => {
                type $t = $ty;
                $body
            })+
            $($other => $otherwise,)?
        }
    };
}
pub(super) use with_type;

/// Runs `$body` with `$t` as the float type of a dtype.
macro_rules! with_float {
    ($dtype:expr, $t:ident => $body:expr) => {
        crate::element::with_type!(
            $dtype, $t => $body, ir::DType::F64 => f64, ir::DType::F32 => f32;
            half => crate::element::with_half!(half, $t => $body)
        )
    };
}
pub(super) use with_float;

/// Runs `$body` with `$t` as the two-byte float type of a dtype.
macro_rules! with_half {
    ($dtype:expr, $t:ident => $body:expr) => {
        crate::element::with_type!(
            $dtype, $t => $body, ir::DType::F16 => ::half::f16, ir::DType::BF16 => ::half::bf16;
            other => unreachable!("{other} is no float type")
        )
    };
}
pub(super) use with_half;

/// Runs `$body` with `$t` as the type in which floats of a dtype are computed.
macro_rules! with_real {
    ($dtype:expr, $t:ident => $body:expr) => {
        crate::element::with_type!($dtype, $t => $body, ir::DType::F64 => f64, _ => f32)
    };
}
pub(super) use with_real;

/// Runs `$body` with `$t` as the integer type of a dtype.
macro_rules! with_integer {
    ($dtype:expr, $t:ident => $body:expr) => {
        crate::element::with_type!(
            $dtype, $t => $body,
            ir::DType::I64 => i64, ir::DType::I32 => i32, ir::DType::I16 => i16, ir::DType::I8 => i8,
            ir::DType::U64 => u64, ir::DType::U32 => u32, ir::DType::U16 => u16, ir::DType::U8 => u8;
            other => unreachable!("{other} is no integer type")
        )
    };
}
pub(super) use with_integer;

/// Runs `$body` with `$t` as the unsigned type of this width in bytes, for kernels that only move elements.
macro_rules! with_width {
    ($bytes:expr, $t:ident => $body:expr) => {
        crate::element::with_type!($bytes, $t => $body, 1 => u8, 2 => u16, 4 => u32, _ => u64)
    };
}
pub(super) use with_width;

/// Converts integers of any type to i64.
pub(super) fn integers(dtype: DType, bytes: &[u8]) -> Vec<i64> {
    with_integer!(dtype, T => bytemuck::cast_slice::<u8, T>(bytes).iter().map(|x| x.to_i64()).collect())
}
