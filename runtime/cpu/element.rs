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

/// Runs `$body` with `$t` as the float type of a dtype.
macro_rules! with_float {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            ir::DType::F64 => {
                type $t = f64;
                $body
            }
            ir::DType::F32 => {
                type $t = f32;
                $body
            }
            half => crate::element::with_half!(half, $t => $body),
        }
    };
}
pub(super) use with_float;

/// Runs `$body` with `$t` as the two-byte float type of a dtype.
macro_rules! with_half {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            ir::DType::F16 => {
                type $t = ::half::f16;
                $body
            }
            ir::DType::BF16 => {
                type $t = ::half::bf16;
                $body
            }
            other => unreachable!("{other} is no float type"),
        }
    };
}
pub(super) use with_half;

/// Runs `$body` with `$t` as the type in which floats of a dtype are computed.
macro_rules! with_real {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            ir::DType::F64 => {
                type $t = f64;
                $body
            }
            _ => {
                type $t = f32;
                $body
            }
        }
    };
}
pub(super) use with_real;

/// Runs `$body` with `$t` as the integer type of a dtype.
macro_rules! with_integer {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            ir::DType::I64 => {
                type $t = i64;
                $body
            }
            ir::DType::I32 => {
                type $t = i32;
                $body
            }
            ir::DType::I16 => {
                type $t = i16;
                $body
            }
            ir::DType::I8 => {
                type $t = i8;
                $body
            }
            ir::DType::U64 => {
                type $t = u64;
                $body
            }
            ir::DType::U32 => {
                type $t = u32;
                $body
            }
            ir::DType::U16 => {
                type $t = u16;
                $body
            }
            ir::DType::U8 => {
                type $t = u8;
                $body
            }
            other => unreachable!("{other} is no integer type"),
        }
    };
}
pub(super) use with_integer;

/// Runs `$body` with `$t` as the unsigned type of this width in bytes, for kernels that only move elements.
macro_rules! with_width {
    ($bytes:expr, $t:ident => $body:expr) => {
        match $bytes {
            1 => {
                type $t = u8;
                $body
            }
            2 => {
                type $t = u16;
                $body
            }
            4 => {
                type $t = u32;
                $body
            }
            _ => {
                type $t = u64;
                $body
            }
        }
    };
}
pub(super) use with_width;

/// Converts integers of any type to i64.
pub(super) fn integers(dtype: DType, bytes: &[u8]) -> Vec<i64> {
    with_integer!(dtype, T => bytemuck::cast_slice::<u8, T>(bytes).iter().map(|x| x.to_i64()).collect())
}
