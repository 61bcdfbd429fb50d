//! The codes of optimizer moments in 8 bits, and their values.
//!
//! The code of a number is the count of those midpoints between the values of neighbouring codes that are below the number. A cell is the
//! set of all numbers with the same exponent and the same leading bits of the mantissa. A table has the count for the first number of each
//! cell. No cell has two midpoints, so one comparison gives the count for any other number of the cell.

use crate::math::Real;
use ir::ops::optimizer::quantization::{SIGNED, UNSIGNED, midpoints};

/// The codes of a moment.
pub(super) trait Map: Copy {
    /// Returns the tables of the map.
    fn tables<T: Share>(self) -> &'static Tables<T>;

    /// Returns the code of a number, given the code of its magnitude.
    fn with_sign(self, code: u8, is_negative: bool) -> u8;
}

/// The codes of a first moment.
#[derive(Clone, Copy)]
pub(super) struct Signed;

/// The codes of a second moment, which has no negative number.
#[derive(Clone, Copy)]
pub(super) struct Unsigned;

impl Map for Signed {
    #[inline(always)]
    fn tables<T: Share>(self) -> &'static Tables<T> {
        T::SIGNED
    }

    /// No negative number has the magnitude 1, whose code is 128.
    #[inline(always)]
    fn with_sign(self, code: u8, is_negative: bool) -> u8 {
        if is_negative { code.min(127).wrapping_neg() } else { code }
    }
}

impl Map for Unsigned {
    #[inline(always)]
    fn tables<T: Share>(self) -> &'static Tables<T> {
        T::UNSIGNED
    }

    #[inline(always)]
    fn with_sign(self, code: u8, _: bool) -> u8 {
        code
    }
}

/// The number of leading bits of the mantissa in a cell: enough to separate midpoints.
const MANTISSA: u32 = 7;

/// The number of cells. It is a power of two, so that the last bits of the exponent and the leading bits of the mantissa are the index of a
/// cell. These bits are the same in f32 and f64, and are distinct for all cells from 2⁻²³ to 1.
const CELLS: usize = 1 << 12;

/// The tables of a map for a float type.
pub(super) struct Tables<T> {
    /// The values of codes.
    values: [T; 256],
    /// For each midpoint, the largest number of the type that is not above it. The entries after the last midpoint are infinite.
    borders: [T; 256],
    /// For each cell, the number of midpoints below its first number.
    counts: [u8; CELLS],
}

impl<T: Share> Tables<T> {
    /// Returns the value of a code.
    #[inline(always)]
    pub(super) fn value(&self, code: u8) -> T {
        self.values[usize::from(code)]
    }

    /// Returns the code of the value nearest to a number from [`Share::LEAST`] to 1. Of two equally near values, it returns the code of the
    /// lower one.
    #[inline(always)]
    pub(super) fn code(&self, x: T) -> u8 {
        let count = self.counts[x.cell() % CELLS];
        count.wrapping_add(u8::from(self.borders[usize::from(count)] < x))
    }
}

/// A float type for numbers between 0 and 1: magnitudes divided by the largest magnitude of a block.
pub(super) trait Share: Real {
    /// The first number of the first cell. Its code is 0, as are the codes of all numbers below it.
    const LEAST: Self;
    const SIGNED: &'static Tables<Self>;
    const UNSIGNED: &'static Tables<Self>;

    /// Returns the leading bits, which all numbers of a cell share. Their last bits are the index of the cell.
    fn cell(self) -> usize;
}

