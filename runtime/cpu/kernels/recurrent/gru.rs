//! GRU: `z, r = σ(x + q)`, `n = tanh(x + r·q)` with `q = p + bias`, `h = n + z·(h' - n)`.

use super::{Layer, clear, of_step};
use crate::math::{Float, Real};
use crate::simd::vectorized;
use crate::storage::{Scratch, narrow, widen};
use std::iter::zip;
use std::mem::swap;

pub(super) fn run<S: Float>(
    layer: &Layer<S::Real>,
    x: &[S],
    hidden: &[S],
    bias: &[S],
    scratch: &mut [S::Real],
    [y, last, gates]: [&mut [S]; 3],
) {
    let (states, all_gates) = (layer.batch * layer.units, layer.batch * layer.width());
    let (mut state, rest) = scratch.split_at_mut(states);
    let (mut next, rest) = rest.split_at_mut(states);
    let products = &mut rest[..all_gates];
    widen(hidden, state);
    for step in layer.forwards() {
        let own = zip(layer.cut(products, 3), layer.cut(next, 1));
        let made =
            zip(layer.cut(of_step(y, step, states), 1), layer.cut(of_step(gates, step, 4 * states), 4));
        let x = &x[step * all_gates..][..all_gates];
        layer.for_each(zip(own, made), |part, ((mut products, next), (y, mut gates))| {
            for (row, product) in products.iter_mut().enumerate() {
                widen(layer.of_row(bias, part, row % 3), product);
            }
            layer.multiply(state, part, &mut products);
            let mut wide = [(); 3].map(|()| Scratch::new());
            let own = zip(products.as_chunks_mut::<3>().0, next);
            let made = zip(y, gates.as_chunks_mut::<4>().0);
            for (entry, ((products, next), (y, gates))) in zip(part.entries.clone(), zip(own, made)) {
                let old = layer.of_row(state, part, entry);
                if !layer.has(step, entry) {
                    next.copy_from_slice(old);
                    clear(gates.iter_mut().chain([y].iter_mut()));
                    continue;
                }
                let [z, r, n] = &mut wide;
                let x = [(z, 0), (r, 1), (n, 2)]
                    .map(|(wide, gate)| wide.read(layer.of_row(x, part, entry * 3 + gate)));
                let [_, _, inner] = &products;
                narrow(inner, gates[3]);
                units(x, old, products, next);
                zip(products, gates).for_each(|(product, gate)| narrow(product, gate));
                narrow(next, y);
            }
        });
        swap(&mut state, &mut next);
    }
    narrow(state, last);
}

pub(super) fn gradient<S: Float>(
    layer: &Layer<S::Real>,
    [hidden, y, gates, dy, dlast]: [&[S]; 5],
    scratch: &mut [S::Real],
    [dx, dproduct, dhidden]: [&mut [S]; 3],
) {
    let (states, all_gates) = (layer.batch * layer.units, layer.batch * layer.width());
    let (dstate, rest) = scratch.split_at_mut(states);
    let (mut behind, rest) = rest.split_at_mut(all_gates);
    let mut products = &mut rest[..all_gates];
    widen(dlast, dstate);
    for (walked, step) in layer.backwards().enumerate() {
        let own = zip(layer.cut(dstate, 1), layer.cut(products, 3));
        let made =
            zip(layer.cut(of_step(dx, step, all_gates), 3), layer.cut(of_step(dproduct, step, all_gates), 3));
        layer.for_each(zip(own, made), |part, ((mut dstate, mut products), (mut dx, mut dproduct))| {
            if walked > 0 {
                layer.multiply(behind, part, &mut dstate);
            }
            let mut wide = [(); 6].map(|()| Scratch::new());
            let own = zip(dstate, products.as_chunks_mut::<3>().0);
            let made = zip(dx.as_chunks_mut::<3>().0, dproduct.as_chunks_mut::<3>().0);
            for (entry, ((dstate, products), (dx, dproduct))) in zip(part.entries.clone(), zip(own, made)) {
                if !layer.has(step, entry) {
                    clear(products);
                    clear(dx.iter_mut().chain(dproduct));
                    continue;
                }
                let row = step * layer.batch + entry;
                let before = layer.state_before([y, hidden], part, step, entry);
                let [z, r, n, q, old, dshown] = &mut wide;
                let gates = [(z, 0), (r, 1), (n, 2), (q, 3)]
                    .map(|(wide, gate)| wide.read(layer.of_row(gates, part, row * 4 + gate)));
                let dy = dshown.read(layer.of_row(dy, part, row));
                units_gradient(gates, [old.read(before), dy], dstate, products);
                zip(dx.iter_mut(), products.iter()).for_each(|(dx, dsum)| narrow(dsum, dx));
                let [_, _, dnew] = products;
                reset(gates[1], dnew);
                zip(dproduct, products).for_each(|(dproduct, product)| narrow(product, dproduct));
            }
        });
        swap(&mut behind, &mut products);
    }
    if layer.steps > 0 {
        layer.add_through_weight(behind, dstate);
    }
    narrow(dstate, dhidden);
}

vectorized! {
    /// Replaces the products with their bias by the gates `z, r, n`, and computes the state after the step.
    fn units<'a, 'b, 'c; T: Real>(
        x: [&'a [T]; 3],
        before: &'a [T],
        products: &'b mut [&'c mut [T]; 3],
        state: &'b mut [T],
    ) {
        let count = state.len();
        let ([x_z, x_r, x_n], before) = (x.map(|x| &x[..count]), &before[..count]);
        let [update, reset, new] = products.each_mut().map(|product| &mut product[..count]);
        for unit in 0..count {
            let z = (x_z[unit] + update[unit]).sigmoid();
            let r = (x_r[unit] + reset[unit]).sigmoid();
            let n = r.mul_add(new[unit], x_n[unit]).tanh();
            (update[unit], reset[unit], new[unit]) = (z, r, n);
            state[unit] = z.mul_add(before[unit] - n, n);
        }
    }

    /// Computes the gradients of the sums, and replaces the gradient of the state by that before the step without its way through the weight.
    fn units_gradient<'a, 'b, 'c; T: Real>(
        gates: [&'a [T]; 4],
        states: [&'a [T]; 2],
        dstate: &'b mut [T],
        dsums: &'b mut [&'c mut [T]; 3],
    ) {
        let count = dstate.len();
        let [update, reset, new, inner] = gates.map(|gate| &gate[..count]);
        let [before, dy] = states.map(|state| &state[..count]);
        let [dupdate, dreset, dnew] = dsums.each_mut().map(|dsum| &mut dsum[..count]);
        for unit in 0..count {
            let [z, r, n, q] = [update[unit], reset[unit], new[unit], inner[unit]];
            let d = dstate[unit] + dy[unit];
            let of_new = d * (T::ONE - z) * (T::ONE - n * n);
            dupdate[unit] = d * (before[unit] - n) * z * (T::ONE - z);
            dreset[unit] = of_new * q * r * (T::ONE - r);
            dnew[unit] = of_new;
            dstate[unit] = d * z;
        }
    }

    /// Turns the gradients of the new gate's sums into those of its products, which the reset gate multiplies.
    fn reset<'a, 'b; T: Real>(reset: &'a [T], dnew: &'b mut [T]) {
        dnew.iter_mut().zip(reset).for_each(|(d, &r)| *d = *d * r);
    }
}
