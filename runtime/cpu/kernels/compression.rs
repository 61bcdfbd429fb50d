//! Compression of gradients: addends, and orthonormal bases. Bases are computed in f64, as by the interpreter, and rounded once.

use crate::call::Call;
use crate::element::{Element, with_float};
use ir::ops::compression::Orthogonalize;

/// Writes the device's own addend first, and zeros for the addends of other devices.
pub(super) fn addends(mut call: Call) {
    with_float!(call.dtype(), T => {
        let x = call.dense::<T>(0);
        let (own, others) = call.take_result::<T>().split_at_mut(x.len());
        own.copy_from_slice(x);
        others.fill(T::from_f64(0.0));
    });
}

pub(super) fn orthogonalize(mut call: Call) {
    let sizes = &call.operand_view(0).layout.sizes;
    let [m, r] = [sizes[sizes.len() - 2], sizes[sizes.len() - 1]];
    with_float!(call.dtype(), T => {
        let x = call.dense::<T>(0);
        let out = call.take_result::<T>();
        for (x, out) in x.chunks_exact(m * r).zip(out.chunks_exact_mut(m * r)) {
            let matrix: Vec<f64> = x.iter().map(|x| x.to_f64()).collect();
            let basis = Orthogonalize::basis(&matrix, r);
            out.iter_mut().zip(basis).for_each(|(out, q)| *out = T::from_f64(q));
        }
    });
}
