//! Numbers that a file holds rounded to f32 or half, and the numbers they stand for.
//!
//! An exporter writes √(2/π) as the f32 next to it. Interpreted in f64, that error would stand out against a pattern
//! that is computed with the true number. Every number here rounds to the same f32 as before, so f32 programs are
//! left as they were.

use ir::{DType, Tensor};
use std::f64::consts::{E, FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LN_2, LN_10, LOG2_E, PI, SQRT_2, TAU};

/// The number that an f32 stands for, of those next to it: a decimal of at most six digits, a constant of
/// mathematics, or a small root of a small integer (a scale such as 1/√d, or its root); itself if there is none.
pub(crate) fn meant_by(rounded: f32) -> f64 {
    meant_in(DType::F32, f64::from(rounded))
}

/// The same of a number of any float type; where every number is next to some decimal, a shorter one.
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

/// A computed number without the rounding of its computation: the number that its f32 stands for if that is no other one, else
/// twelve digits of it.
pub(crate) fn rounded(computed: f64) -> f64 {
    let meant = meant_by(computed as f32);
    if (meant - computed).abs() <= 1e-12 * computed.abs() {
        return meant;
    }
    format!("{computed:.11e}").parse().unwrap_or(computed)
}

/// The number of that type next to a number.
fn in_dtype(dtype: DType, number: f64) -> f64 {
    Tensor::float(dtype, vec![], vec![number]).rounded().item()
}

/// The shortest decimal that rounds to the number, if it is short enough not to be chance.
fn decimal(size: f64, digits: usize, is_it: impl Fn(f64) -> bool) -> Option<f64> {
    (0..digits).filter_map(|more| format!("{size:.more$e}").parse().ok()).find(|&exact| is_it(exact))
}

fn constant(is_it: impl Fn(f64) -> bool) -> Option<f64> {
    // √(2/π) and the factor of the cube, of GELU
    let (sqrt_2_pi, cube) = (FRAC_2_SQRT_PI * FRAC_1_SQRT_2, 0.044715);
    let constants = [sqrt_2_pi, cube, FRAC_1_SQRT_2, SQRT_2, FRAC_2_SQRT_PI, PI, TAU, E, LN_2, LN_10, LOG2_E];
    constants.into_iter().find(|&exact| is_it(exact))
}

/// Square and fourth roots, and their inverses, of integers up to 4096.
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
        // Two ways to compute a number meet.
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