macro_rules! share {
    ($($ty:ident),*) => { $(
        impl Share for $ty {
            const LEAST: Self = 1.0 / (1 << 23) as Self;
            const SIGNED: &'static Tables<Self> = {
                static TABLES: Tables<$ty> = Tables::<$ty>::of(&SIGNED, &midpoints::<128>(&SIGNED));
                &TABLES
            };
            const UNSIGNED: &'static Tables<Self> = {
                static TABLES: Tables<$ty> = Tables::<$ty>::of(&UNSIGNED, &midpoints::<255>(&UNSIGNED));
                &TABLES
            };

            #[inline(always)]
            fn cell(self) -> usize {
                (self.to_bits() >> Tables::<$ty>::BEHIND) as usize
            }
        }

        impl Tables<$ty> {
            /// The number of low bits in which numbers of a cell differ.
            const BEHIND: u32 = $ty::MANTISSA_DIGITS - 1 - MANTISSA;

            /// Makes the tables for values from 0 to 1. The codes after these are those of negative numbers.
            const fn of(values: &[f64], midpoints: &[f64]) -> Self {
                let mut tables = Self { values: [0.0; 256], borders: [$ty::INFINITY; 256], counts: [0; CELLS] };
                let mut code = 0;
                while code < 256 {
                    let is_negative = code >= values.len();
                    let value = if is_negative { -values[256 - code] } else { values[code] };
                    tables.values[code] = value as $ty;
                    if code < midpoints.len() {
                        let nearest = midpoints[code] as $ty;
                        let is_above = nearest as f64 > midpoints[code];
                        tables.borders[code] = if is_above { nearest.next_down() } else { nearest };
                    }
                    code += 1;
                }
                let (mut first, mut count) = (<$ty as Share>::LEAST, 0);
                assert!(first as f64 <= midpoints[0], "a midpoint is below all cells");
                while first <= 1.0 {
                    let before = count;
                    while count < midpoints.len() && midpoints[count] < first as f64 {
                        count += 1;
                    }
                    assert!(count <= before + 1, "a cell has two midpoints");
                    tables.counts[(first.to_bits() >> Self::BEHIND) as usize % CELLS] = count as u8;
                    first = <$ty>::from_bits(first.to_bits() + (1 << Self::BEHIND));
                }
                assert!(count == midpoints.len(), "a midpoint is above all cells");
                tables
            }
        }
    )* };
}
share!(f32, f64);

#[cfg(test)]
mod tests {
    use super::*;
    use ir::ops::optimizer::quantization::{signed_code, signed_value, unsigned_code, unsigned_value};

    /// Returns the code of a number with a magnitude of at most 1.
    fn code<T: Share>(map: impl Map, x: T) -> u8 {
        map.with_sign(map.tables().code(x.abs().larger(T::LEAST)), x < T::ZERO)
    }

    /// Returns the first number of each cell and each midpoint of both maps, each with its neighbours in both float types.
    fn borders() -> Vec<f64> {
        let first = f64::LEAST.to_bits() >> Tables::<f64>::BEHIND;
        let cells = (0..CELLS as u64).map(|cell| f64::from_bits((first + cell) << Tables::<f64>::BEHIND));
        let all = cells.chain(midpoints::<128>(&SIGNED)).chain(midpoints::<255>(&UNSIGNED));
        let beside = |x: f64| {
            let single = x as f32;
            let singles = [single.next_down().next_down(), single.next_down(), single, single.next_up()];
            [x.next_down(), x, x.next_up()].into_iter().chain(singles.map(f64::from))
        };
        let tiny = [0.0, f64::from_bits(1), f64::from(f32::from_bits(1)), 1e-300, 1e-30, 1e-9, 1e-7];
        all.flat_map(beside).chain(tiny).filter(|&x| x <= 1.0).collect()
    }

    /// Within a cell the code changes at most once, so neighbours of all borders cover every case.
    #[test]
    fn codes_are_those_of_the_nearest_values() {
        let borders = borders();
        assert!(borders.len() > 20_000, "{}", borders.len());
        for x in borders.into_iter().flat_map(|x| [x, -x]) {
            let single = x as f32;
            assert_eq!(code(Signed, x), signed_code(x), "{x:e}");
            assert_eq!(code(Signed, single), signed_code(single.into()), "{single:e}");
            if x >= 0.0 {
                assert_eq!(code(Unsigned, x), unsigned_code(x), "{x:e}");
                assert_eq!(code(Unsigned, single), unsigned_code(single.into()), "{single:e}");
            }
        }
    }

    #[test]
    fn numbers_of_codes_are_rounded_to_their_type() {
        for code in 0..=255 {
            let [signed, unsigned] = [signed_value(code), unsigned_value(code)];
            assert_eq!((f64::SIGNED.value(code), f64::UNSIGNED.value(code)), (signed, unsigned));
            assert_eq!(
                (f32::SIGNED.value(code), f32::UNSIGNED.value(code)),
                (signed as f32, unsigned as f32)
            );
        }
    }
}
