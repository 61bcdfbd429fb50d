//! The float types of kernels, in memory ([`Float`]) and in computations ([`Real`]), and the arithmetic of the latter. The f32 functions are
//! polynomials that vectorize; the f64 functions are those of libraries.
//!
//! The f32 functions are within a few units in the last place of the true values (tests compare them with f64).

use super::element::Element;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A float type in memory.
pub(super) trait Float: Element {
    /// The type in which it is computed.
    type Real: Real;

    /// Converts the number exactly.
    fn widen(self) -> Self::Real;
    /// Returns the nearest number, or the even one of two.
    fn narrow(x: Self::Real) -> Self;
    /// Returns the elements themselves if they are computed in their own type.
    fn as_reals(elements: &[Self]) -> Option<&[Self::Real]>;
    /// Returns the elements themselves if they are computed in their own type.
    fn as_reals_mut(elements: &mut [Self]) -> Option<&mut [Self::Real]>;
}

/// A float type in which kernels compute.
pub(super) trait Real:
    Float<Real = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    const ZERO: Self;
    const ONE: Self;
    const NEG_INFINITY: Self;

    /// Returns the nearest number of this type.
    fn of(x: f64) -> Self;
    /// Returns `self · factor + addend`, rounded once.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn sqrt(self) -> Self;
    fn tanh(self) -> Self;
    fn erf(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn atan(self) -> Self;
    /// Returns the remainder of the division rounded towards zero, which is exact.
    fn rest(self, divisor: Self) -> Self;
    fn powf(self, exponent: Self) -> Self;
    fn abs(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round_ties_even(self) -> Self;

    /// Returns the larger number; NaN if one is NaN.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self > other || self.is_nan() { self } else { other }
    }

    /// Returns the smaller number; NaN if one is NaN.
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        if self < other || self.is_nan() { self } else { other }
    }

    #[inline(always)]
    #[allow(clippy::eq_op)] // only NaN differs from itself
    fn is_nan(self) -> bool {
        self != self
    }

    /// `1/(1 + e⁻ˣ)`
    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::ONE / (Self::ONE + (-self).exp())
    }

    /// Returns Φ, the distribution function of the standard normal.
    #[inline(always)]
    fn normal_cdf(self) -> Self {
        let erf = (self * Self::of(std::f64::consts::FRAC_1_SQRT_2)).erf();
        Self::of(0.5).mul_add(erf, Self::of(0.5))
    }
}

macro_rules! library {
    ($($method:ident),*) => { $(
        #[inline(always)]
        fn $method(self) -> Self {
            self.$method()
        }
    )* };
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NEG_INFINITY: Self = f64::NEG_INFINITY;

    #[inline(always)]
    fn of(x: f64) -> Self {
        x
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        f64::mul_add(self, factor, addend)
    }

    library!(exp, ln, sqrt, tanh, sin, cos, atan, abs, floor, ceil, round_ties_even);

    #[inline(always)]
    fn rest(self, divisor: Self) -> Self {
        self % divisor
    }

    #[inline(always)]
    fn erf(self) -> Self {
        libm::erf(self)
    }

    #[inline(always)]
    fn powf(self, exponent: Self) -> Self {
        self.powf(exponent)
    }
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NEG_INFINITY: Self = f32::NEG_INFINITY;

    #[inline(always)]
    fn of(x: f64) -> Self {
        x as f32
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        f32::mul_add(self, factor, addend)
    }

    library!(ln, sqrt, sin, cos, atan, abs, floor, ceil, round_ties_even);

    #[inline(always)]
    fn rest(self, divisor: Self) -> Self {
        self % divisor
    }

    #[inline(always)]
    fn exp(self) -> Self {
        exp_f32(self)
    }

    #[inline(always)]
    fn tanh(self) -> Self {
        tanh_f32(self)
    }

    #[inline(always)]
    fn erf(self) -> Self {
        erf_f32(self)
    }

    #[inline(always)]
    fn powf(self, exponent: Self) -> Self {
        self.powf(exponent)
    }
}

/// Returns `coefficients[0] + x·(coefficients[1] + x·…)`.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = sum.mul_add(x, coefficients[i]);
    }
    sum
}

