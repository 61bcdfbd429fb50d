//! Determinants: each matrix is computed in f64, as by the interpreter, and rounded once.

use crate::call::Call;
use crate::element::{Element, with_float};
use ir::ops::det::determinant;

pub(super) fn run(mut call: Call) {
    let n = call.operand_view(0).layout.sizes.last().copied().unwrap_or(0);
    with_float!(call.dtype(), T => {
        let x = call.dense::<T>(0);
        for (i, out) in call.take_result::<T>().iter_mut().enumerate() {
            let matrix = x[i * n * n..][..n * n].iter().map(|x| x.to_f64()).collect();
            *out = T::from_f64(determinant(matrix, n));
        }
    });
}
