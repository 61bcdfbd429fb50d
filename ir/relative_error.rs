//! How far apart two tensors are, relative to the largest number.

use crate::ops::optimizer::quantization::distance;
use crate::tensor::Elements;
use crate::{DType, Tensor};

/// The error of a code that is off by one. A code of type u8 stands for a number of an 8-bit moment of Adam (see
/// [`crate::ops::optimizer::quantization`]). The codes 255 and 0 are neighbours.
pub const CODE: f64 = 1.0 / 255.0;

/// Returns `max|a - b| / max(max|b|, floor)`. Numbers of type u8 are codes: their error is [`CODE`] times their largest distance. Infinity if
/// the sizes differ, or if a number that is not finite on one side is another on the other side. NaN if the error is 0 and a number is NaN on
/// both sides.
pub fn relative_error(a: &Tensor, b: &Tensor, floor: f64) -> f64 {
    if a.sizes != b.sizes {
        return f64::INFINITY;
    }
    if let (DType::U8, Elements::Int(a), Elements::Int(b)) = (a.dtype, &a.elements, &b.elements) {
        let apart = a.iter().zip(b).map(|(a, b)| distance(*a, *b));
        return apart.max().unwrap_or(0) as f64 * CODE;
    }
    let (mut largest, mut apart, mut nothing) = (floor, 0.0f64, false);
    for (a, b) in a.numbers().into_iter().zip(b.numbers()) {
        if b.is_finite() {
            largest = largest.max(b.abs());
        }
        if a.is_nan() && b.is_nan() {
            nothing = true;
            continue;
        }
        // Equal infinities are equal.
        let off = if a == b { 0.0 } else { (a - b).abs() };
        apart = apart.max(if off.is_nan() { f64::INFINITY } else { off });
    }
    if apart > 0.0 {
        apart / largest
    } else if nothing {
        f64::NAN
    } else {
        0.0
    }
}

/// Returns the largest absolute value of the finite numbers of some tensors, 0 without any.
pub fn largest<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> f64 {
    tensors.into_iter().map(largest_of).fold(0.0, f64::max)
}

fn largest_of(tensor: &Tensor) -> f64 {
    let numbers = tensor.numbers().into_iter();
    numbers.filter(|number| number.is_finite()).fold(0.0, |largest, number| largest.max(number.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(elements: &[f64]) -> Tensor {
        Tensor::float(DType::F64, vec![elements.len()], elements.to_vec())
    }

    #[test]
    fn an_error_is_relative_to_the_largest_number_or_to_the_floor() {
        assert_eq!(relative_error(&tensor(&[1.0, 8.5]), &tensor(&[1.0, 8.0]), 0.0), 0.5 / 8.0);
        assert_eq!(relative_error(&tensor(&[1e-9, 0.0]), &tensor(&[0.0, 0.0]), 1e-3), 1e-9 / 1e-3);
        assert_eq!(relative_error(&tensor(&[0.0]), &tensor(&[0.0]), 0.0), 0.0);
    }

    #[test]
    fn codes_are_apart_by_their_numbers_around_zero() {
        let codes = |codes: &[i64]| Tensor::int(DType::U8, vec![codes.len()], codes.to_vec());
        assert_eq!(relative_error(&codes(&[255, 3]), &codes(&[1, 3]), 0.0), 2.0 * CODE);
        assert_eq!(relative_error(&codes(&[7, 129]), &codes(&[7, 128]), 0.0), CODE);
    }

    #[test]
    fn numbers_that_are_not_finite_must_be_the_same() {
        let error = |a: &[f64], b: &[f64]| relative_error(&tensor(a), &tensor(b), 0.0);
        let odd = [f64::NAN, f64::NEG_INFINITY, 2.0];
        assert!(error(&odd, &odd).is_nan());
        assert_eq!(error(&odd[1..], &odd[1..]), 0.0);
        assert_eq!(error(&odd, &[f64::NAN, f64::NEG_INFINITY, 1.0]), 1.0);
        assert_eq!(error(&[f64::NAN], &[1.0]), f64::INFINITY);
        assert_eq!(error(&[1.0], &[f64::NAN]), f64::INFINITY);
        assert_eq!(error(&[f64::INFINITY], &[f64::NEG_INFINITY]), f64::INFINITY);
        assert_eq!(error(&[1.0, 1.0], &[1.0]), f64::INFINITY);
    }
}
