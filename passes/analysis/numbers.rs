//! Finds the exact numbers behind numbers that a file holds rounded to f32 or half.
//!
//! An exporter writes √(2/π) as the nearest f32. Interpreted in f64, the rounding error would show against a pattern that is computed
//! with the exact number. Every number found here rounds to the same f32 as before, so f32 programs do not change.

use ir::{DType, Tensor};
use std::f64::consts::{E, FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LN_2, LN_10, LOG2_E, PI, SQRT_2, TAU};

/// Returns the exact number that rounds to this f32: a decimal of at most six digits, a constant of mathematics, or a small root of a
/// small integer (a scale such as 1/√d, or its root); the f32 itself if there is none.
pub(crate) fn meant_by(rounded: f32) -> f64 {
    meant_in(DType::F32, f64::from(rounded))
}

/// Returns the same for any float type. Half types are so coarse that only shorter decimals count: two digits for f16, one for bf16.
pub(crate) fn meant_in(dtype: DType, rounded: f64) -> f64 {
    let size = rounded.abs();
    let digits = match dtype {
        DType::F32 => 6,
        DType::F16 => 2,
        DType::BF16 => 1,
        _ => return rounded,
    };
    if !size.is_finite() || size == 0.0 {
        return rounded;
    }
    if in_dtype(dtype, size) != size {
        return rounded;
    }
    let is_it = |exact: f64| in_dtype(dtype, exact) == size;
    let exact = decimal(size, digits, is_it).or_else(|| constant(is_it)).or_else(|| root(size, is_it));
    exact.unwrap_or(size).copysign(rounded)
}

/// Removes the rounding error of a computation: returns the exact number behind the result's f32 if the result differs from it by 1e-12
/// at most (relative), else twelve digits of the result.
pub(crate) fn rounded(computed: f64) -> f64 {
    let meant = meant_by(computed as f32);
    if (meant - computed).abs() <= 1e-12 * computed.abs() {
        return meant;
    }
    format!("{computed:.11e}").parse().unwrap_or(computed)
}

/// Rounds a number to a type.
fn in_dtype(dtype: DType, number: f64) -> f64 {
    Tensor::float(dtype, vec![], vec![number]).rounded().item()
}

/// Returns the shortest decimal that rounds to the number, with at most `digits` digits. A longer decimal could match by chance.
fn decimal(size: f64, digits: usize, is_it: impl Fn(f64) -> bool) -> Option<f64> {
    (0..digits).filter_map(|more| format!("{size:.more$e}").parse().ok()).find(|&exact| is_it(exact))
}

fn constant(is_it: impl Fn(f64) -> bool) -> Option<f64> {
    // √(2/π), and the coefficient of the cube in GELU
    let (sqrt_2_pi, cube) = (FRAC_2_SQRT_PI * FRAC_1_SQRT_2, 0.044715);
    let constants = [sqrt_2_pi, cube, FRAC_1_SQRT_2, SQRT_2, FRAC_2_SQRT_PI, PI, TAU, E, LN_2, LN_10, LOG2_E];
    constants.into_iter().find(|&exact| is_it(exact))
}

/// Returns the number if it is a square or fourth root of an integer up to 4096, or the inverse of such a root.
fn root(size: f64, is_it: impl Fn(f64) -> bool) -> Option<f64> {
    let roots: [fn(f64) -> f64; 4] =
        [f64::sqrt, |n| 1.0 / n.sqrt(), |n| n.sqrt().sqrt(), |n| 1.0 / n.sqrt().sqrt()];
    let powers = [size.powi(2), size.powi(-2), size.powi(4), size.powi(-4)];
    roots.into_iter().zip(powers).find_map(|(root, power)| {
        let exact = root(power.round());
        ((1.0..=4096.0).contains(&power.round()) && is_it(exact)).then_some(exact)
    })
}

#[cfg(test)]
mod tests {
    use super::{in_dtype, meant_by, meant_in, rounded};
    use ir::DType;

    #[test]
    fn a_rounded_number_is_what_it_stands_for() {
        let (scale, gelu) = ((1.0f64 / 32.0).sqrt(), (2.0 / std::f64::consts::PI).sqrt());
        for exact in [0.044715, 1e-5, -1e-12, 1e9, 0.1, scale, scale.sqrt(), gelu, -0.5f64.sqrt(), 0.125, 3.0]
        {
            let meant = meant_by(exact as f32);
            assert!((meant - exact).abs() <= 2e-16 * exact.abs(), "{exact:e} became {meant:e}");
        }
    }

    #[test]
    fn a_computed_number_keeps_twelve_digits_or_is_the_one_that_was_meant() {
        let variance = 360.0 / 359.0;
        assert!((rounded(variance) - variance).abs() <= 1e-12 * variance);
        // Two ways to compute the same number agree.
        assert_eq!(rounded(1.0 / 0.1), 10.0);
        assert_eq!(rounded(0.1 + 0.2), 0.3);
        assert_eq!(rounded(1.0 / 3.0 * 7.0), rounded(7.0 / 3.0));
        assert_eq!((rounded(0.0), rounded(f64::INFINITY)), (0.0, f64::INFINITY));
    }

    #[test]
    fn every_number_rounds_to_the_f32_it_was() {
        let mut bits = 0x3f12_3456u32;
        for _ in 0..100_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = f32::from_bits(bits);
            let same = number.is_nan() || meant_by(number) as f32 == number;
            assert!(same, "{number:e} became {:e}", meant_by(number));
        }
        assert!(meant_by(f32::NAN).is_nan());
    }

    #[test]
    fn a_number_rounded_to_half_is_what_it_stands_for() {
        let (scale, gelu) = ((1.0f64 / 32.0).sqrt().sqrt(), (2.0 / std::f64::consts::PI).sqrt());
        for dtype in [DType::F16, DType::BF16] {
            for exact in [0.044715, scale, gelu, -0.5, 0.125, 3.0, -1e4] {
                let meant = meant_in(dtype, in_dtype(dtype, exact));
                assert!(
                    (meant - exact).abs() <= 2e-16 * exact.abs(),
                    "{exact:e} in {dtype} became {meant:e}"
                );
            }
        }
    }
}
