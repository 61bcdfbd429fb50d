//! The types of PTX, and numbers of these types in registers of 64 bits.
//!
//! A register holds the bits of its value; bits beyond the type have no meaning. Untyped bits (`.b32`) are unsigned integers here.

use half::{bf16, f16};

/// The type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Predicate,
    /// Unsigned integers, and untyped bits.
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F16,
    BF16,
    F32,
    F64,
    /// Two numbers of 16 bits.
    F16Pair,
    BF16Pair,
}

impl Type {
    /// Returns the type of a modifier: `u32` of `add.u32`.
    pub(super) fn of(modifier: &str) -> Option<Self> {
        Some(match modifier {
            "pred" => Self::Predicate,
            "u8" | "b8" => Self::U8,
            "u16" | "b16" => Self::U16,
            "u32" | "b32" => Self::U32,
            "u64" | "b64" => Self::U64,
            "s8" => Self::I8,
            "s16" => Self::I16,
            "s32" => Self::I32,
            "s64" => Self::I64,
            "f16" => Self::F16,
            "bf16" => Self::BF16,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "f16x2" => Self::F16Pair,
            "bf16x2" => Self::BF16Pair,
            _ => return None,
        })
    }

    /// Returns the bytes of a number in memory.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Predicate | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 | Self::F16Pair | Self::BF16Pair => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Returns the bits of a number.
    pub(super) fn bits(self) -> u32 {
        8 * self.bytes() as u32
    }

    pub(super) fn is_signed(self) -> bool {
        matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }

    pub(super) fn is_integer(self) -> bool {
        self.is_signed() || matches!(self, Self::U8 | Self::U16 | Self::U32 | Self::U64)
    }

    /// Returns the integer in a register.
    pub(super) fn integer(self, bits: u64) -> i128 {
        let unused = 64 - self.bits();
        if self.is_signed() {
            i128::from((bits << unused) as i64 >> unused)
        } else {
            i128::from(bits << unused >> unused)
        }
    }

    /// Returns the register of an integer. Bits beyond the type are dropped. A signed integer is extended by its sign, as by a load or
    /// a conversion into a wider register.
    pub(super) fn register(self, integer: i128) -> u64 {
        self.integer(integer as u64) as u64
    }

    /// Returns the least and the largest integer.
    pub(super) fn limits(self) -> [i128; 2] {
        let bits = self.bits();
        if self.is_signed() { [-(1 << (bits - 1)), (1 << (bits - 1)) - 1] } else { [0, (1 << bits) - 1] }
    }

    /// Returns the floating-point number in a register; `None` if the type has none, or several.
    pub(super) fn real(self, bits: u64) -> Option<f64> {
        Some(match self {
            Self::F16 => f16::from_bits(bits as u16).to_f64(),
            Self::BF16 => bf16::from_bits(bits as u16).to_f64(),
            Self::F32 => f64::from(f32::from_bits(bits as u32)),
            Self::F64 => f64::from_bits(bits),
            _ => return None,
        })
    }

    /// Returns the register of a floating-point number, rounded to the nearest, ties to even.
    pub(super) fn rounded(self, real: f64) -> Option<u64> {
        Some(match self {
            // The conversion goes over f32, because `half` drops the lower half of an f64. Every number that becomes a half here is an
            // f32, or a small integer.
            Self::F16 => f16::from_f32(real as f32).to_bits().into(),
            Self::BF16 => bf16::from_f32(real as f32).to_bits().into(),
            Self::F32 => (real as f32).to_bits().into(),
            Self::F64 => real.to_bits(),
            _ => return None,
        })
    }
}

/// A floating-point type in which a processor computes.
pub(super) trait Real: Copy + PartialOrd + Send + Sync + 'static {
    /// The smallest number that is not subnormal.
    const LEAST_NORMAL: f64;

    fn of(register: u64) -> Self;
    fn register(self) -> u64;
    fn double(self) -> f64;
    /// Rounds to the nearest, ties to even.
    fn nearest(double: f64) -> Self;
    /// `self · factor + addend`, rounded once.
    fn fused(self, factor: Self, addend: Self) -> Self;
}

impl Real for f32 {
    const LEAST_NORMAL: f64 = f32::MIN_POSITIVE as f64;

    fn of(register: u64) -> Self {
        Self::from_bits(register as u32)
    }

    fn register(self) -> u64 {
        self.to_bits().into()
    }

    fn double(self) -> f64 {
        self.into()
    }

    fn nearest(double: f64) -> Self {
        double as Self
    }

    fn fused(self, factor: Self, addend: Self) -> Self {
        self.mul_add(factor, addend)
    }
}

impl Real for f64 {
    const LEAST_NORMAL: f64 = f64::MIN_POSITIVE;

    fn of(register: u64) -> Self {
        Self::from_bits(register)
    }

    fn register(self) -> u64 {
        self.to_bits()
    }

    fn double(self) -> f64 {
        self
    }

    fn nearest(double: f64) -> Self {
        double
    }

    fn fused(self, factor: Self, addend: Self) -> Self {
        self.mul_add(factor, addend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_keep_the_bits_of_their_type() {
        assert_eq!(Type::I8.integer(0x1ff), -1);
        assert_eq!(Type::U8.integer(0x1ff), 255);
        assert_eq!(Type::I32.register(-1), u64::MAX);
        assert_eq!(Type::U32.register(-1), 0xffff_ffff);
        assert_eq!(Type::I64.integer(u64::MAX), -1);
        assert_eq!(Type::U64.integer(u64::MAX), i128::from(u64::MAX));
        assert_eq!(Type::I16.limits(), [-0x8000, 0x7fff]);
        assert_eq!(Type::U64.limits(), [0, i128::from(u64::MAX)]);
    }

    #[test]
    fn reals_are_rounded_to_even() {
        assert_eq!(Type::BF16.rounded(1.0 + 2f64.powi(-8)), Some(0x3f80));
        assert_eq!(Type::BF16.rounded(1.0 + 2f64.powi(-8) + 2f64.powi(-23)), Some(0x3f81));
        assert_eq!(Type::F16.rounded(65520.0), Some(0x7c00));
        assert_eq!(Type::F16.real(1), Some(2f64.powi(-24)));
    }
}
