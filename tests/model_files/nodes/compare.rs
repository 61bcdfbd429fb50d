//! The comparison of an output with the expected one: the tolerances of ONNX's own runner, and the errors of its numbers.

use ir::tensor::Elements;
use ir::{DType, Tensor};

/// The tolerance relative to the expected number.
const RELATIVE: f64 = 1e-3;
pub(crate) const ABSOLUTE: f64 = 1e-7;
/// The tolerance relative to the output's largest element. The files' own numbers are f32, and have such errors where large terms cancel.
const CANCELLED: f64 = 1.0 / (1 << 23) as f64;
/// Two units in the last place of bf16, whose numbers are further apart than the tolerance (those of f16 are not): one for the rounding of
/// the result, and one for the rounding inside the tests' own computation.
const BF16: f64 = 2.0 / 128.0;

/// Checks an output. The error describes the difference from the expected output.
pub(crate) fn check(given: &Tensor, expected: &Tensor, absolute: f64) -> Result<(), String> {
    if given.dtype != expected.dtype || given.sizes != expected.sizes {
        return Err(format!("it gives {}, not {}", given.ty(), expected.ty()));
    }
    let relative = if expected.dtype == DType::BF16 { BF16 } else { RELATIVE };
    let given = given.clone().rounded();
    let same = match (&given.elements, &expected.elements) {
        (Elements::Float(x), Elements::Float(y)) => {
            let largest =
                y.iter().filter(|y| y.is_finite()).fold(0.0, |largest: f64, y| largest.max(y.abs()));
            let absolute = absolute.max(CANCELLED * largest);
            x.iter().zip(y).all(|(&x, &y)| near(x, y, relative, absolute))
        }
        (x, y) => x == y,
    };
    if same { Ok(()) } else { Err("it gives other numbers".into()) }
}

fn near(x: f64, y: f64, relative: f64, absolute: f64) -> bool {
    x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= absolute + relative * y.abs() && y.is_finite()
}

#[test]
fn a_number_just_outside_of_the_tolerance_is_another() {
    let check = |x: f64, y: f64| {
        let tensor = |x: f64| Tensor::float(DType::F32, vec![1], vec![x]);
        check(&tensor(x), &tensor(y), ABSOLUTE).is_ok()
    };
    assert!(check(1.0009, 1.0) && !check(1.0011, 1.0));
    assert!(check(0.9e-7, 0.0) && !check(1.1e-7, 0.0));
    assert!(check(f64::NAN, f64::NAN) && check(f64::INFINITY, f64::INFINITY));
    assert!(!check(1.0, f64::INFINITY) && !check(f64::NAN, 1.0));
    let beside = |x: f64, largest: f64| {
        let tensor = |x: f64| Tensor::float(DType::F32, vec![2], vec![x, largest]);
        super::compare::check(&tensor(x), &tensor(0.0), ABSOLUTE).is_ok()
    };
    assert!(beside(1e-6, 10.0) && !beside(2e-6, 10.0));
}
