//! Adagrad.

use super::{Optional, update_with_state};
use crate::call::Call;
use crate::element::with_float;
use crate::math::{Float, Real};
use crate::simd::vectorized;
use ir::ops::optimizer::Adagrad;

pub(in crate::kernels) fn adagrad(op: &Adagrad, mut call: Call) {
    let [rate, decay] = [3, 4].map(|index| call.scalar::<f64>(index));
    with_float!(call.dtype(), S => {
        type T = <S as Float>::Real;
        let Optional { scale, skips } = Optional::of::<S>(&call, 5);
        let [rate, decay, eps] = [rate, decay, op.eps.get()].map(T::of);
        update_with_state::<S>(&mut call, skips, |gradient, parameter, sum| {
            adagrad_block(scale, rate, decay, eps, gradient, parameter, sum);
        });
    });
}

vectorized! {
    fn adagrad_block<'a; T: Real>(
        scale: T,
        rate: T,
        decay: T,
        eps: T,
        gradient: &'a [T],
        parameter: &'a mut [T],
        sum: &'a mut [T],
    ) {
        let decays = decay != T::ZERO;
        for ((p, s), &g) in parameter.iter_mut().zip(sum).zip(gradient) {
            let g = scale * g;
            let g = if decays { g + decay * *p } else { g };
            *s = *s + g * g;
            *p = *p - rate * g / (s.sqrt() + eps);
        }
    }
}
