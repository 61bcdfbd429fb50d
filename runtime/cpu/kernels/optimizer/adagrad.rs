//! Adagrad.

use super::{Gradient, Optional, for_blocks};
use crate::call::Call;
use crate::element::with_float;
use crate::math::{Float, Real};
use crate::simd::vectorized;
use crate::storage::Scratch;
use ir::ops::optimizer::Adagrad;

pub(in crate::kernels) fn adagrad(op: &Adagrad, mut call: Call) {
    let [rate, decay] = [3, 4].map(|index| call.scalar::<f64>(index));
    with_float!(call.dtype(), S => {
        type T = <S as Float>::Real;
        let Optional { scale, skips } = Optional::of::<S>(&call, 5);
        let [rate, decay, eps] = [rate, decay, op.eps.get()].map(T::of);
        let gradient = Gradient::<S>::of(&call);
        for_blocks(&mut call, [0, 2], skips, |start, results| {
            let [parameter, sum] = results.map(bytemuck::cast_slice_mut::<u8, S>);
            let (gradient, mut wide) = (gradient.block(start, parameter.len()), Scratch::new());
            let gradient = wide.read(&gradient);
            let [mut wide_parameter, mut wide_sum] = [Scratch::new(), Scratch::new()];
            wide_parameter.update(parameter, |parameter| {
                wide_sum.update(sum, |sum| adagrad_block(scale, rate, decay, eps, gradient, parameter, sum));
            });
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
