//! RNN: `h = tanh(x + p)`, or `h = max(0, x + p)`.

use super::{Layer, clear, of_step};
use crate::math::{Float, Real};
use crate::simd::vectorized;
use crate::storage::{Scratch, narrow, widen};
use std::iter::zip;
use std::mem::swap;

pub(super) fn run<S: Float>(
    layer: &Layer<S::Real>,
    relu: bool,
    x: &[S],
    hidden: &[S],
    scratch: &mut [S::Real],
    [y, last]: [&mut [S]; 2],
) {
    let states = layer.batch * layer.units;
    let (mut state, rest) = scratch.split_at_mut(states);
    let mut next = &mut rest[..states];
    widen(hidden, state);
    for step in layer.forwards() {
        let parts = zip(layer.cut(next, 1), layer.cut(of_step(y, step, states), 1));
        let x = &x[step * states..][..states];
        layer.for_each(parts, |part, (mut next, y)| {
            for (entry, sums) in zip(part.entries.clone(), &mut next) {
                widen(layer.of_row(x, part, entry), sums);
            }
            layer.multiply(state, part, &mut next);
            for (entry, (next, y)) in zip(part.entries.clone(), zip(next, y)) {
                if layer.has(step, entry) {
                    units(relu, next);
                    narrow(next, y);
                } else {
                    next.copy_from_slice(layer.of_row(state, part, entry));
                    clear(&mut [y]);
                }
            }
        });
        swap(&mut state, &mut next);
    }
    narrow(state, last);
}

pub(super) fn gradient<S: Float>(
    layer: &Layer<S::Real>,
    relu: bool,
    [y, dy, dlast]: [&[S]; 3],
    scratch: &mut [S::Real],
    [dx, dhidden]: [&mut [S]; 2],
) {
    let states = layer.batch * layer.units;
    let (dstate, rest) = scratch.split_at_mut(states);
    let (mut behind, rest) = rest.split_at_mut(states);
    let mut dsums = &mut rest[..states];
    widen(dlast, dstate);
    for (walked, step) in layer.backwards().enumerate() {
        let made = zip(layer.cut(dsums, 1), layer.cut(of_step(dx, step, states), 1));
        layer.for_each(zip(layer.cut(dstate, 1), made), |part, (mut dstate, (dsums, dx))| {
            if walked > 0 {
                layer.multiply(behind, part, &mut dstate);
            }
            let mut wide = [(); 2].map(|()| Scratch::new());
            for (entry, (dstate, (dsums, dx))) in zip(part.entries.clone(), zip(dstate, zip(dsums, dx))) {
                if !layer.has(step, entry) {
                    clear(&mut [dsums]);
                    clear(&mut [dx]);
                    continue;
                }
                let row = step * layer.batch + entry;
                let [own, dshown] = &mut wide;
                let (y, dy) =
                    (own.read(layer.of_row(y, part, row)), dshown.read(layer.of_row(dy, part, row)));
                units_gradient(relu, y, dy, dstate, dsums);
                narrow(dsums, dx);
            }
        });
        swap(&mut behind, &mut dsums);
    }
    if layer.steps > 0 {
        layer.add_through_weight(behind, dstate);
    }
    narrow(dstate, dhidden);
}

vectorized! {
    /// Replaces the sums by the state after the step.
    fn units<'a; T: Real>(relu: bool, state: &'a mut [T]) {
        if relu {
            state.iter_mut().for_each(|sum| *sum = sum.larger(T::ZERO));
        } else {
            state.iter_mut().for_each(|sum| *sum = sum.tanh());
        }
    }

    /// Computes the gradients of the sums. The gradient of the state before the step has no way but that through the weight.
    fn units_gradient<'a; T: Real>(relu: bool, y: &'a [T], dy: &'a [T], dstate: &'a mut [T], dsums: &'a mut [T]) {
        for (((&y, &dy), dstate), dsum) in y.iter().zip(dy).zip(dstate.iter_mut()).zip(dsums.iter_mut()) {
            let d = *dstate + dy;
            let through = if relu { if y > T::ZERO { d } else { T::ZERO } } else { d * (T::ONE - y * y) };
            (*dsum, *dstate) = (through, T::ZERO);
        }
    }
}
