//! Adam and AdamW.

use super::{Gradient, Optional, for_blocks};
use crate::call::Call;
use crate::element::with_float;
use crate::math::{Float, Real};
use crate::simd::vectorized;
use crate::storage::Scratch;
use half::{bf16, f16};
use ir::DType;
use ir::ops::optimizer::Adam;

pub(in crate::kernels) fn adam(op: &Adam, call: Call) {
    let moments = call.result_view(1).dtype;
    match (call.dtype(), moments) {
        (DType::F32, DType::BF16) => adam_of::<f32, bf16>(op, call),
        (DType::F16, DType::BF16) => adam_of::<f16, bf16>(op, call),
        (dtype, _) => with_float!(dtype, S => adam_of::<S, S>(op, call)),
    }
}

/// Runs Adam on a parameter of one type with moments of another. Both are computed in the same type.
fn adam_of<S: Float, M: Float<Real = S::Real>>(op: &Adam, mut call: Call) {
    let [rate, decay, step] = [4, 5, 6].map(|index| call.scalar::<f64>(index));
    let Optional { scale, skips } = Optional::of::<S>(&call, 7);
    let (betas, eps) = ([op.beta1.get(), op.beta2.get()], op.eps.get());
    let rule = AdamRule::new(betas, eps, op.decoupled, scale, [rate, decay, step]);
    let gradient = Gradient::<S>::of(&call);
    for_blocks(&mut call, [0, 2, 3], skips, |start, [parameter, first, second]| {
        let parameter = bytemuck::cast_slice_mut::<u8, S>(parameter);
        let [first, second] = [first, second].map(bytemuck::cast_slice_mut::<u8, M>);
        let (gradient, mut wide) = (gradient.block(start, parameter.len()), Scratch::new());
        let gradient = wide.read(&gradient);
        let mut wide = [Scratch::new(), Scratch::new(), Scratch::new()];
        let [wide_parameter, wide_first, wide_second] = &mut wide;
        wide_parameter.update(parameter, |parameter| {
            wide_first.update(first, |first| {
                wide_second.update(second, |second| adam_block(rule, gradient, parameter, first, second));
            });
        });
    });
}

/// The numbers of Adam's rule, in the type in which the parameter is computed.
#[derive(Clone, Copy)]
pub(super) struct AdamRule<T> {
    /// The factor of the gradient.
    scale: T,
    /// The factor of the parameter, from decoupled decay.
    keep: T,
    /// The share of the parameter in the gradient, from decay that is not decoupled.
    decay: T,
    beta1: T,
    beta2: T,
    rest1: T,
    rest2: T,
    /// The learning rate divided by the first moment's correction.
    rate: T,
    /// The square root of 1 / the second moment's correction.
    root: T,
    eps: T,
}

impl<T: Real> AdamRule<T> {
    pub(super) fn new(
        [beta1, beta2]: [f64; 2],
        eps: f64,
        decoupled: bool,
        scale: T,
        [rate, decay, step]: [f64; 3],
    ) -> Self {
        Self {
            scale,
            keep: T::of(if decoupled { 1.0 - rate * decay } else { 1.0 }),
            decay: T::of(if decoupled { 0.0 } else { decay }),
            beta1: T::of(beta1),
            beta2: T::of(beta2),
            rest1: T::of(1.0 - beta1),
            rest2: T::of(1.0 - beta2),
            rate: T::of(rate / (1.0 - beta1.powf(step))),
            root: T::of(1.0 / (1.0 - beta2.powf(step)).sqrt()),
            eps: T::of(eps),
        }
    }

    /// Updates an element. The new moments are stored last: otherwise the compiler would reload them from memory after a store to another
    /// array.
    #[inline(always)]
    fn update(&self, gradient: T, parameter: &mut T, first: &mut T, second: &mut T) {
        let new_first = self.beta1 * *first + self.rest1 * gradient;
        let new_second = self.beta2 * *second + self.rest2 * gradient * gradient;
        *parameter =
            self.keep * *parameter - self.rate * new_first / (new_second.sqrt() * self.root + self.eps);
        (*first, *second) = (new_first, new_second);
    }
}

vectorized! {
    pub(super) fn adam_block<'a; T: Real>(
        rule: AdamRule<T>,
        gradient: &'a [T],
        parameter: &'a mut [T],
        first: &'a mut [T],
        second: &'a mut [T],
    ) {
        // Without decay an infinite parameter must stay: zero times it would be NaN. Two separate loops avoid a branch inside.
        let elements = parameter.iter_mut().zip(first).zip(second).zip(gradient);
        if rule.decay == T::ZERO {
            elements.for_each(|(((p, m), v), &g)| rule.update(rule.scale * g, p, m, v));
        } else {
            elements.for_each(|(((p, m), v), &g)| rule.update(rule.scale * g + rule.decay * *p, p, m, v));
        }
    }
}
