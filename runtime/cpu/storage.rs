//! The conversions between float types in memory and the types in which they are computed: f16 and bf16 are only stored, and computed in
//! f32. A kernel reads a number with [`Float::widen`], computes in [`Float::Real`], and rounds once, to nearest even, where it stores a result.
//! The conversions are bit operations without branches, so loops over them vectorize.

use super::element::{Element, with_float, with_half};
use super::math::{Float, Real};
use super::simd::vectorized;
use half::{bf16, f16};
use ir::DType;
use ir::rounding::{to_bf16, to_f16};

macro_rules! computed_in_themselves {
    ($($ty:ty),*) => { $(
        impl Float for $ty {
            type Real = Self;

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(x: Self) -> Self {
                x
            }
            fn as_reals(elements: &[Self]) -> Option<&[Self]> {
                Some(elements)
            }
            fn as_reals_mut(elements: &mut [Self]) -> Option<&mut [Self]> {
                Some(elements)
            }
        }
    )* };
}
computed_in_themselves!(f32, f64);

macro_rules! computed_in_f32 {
    ($($ty:ty: $widen:ident, $narrow:ident, $round:ident;)*) => { $(
        impl Float for $ty {
            type Real = f32;

            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self.to_bits())
            }
            #[inline(always)]
            fn narrow(x: f32) -> Self {
                Self::from_bits($narrow(x))
            }
            fn as_reals(_: &[Self]) -> Option<&[f32]> {
                None
            }
            fn as_reals_mut(_: &mut [Self]) -> Option<&mut [f32]> {
                None
            }
        }

        impl Element for $ty {
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self.widen())
            }
            fn from_f64(x: f64) -> Self {
                $round(x)
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                self.widen() as i64
            }
            fn from_i64(x: i64) -> Self {
                $round(x as f64)
            }
        }
    )* };
}
computed_in_f32! {
    bf16: bf16_to_f32, f32_to_bf16, to_bf16;
    f16: f16_to_f32, f32_to_f16, to_f16;
}

#[inline(always)]
fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[inline(always)]
fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let odd = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff + odd);
    // A NaN must stay a NaN: perhaps only its low bits distinguish it from an infinity.
    let bits = if x.is_nan() { bits | 0x0040_0000 } else { rounded };
    (bits >> 16) as u16
}

/// Converts f16 to f32. A multiplication changes the exponent's bias, and also normalises subnormal numbers (F. Giesen, "Half to float done
/// quick").
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    /// 2¹¹², the difference of the biases.
    const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
    let bits = u32::from(bits);
    let magnitude = (bits & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * REBIAS).to_bits();
    let special = magnitude | 0x7f80_0000;
    let magnitude = if bits & 0x7c00 == 0x7c00 { special } else { finite };
    f32::from_bits(magnitude | (bits & 0x8000) << 16)
}

/// Converts f32 to f16. Normal numbers are rounded in their bits. Subnormal numbers are rounded by adding a number whose unit in the last
/// place is theirs (F. Giesen, "Float to half").
#[inline(always)]
fn f32_to_f16(x: f32) -> u16 {
    /// The number from which all are infinite: 2¹⁶.
    const INFINITE: u32 = (127 + 16) << 23;
    /// The smallest normal number: 2⁻¹⁴.
    const NORMAL: u32 = (127 - 14) << 23;
    /// A number whose unit in the last place is the smallest subnormal f16, 2⁻²⁴.
    const ALIGN: f32 = 0.5;
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    let subnormal = (f32::from_bits(magnitude) + ALIGN).to_bits().wrapping_sub(ALIGN.to_bits());
    let finite = if magnitude < NORMAL { subnormal } else { normal };
    let finite = if magnitude >= INFINITE { 0x7c00 } else { finite };
    let nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    let rounded = if x.is_nan() { nan } else { finite };
    (rounded | bits >> 16 & 0x8000) as u16
}

/// Returns the type in which numbers of a type are computed.
pub(super) fn computed(dtype: DType) -> DType {
    if is_half(dtype) { DType::F32 } else { dtype }
}

/// Returns whether a type is only stored.
pub(super) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

vectorized! {
    pub(super) fn widen<'a, 'b; S: Float>(from: &'a [S], to: &'b mut [S::Real]) {
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = from.widen());
    }

    pub(super) fn narrow<'a, 'b; S: Float>(from: &'a [S::Real], to: &'b mut [S]) {
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = S::narrow(from));
    }
}

