//! When an output is as it must be: the tolerances of ONNX's own runner.

use ir::tensor::Elements;
use ir::{DType, Tensor};

/// Of the expected number.
const RELATIVE: f64 = 1e-3;
const ABSOLUTE: f64 = 1e-7;
/// A unit in the last place of bf16, whose numbers are further apart than the tolerance; f16's are not.
const BF16_UNIT: f64 = 1.0 / 128.0;

/// Says how an output differs from what it must be.
pub(crate) fn check(given: &Tensor, expected: &Tensor) -> Result<(), String> {
    if given.dtype != expected.dtype || given.sizes != expected.sizes {
        return Err(format!("it gives {}, not {}", given.ty(), expected.ty()));
    }
    let relative = if expected.dtype == DType::BF16 { BF16_UNIT } else { RELATIVE };
    let given = given.clone().rounded();
    let same = match (&given.elements, &expected.elements) {
        (Elements::Float(x), Elements::Float(y)) => x.iter().zip(y).all(|(&x, &y)| near(x, y, relative)),
        (x, y) => x == y,
    };
    if same { Ok(()) } else { Err("it gives other numbers".into()) }
}

fn near(x: f64, y: f64, relative: f64) -> bool {
    x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= ABSOLUTE + relative * y.abs() && y.is_finite()
}

#[test]
fn a_number_just_outside_of_the_tolerance_is_another() {
    let check = |x: f64, y: f64| {
        let tensor = |x: f64| Tensor::float(DType::F32, vec![1], vec![x]);
        check(&tensor(x), &tensor(y)).is_ok()
    };
    assert!(check(1.0009, 1.0) && !check(1.0011, 1.0));
    assert!(check(0.9e-7, 0.0) && !check(1.1e-7, 0.0));
    assert!(check(f64::NAN, f64::NAN) && check(f64::INFINITY, f64::INFINITY));
    assert!(!check(1.0, f64::INFINITY) && !check(f64::NAN, 1.0));
}
