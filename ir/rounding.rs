//! Rounding of f64 to half precision in one step: to nearest, ties to even.
//!
//! The conversions of the crate `half` go through f32, or read only the upper half of the f64. They round a number just above the
//! middle of two numbers as if it were the middle.

use half::{bf16, f16};

/// Rounds an f64 to f16.
pub fn to_f16(x: f64) -> f16 {
    f16::from_f32(to_odd(x))
}

/// Rounds an f64 to bf16.
pub fn to_bf16(x: f64) -> bf16 {
    bf16::from_f32(to_odd(x))
}

/// Rounds an f64 to f32 by rounding to odd: an inexact number becomes the neighbour with an odd last digit. Rounding the result to
/// fewer digits gives the same as rounding the f64 (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved
/// algorithms using rounding to odd", IEEE Transactions on Computers 57(4), 2008).
fn to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let back = f64::from(nearest);
    if back == x || x.is_nan() {
        return nearest;
    }
    let towards_zero = nearest.to_bits() - u32::from(back.abs() > x.abs());
    f32::from_bits(towards_zero | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests the middle of two numbers, and numbers a little below and above it.
    #[test]
    fn a_number_just_above_the_middle_is_rounded_up() {
        let (tiny, ulp) = (2f64.powi(-45), [2f64.powi(-10), 2f64.powi(-7)]);
        let halves: [fn(f64) -> f64; 2] = [|x| to_f16(x).to_f64(), |x| to_bf16(x).to_f64()];
        for (round, ulp) in halves.into_iter().zip(ulp) {
            let middle = 1.0 + ulp / 2.0;
            for sign in [1.0, -1.0] {
                assert_eq!(round(sign * middle), sign);
                assert_eq!(round(sign * (middle + tiny)), sign * (1.0 + ulp));
                assert_eq!(round(sign * (middle + ulp)), sign * (1.0 + 2.0 * ulp));
                assert_eq!(round(sign * (middle + ulp - tiny)), sign * (1.0 + ulp));
            }
        }
    }

    #[test]
    fn ends_of_the_ranges_are_kept() {
        let infinity = f64::INFINITY;
        for (x, half, brain) in [
            (1e300, infinity, infinity),
            (-1e300, -infinity, -infinity),
            (65519.9999, 65504.0, 65536.0),
            (65520.0, infinity, 65536.0),
            (1e-300, 0.0, 0.0),
            (-infinity, -infinity, -infinity),
            (2f64.powi(-24), 2f64.powi(-24), 2f64.powi(-24)),
            (2f64.powi(-25), 0.0, 2f64.powi(-25)),
            (1.000_001 * 2f64.powi(-25), 2f64.powi(-24), 2f64.powi(-25)),
            (2f64.powi(-133), 0.0, 2f64.powi(-133)),
        ] {
            assert_eq!((to_f16(x).to_f64(), to_bf16(x).to_f64()), (half, brain), "{x:e}");
        }
        assert!(to_f16(f64::NAN).is_nan() && to_bf16(f64::NAN).is_nan());
    }
}