/// Converts elements of a half type to f32.
pub(super) fn widen_half(dtype: DType, from: &[u8], to: &mut [f32]) {
    with_half!(dtype, S => widen::<S>(bytemuck::cast_slice(from), to));
}

/// Rounds f32 numbers to a half type.
pub(super) fn narrow_half(dtype: DType, from: &[f32], to: &mut [u8]) {
    with_half!(dtype, S => narrow::<S>(from, bytemuck::cast_slice_mut(to)));
}

/// Returns the float with this index, from bytes of any float type.
pub(super) fn number<T: Real>(dtype: DType, bytes: &[u8], index: usize) -> T {
    with_float!(dtype, S => T::of(bytemuck::cast_slice::<u8, S>(bytes)[index].to_f64()))
}

/// Stores a float as the first element, in bytes of any float type.
pub(super) fn set_number<T: Real>(dtype: DType, bytes: &mut [u8], x: T) {
    with_float!(dtype, S => bytemuck::cast_slice_mut::<u8, S>(bytes)[0] = <S as Element>::from_f64(x.to_f64()));
}

/// Scratch for a row in the type in which it is computed, if its type in memory is another.
pub(super) struct Scratch<T>(Vec<T>);

impl<T: Real> Scratch<T> {
    pub(super) fn new() -> Self {
        Self(vec![])
    }

    /// Returns these elements: themselves, or converted.
    pub(super) fn read<'s, S: Float<Real = T>>(&'s mut self, elements: &'s [S]) -> &'s [T] {
        if let Some(reals) = S::as_reals(elements) {
            return reals;
        }
        self.0.resize(elements.len(), T::ZERO);
        widen(elements, &mut self.0);
        &self.0
    }

    /// Lets `change` update a row, and rounds it afterwards.
    pub(super) fn update<S: Float<Real = T>>(&mut self, row: &mut [S], change: impl FnOnce(&mut [T])) {
        if S::as_reals(row).is_none() {
            self.0.resize(row.len(), T::ZERO);
            widen(row, &mut self.0);
        }
        self.write(row, change);
    }

    /// Lets `make` write a row whose old elements are undefined, and rounds it afterwards. Returns the value of `make`.
    pub(super) fn write<S: Float<Real = T>, R>(
        &mut self,
        row: &mut [S],
        make: impl FnOnce(&mut [T]) -> R,
    ) -> R {
        if let Some(reals) = S::as_reals_mut(row) {
            return make(reals);
        }
        self.0.resize(row.len(), T::ZERO);
        let made = make(&mut self.0);
        narrow(&self.0, row);
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares every f16, and the numbers halfway between two of them with their neighbours, with the crate `half`.
    #[test]
    fn conversions_of_f16_are_those_of_the_library() {
        for half in (0..=u16::MAX).map(f16::from_bits) {
            assert!(same(half.widen(), half.to_f32()), "{half:e}");
            around(half.to_f32(), |x| {
                let (given, expected) = (f16::narrow(x), f16::from_f32(x));
                assert!(same(given.widen(), expected.to_f32()), "{x:e} gives {given:e}, not {expected:e}");
            });
        }
    }

    #[test]
    fn conversions_of_bf16_are_those_of_the_library() {
        for half in (0..=u16::MAX).map(bf16::from_bits) {
            assert!(same(half.widen(), half.to_f32()), "{half:e}");
            around(half.to_f32(), |x| {
                let (given, expected) = (bf16::narrow(x), bf16::from_f32(x));
                assert!(same(given.widen(), expected.to_f32()), "{x:e} gives {given:e}, not {expected:e}");
            });
        }
    }

    /// Returns whether two numbers are the same: zeros with their sign, NaNs whatever their bits.
    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
    }

    /// Checks a number, and numbers about half a unit of f16 and of bf16 away from it.
    fn around(x: f32, check: impl Fn(f32)) {
        for half_unit in [0u32, 1 << 12, 1 << 15] {
            for step in [half_unit.wrapping_sub(1), half_unit, half_unit + 1] {
                check(f32::from_bits(x.to_bits().wrapping_add(step)));
            }
        }
    }

    #[test]
    fn a_row_that_is_stored_narrower_is_rounded_once() {
        let mut row = [1.0f32; 4].map(bf16::from_f32);
        Scratch::new().update(&mut row, |row| {
            row.iter_mut().for_each(|x| *x += 0.003);
            row.iter_mut().for_each(|x| *x += 0.003);
        });
        assert_eq!(row.map(f32::from), [1.0078125; 4]);
    }
}