/// Computes `eˣ = 2ⁿ·eʳ` with n the nearest integer to x/ln 2, and eʳ with the polynomial of the Cephes library (`expf`). Results below the
/// smallest normal number are 0: subnormal numbers are slow, and the kernels make none.
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    /// The number whose addition rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 as a sum of two parts; the first has few bits.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    const OVERFLOW: f32 = 89.0;
    const UNDERFLOW: f32 = -87.336_54;
    let clamped = if x > OVERFLOW { OVERFLOW } else { x };
    let clamped = if clamped < UNDERFLOW { UNDERFLOW } else { clamped };
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2[0], clamped);
    let r = n.mul_add(-LN_2[1], r);
    let tail =
        polynomial(r, [5e-1, 1.666_666_5e-1, 4.166_579_6e-2, 8.333_452e-3, 1.398_2e-3, 1.987_569_2e-4]);
    let power = (r * r).mul_add(tail, r) + 1.0;
    // 2ⁿ in two factors, since n may be 128.
    let n = shifted.to_bits() as i32 - ROUND.to_bits() as i32;
    let half = n >> 1;
    let factor = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    let scaled = power * factor(half) * factor(n - half);
    if x < UNDERFLOW { 0.0 } else { scaled }
}

/// Computes tanh with the rational approximation of Eigen (`generic_fast_tanh_float`): an odd polynomial over an even one.
#[inline(always)]
fn tanh_f32(x: f32) -> f32 {
    /// The number from which tanh rounds to ±1.
    const ONE_FROM: f32 = 7.998_812;
    let clamped = if x > ONE_FROM { ONE_FROM } else { x };
    let clamped = if clamped < -ONE_FROM { -ONE_FROM } else { clamped };
    let square = clamped * clamped;
    let odd = polynomial(
        square,
        [
            4.893_524_6e-3,
            6.372_619_3e-4,
            1.485_722_4e-5,
            5.122_297_1e-8,
            -8.604_672e-11,
            2.000_188e-13,
            -2.760_768_5e-16,
        ],
    );
    let even = polynomial(square, [4.893_525e-3, 2.268_434_6e-3, 1.185_347_1e-4, 1.198_258_4e-6]);
    clamped * odd / even
}

/// Computes erf with the rational approximation of XLA and Eigen: an odd polynomial over an even one.
#[inline(always)]
fn erf_f32(x: f32) -> f32 {
    /// The number from which erf rounds to ±1.
    const ONE_FROM: f32 = 3.832_507;
    let clamped = if x > ONE_FROM { ONE_FROM } else { x };
    let clamped = if clamped < -ONE_FROM { -ONE_FROM } else { clamped };
    let square = clamped * clamped;
    let odd = polynomial(
        square,
        [
            -1.609_603_3e-2,
            -2.954_6e-3,
            -7.349_906_3e-4,
            -5.692_506_4e-5,
            -2.101_024_1e-6,
            2.770_681_4e-8,
            -2.726_142_3e-10,
        ],
    );
    let even = polynomial(
        square,
        [-1.426_473_9e-2, -7.373_329_2e-3, -1.682_827_e-3, -2.133_740_6e-4, -1.456_607_2e-5],
    );
    clamped * odd / even
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the largest error over a range, in units in the last place of the true value, or of `least` where that is larger.
    fn worst(range: std::ops::Range<f32>, least: f32, f: fn(f32) -> f32, truth: fn(f64) -> f64) -> f64 {
        let steps = 400_000;
        let error = |i: i32| {
            let x = range.start + (range.end - range.start) * i as f32 / steps as f32;
            let truth = truth(f64::from(x));
            let unit = f64::from(f32::EPSILON) * truth.abs().max(f64::from(least));
            (f64::from(f(x)) - truth).abs() / unit
        };
        (0..=steps).map(error).fold(0.0, f64::max)
    }

    #[test]
    fn exp_is_within_two_units() {
        let worst = worst(-87.0..88.7, f32::MIN_POSITIVE, exp_f32, f64::exp);
        assert!(worst < 2.0, "{worst}");
        assert_eq!((exp_f32(f32::NEG_INFINITY), exp_f32(f32::INFINITY)), (0.0, f32::INFINITY));
        assert!(
            exp_f32(f32::NAN).is_nan()
                && exp_f32(0.0) == 1.0
                && exp_f32(-200.0) == 0.0
                && exp_f32(89.5) > f32::MAX
        );
    }

    #[test]
    fn tanh_is_within_five_units() {
        let worst = worst(-10.0..10.0, f32::MIN_POSITIVE, tanh_f32, f64::tanh);
        assert!(worst < 5.0, "{worst}");
        assert!(tanh_f32(f32::NAN).is_nan());
        let far = [tanh_f32(1e30) - 1.0, tanh_f32(f32::NEG_INFINITY) + 1.0];
        assert!(far.iter().all(|x| x.abs() <= 2.0 * f32::EPSILON), "{far:?}");
    }

    #[test]
    fn erf_is_within_five_units() {
        let worst = worst(-6.0..6.0, f32::MIN_POSITIVE, erf_f32, libm::erf);
        assert!(worst < 5.0, "{worst}");
        assert!(erf_f32(f32::NAN).is_nan() && (erf_f32(1e30) - 1.0).abs() <= f32::EPSILON);
    }
}
