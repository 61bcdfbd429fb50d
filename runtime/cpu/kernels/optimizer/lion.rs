//! Lion.

use super::{Optional, update_with_state};
use crate::call::Call;
use crate::element::with_float;
use crate::math::{Float, Real};
use crate::simd::vectorized;
use ir::ops::optimizer::Lion;

pub(in crate::kernels) fn lion(op: &Lion, mut call: Call) {
    let [rate, decay] = [3, 4].map(|index| call.scalar::<f64>(index));
    let [beta1, beta2] = [op.beta1.get(), op.beta2.get()];
    with_float!(call.dtype(), S => {
        type T = <S as Float>::Real;
        let Optional { scale, skips } = Optional::of::<S>(&call, 5);
        let rule = LionRule {
            scale,
            keep: T::of(1.0 - rate * decay),
            rate: T::of(rate),
            beta1: T::of(beta1),
            beta2: T::of(beta2),
            rest1: T::of(1.0 - beta1),
            rest2: T::of(1.0 - beta2),
        };
        update_with_state::<S>(&mut call, skips, |gradient, parameter, momentum| {
            lion_block(rule, gradient, parameter, momentum);
        });
    });
}

/// The numbers of Lion's rule, in the type in which the parameter is computed.
#[derive(Clone, Copy)]
struct LionRule<T> {
    /// The factor of the gradient.
    scale: T,
    /// The factor of the parameter, from decay.
    keep: T,
    rate: T,
    beta1: T,
    beta2: T,
    rest1: T,
    rest2: T,
}

vectorized! {
    fn lion_block<'a; T: Real>(
        rule: LionRule<T>,
        gradient: &'a [T],
        parameter: &'a mut [T],
        momentum: &'a mut [T],
    ) {
        for ((p, m), &g) in parameter.iter_mut().zip(momentum).zip(gradient) {
            let g = rule.scale * g;
            let direction = rule.beta1 * *m + rule.rest1 * g;
            // Both comparisons are false for NaN, so a NaN stays.
            let sign = if direction > T::ZERO { T::ONE } else { direction };
            let sign = if direction < T::ZERO { -T::ONE } else { sign };
            *p = rule.keep * *p - rule.rate * sign;
            *m = rule.beta2 * *m + rule.rest2 * g;
        }
    }
}
