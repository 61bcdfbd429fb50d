//! Updates of parameters, in place where the memory plan put them so.

use super::PARALLEL;
use super::copy::memory_order;
use crate::cpu::call::{Call, Source};
use crate::cpu::element::{Element, with_float};
use crate::cpu::math::Real;
use crate::cpu::simd::vectorized;
use crate::cpu::storage::{Float, Scratch};
use crate::cpu::walk::Walk;
use ir::ops::optimizer::{Adagrad, Adam, Sgd};
use rayon::prelude::*;

/// Elements a task updates at a time.
const BLOCK: usize = 1 << 12;

/// The operands that every update may have behind its own: the scalar `scale` and the bool `skip`.
struct Optional<T> {
    /// The factor of the gradient; 1 if there is none, by which a product is the other factor to the bit.
    scale: T,
    skips: bool,
}

impl<T: Real> Optional<T> {
    /// The operands from this one on.
    fn of<S: Float<Real = T>>(call: &Call, first: usize) -> Self {
        let count = call.operands.len();
        let scale = if first < count { call.scalar::<S>(first).widen() } else { T::ONE };
        let skips = first + 1 < count && call.scalar::<u8>(first + 1) != 0;
        Self { scale, skips }
    }
}

pub(super) fn adam(op: &Adam, mut call: Call) {
    let [rate, decay, step] = [4, 5, 6].map(|index| call.scalar::<f64>(index));
    let (beta1, beta2) = (op.beta1.get(), op.beta2.get());
    with_float!(call.dtype(), S => {
        type T = <S as Float>::Real;
        let Optional { scale, skips } = Optional::of::<S>(&call, 7);
        let rule = AdamRule {
            scale,
            keep: T::of(if op.decoupled { 1.0 - rate * decay } else { 1.0 }),
            decay: T::of(if op.decoupled { 0.0 } else { decay }),
            beta1: T::of(beta1),
            beta2: T::of(beta2),
            rest1: T::of(1.0 - beta1),
            rest2: T::of(1.0 - beta2),
            rate: T::of(rate / (1.0 - beta1.powf(step))),
            root: T::of(1.0 / (1.0 - beta2.powf(step)).sqrt()),
            eps: T::of(op.eps.get()),
        };
        let gradient = Gradient::<S>::of(&call);
        let old = [0, 2, 3].map(|index| call.dense_or_in_place::<S>(index));
        for_blocks(old, call.take_results(), skips, |start, [parameter, first, second]| {
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
    });
}

/// The numbers of Adam's rule, in the type that the parameter is computed in.
#[derive(Clone, Copy)]
struct AdamRule<T> {
    /// Factor on the gradient.
    scale: T,
    /// Factor on the parameter: decoupled decay.
    keep: T,
    /// Share of the parameter in the gradient: decay that is not decoupled.
    decay: T,
    beta1: T,
    beta2: T,
    rest1: T,
    rest2: T,
    /// The learning rate over the first moment's correction.
    rate: T,
    /// The root of one over the second moment's correction.
    root: T,
    eps: T,
}

vectorized! {
    fn adam_block<'a; T: Real>(
        rule: AdamRule<T>,
        gradient: &'a [T],
        parameter: &'a mut [T],
        first: &'a mut [T],
        second: &'a mut [T],
    ) {
        // Without decay an infinite parameter stays as it is: zero times it would be NaN.
        let decays = rule.decay != T::ZERO;
        for (((p, m), v), &g) in parameter.iter_mut().zip(first).zip(second).zip(gradient) {
            let g = rule.scale * g;
            let g = if decays { g + rule.decay * *p } else { g };
            *m = rule.beta1 * *m + rule.rest1 * g;
            *v = rule.beta2 * *v + rule.rest2 * g * g;
            *p = rule.keep * *p - rule.rate * *m / (v.sqrt() * rule.root + rule.eps);
        }
    }
}

pub(super) fn sgd(op: &Sgd, mut call: Call) {
    let [rate, decay] = [3, 4].map(|index| call.scalar::<f64>(index));
    with_float!(call.dtype(), S => {
        type T = <S as Float>::Real;
        let Optional { scale, skips } = Optional::of::<S>(&call, 5);
        let [rate, decay, momentum] = [rate, decay, op.momentum.get()].map(T::of);
        let gradient = Gradient::<S>::of(&call);
        let old = [0, 2].map(|index| call.dense_or_in_place::<S>(index));
        for_blocks(old, call.take_results(), skips, |start, [parameter, velocity]| {
            let (gradient, mut wide) = (gradient.block(start, parameter.len()), Scratch::new());
            let gradient = wide.read(&gradient);
            let [mut wide_parameter, mut wide_velocity] = [Scratch::new(), Scratch::new()];
            wide_parameter.update(parameter, |parameter| {
                wide_velocity.update(velocity, |velocity| {
                    sgd_block(scale, rate, decay, momentum, op.nesterov, gradient, parameter, velocity);
                });
            });
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

pub(super) fn adagrad(op: &Adagrad, mut call: Call) {
    let [rate, decay] = [3, 4].map(|index| call.scalar::<f64>(index));
    with_float!(call.dtype(), S => {
        type T = <S as Float>::Real;
        let Optional { scale, skips } = Optional::of::<S>(&call, 5);
        let [rate, decay, eps] = [rate, decay, op.eps.get()].map(T::of);
        let gradient = Gradient::<S>::of(&call);
        let old = [0, 2].map(|index| call.dense_or_in_place::<S>(index));
        for_blocks(old, call.take_results(), skips, |start, [parameter, sum]| {
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

/// The gradient, which may lie otherwise than the parameter does.
struct Gradient<'a, T> {
    elements: &'a [T],
    walk: Option<Walk>,
}

impl<'a, T: Element> Gradient<'a, T> {
    fn of(call: &Call<'a>) -> Self {
        let Source { elements, layout } = call.source::<T>(1);
        let order = memory_order(&call.result_view(0).layout);
        let walk = (!layout.is_dense()).then(|| Walk::new(&layout, &order));
        Self { elements, walk }
    }

    fn block(&self, start: usize, len: usize) -> std::borrow::Cow<'a, [T]> {
        let Some(walk) = &self.walk else { return self.elements[start..start + len].into() };
        let mut block = vec![T::from_i64(0); len];
        walk.load(self.elements, start, &mut block);
        block.into()
    }
}

/// Calls for blocks of the results, which hold the old values: copied there, unless the results lie in their place. An update
/// that is skipped leaves the old values.
fn for_blocks<T: Element, const N: usize>(
    old: [Option<&[T]>; N],
    results: [&mut [u8]; N],
    skips: bool,
    block: impl Fn(usize, [&mut [T]; N]) + Sync,
) {
    let len = results[0].len() / size_of::<T>();
    let size = if len < PARALLEL { len } else { BLOCK };
    let mut parts: Vec<Vec<&mut [T]>> = (0..len.div_ceil(size)).map(|_| Vec::with_capacity(N)).collect();
    for result in results {
        let chunks = bytemuck::cast_slice_mut::<u8, T>(result).chunks_mut(size);
        chunks.zip(&mut parts).for_each(|(chunk, part)| part.push(chunk));
    }
    parts.into_par_iter().enumerate().for_each(|(index, mut part)| {
        let start = index * size;
        for (old, new) in old.iter().zip(&mut part) {
            old.iter().for_each(|old| new.copy_from_slice(&old[start..start + new.len()]));
        }
        if let (false, Ok(part)) = (skips, part.try_into()) {
            block(start, part);
        }
    });
}
