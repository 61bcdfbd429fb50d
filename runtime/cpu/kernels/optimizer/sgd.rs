//! Gradient descent with momentum.

use super::{Optional, update_with_state};
use crate::call::Call;
use crate::element::with_float;
use crate::math::{Float, Real};
use crate::simd::vectorized;
use ir::ops::optimizer::Sgd;

pub(in crate::kernels) fn sgd(op: &Sgd, mut call: Call) {
    let [rate, decay] = [3, 4].map(|index| call.scalar::<f64>(index));
    with_float!(call.dtype(), S => {
        type T = <S as Float>::Real;
        let Optional { scale, skips } = Optional::of::<S>(&call, 5);
        let [rate, decay, momentum] = [rate, decay, op.momentum.get()].map(T::of);
        update_with_state::<S>(&mut call, skips, |gradient, parameter, velocity| {
            sgd_block(scale, rate, decay, momentum, op.nesterov, gradient, parameter, velocity);
        });
    });
}

vectorized! {
    fn sgd_block<'a; T: Real>(
        scale: T,
        rate: T,
        decay: T,
        momentum: T,
        nesterov: bool,
        gradient: &'a [T],
        parameter: &'a mut [T],
        velocity: &'a mut [T],
    ) {
        let decays = decay != T::ZERO;
        for ((p, u), &g) in parameter.iter_mut().zip(velocity).zip(gradient) {
            let g = scale * g;
            let g = if decays { g + decay * *p } else { g };
            *u = momentum * *u + g;
            *p = *p - rate * if nesterov { g + momentum * *u } else { *u };
        }
    }
}
