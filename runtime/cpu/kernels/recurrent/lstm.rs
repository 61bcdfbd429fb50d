//! LSTM: `i, o, f = σ(x + p)`, `g = tanh(x + p)`, `c = f·c' + i·g`, `h = o·tanh(c)`.

use super::{Layer, clear, of_step};
use crate::math::{Float, Real};
use crate::simd::vectorized;
use crate::storage::{Scratch, narrow, widen};
use std::iter::zip;
use std::mem::swap;

pub(super) fn run<S: Float>(
    layer: &Layer<S::Real>,
    x: &[S],
    [hidden, first]: [&[S]; 2],
    scratch: &mut [S::Real],
    [y, last, last_cell, gates, cells]: [&mut [S]; 5],
) {
    let (states, all_gates) = (layer.batch * layer.units, layer.batch * layer.width());
    let (mut state, rest) = scratch.split_at_mut(states);
    let (mut next, rest) = rest.split_at_mut(states);
    let (cell, rest) = rest.split_at_mut(states);
    let sums = &mut rest[..all_gates];
    widen(hidden, state);
    widen(first, cell);
    for step in layer.forwards() {
        let own = zip(layer.cut(sums, 4), zip(layer.cut(next, 1), layer.cut(cell, 1)));
        let made = zip(
            layer.cut(of_step(y, step, states), 1),
            zip(layer.cut(of_step(gates, step, all_gates), 4), layer.cut(of_step(cells, step, states), 1)),
        );
        let x = &x[step * all_gates..][..all_gates];
        layer.for_each(zip(own, made), |part, ((mut sums, own), (mut y, (mut gates, mut cells)))| {
            for (row, sums) in zip(part.entries.start * 4.., &mut sums) {
                widen(layer.of_row(x, part, row), sums);
            }
            layer.multiply(state, part, &mut sums);
            let own = zip(sums.as_chunks_mut::<4>().0, zip(own.0, own.1));
            let made = zip(&mut y, zip(gates.as_chunks_mut::<4>().0, &mut cells));
            for (entry, ((sums, (next, cell)), (y, (gates, cells)))) in
                zip(part.entries.clone(), zip(own, made))
            {
                if !layer.has(step, entry) {
                    next.copy_from_slice(layer.of_row(state, part, entry));
                    clear(gates.iter_mut().chain([y, cells]));
                    continue;
                }
                let [i, o, f, g] = sums;
                units(i, o, f, g, cell, next);
                zip(sums, gates).for_each(|(sums, gates)| narrow(sums, gates));
                narrow(next, y);
                narrow(cell, cells);
            }
        });
        swap(&mut state, &mut next);
    }
    narrow(state, last);
    narrow(cell, last_cell);
}

pub(super) fn gradient<S: Float>(
    layer: &Layer<S::Real>,
    [first, gates, cells, dy, dlast, dlast_cell]: [&[S]; 6],
    scratch: &mut [S::Real],
    [dx, dhidden, dfirst]: [&mut [S]; 3],
) {
    let (states, all_gates) = (layer.batch * layer.units, layer.batch * layer.width());
    let (dstate, rest) = scratch.split_at_mut(states);
    let (dcell, rest) = rest.split_at_mut(states);
    let (mut behind, rest) = rest.split_at_mut(all_gates);
    let mut dsums = &mut rest[..all_gates];
    widen(dlast, dstate);
    widen(dlast_cell, dcell);
    for (walked, step) in layer.backwards().enumerate() {
        let own = zip(layer.cut(dstate, 1), layer.cut(dcell, 1));
        let made = zip(layer.cut(dsums, 4), layer.cut(of_step(dx, step, all_gates), 4));
        layer.for_each(zip(own, made), |part, ((mut dstate, dcell), (mut dsums, mut dx))| {
            if walked > 0 {
                layer.multiply(behind, part, &mut dstate);
            }
            let mut wide = [(); 7].map(|()| Scratch::new());
            let made = zip(dsums.as_chunks_mut::<4>().0, dx.as_chunks_mut::<4>().0);
            for (entry, ((dstate, dcell), (dsums, dx))) in
                zip(part.entries.clone(), zip(zip(dstate, dcell), made))
            {
                if !layer.has(step, entry) {
                    clear(dsums);
                    clear(dx);
                    continue;
                }
                let row = step * layer.batch + entry;
                let before = layer.state_before([cells, first], part, step, entry);
                let [i, o, f, g, cell, old, dshown] = &mut wide;
                let [i, o, f, g] = [(i, 0), (o, 1), (f, 2), (g, 3)]
                    .map(|(wide, gate)| wide.read(layer.of_row(gates, part, row * 4 + gate)));
                let cell = cell.read(layer.of_row(cells, part, row));
                let dy = dshown.read(layer.of_row(dy, part, row));
                units_gradient([i, o, f, g], [cell, old.read(before), dy], dstate, dcell, dsums);
                zip(dsums, dx).for_each(|(dsums, dx)| narrow(dsums, dx));
            }
        });
        swap(&mut behind, &mut dsums);
    }
    if layer.steps > 0 {
        layer.add_through_weight(behind, dstate);
    }
    narrow(dstate, dhidden);
    narrow(dcell, dfirst);
}

vectorized! {
    /// Replaces the sums by the gates `i, o, f, g`, and computes the states after the step.
    fn units<'a; T: Real>(
        input: &'a mut [T],
        output: &'a mut [T],
        forget: &'a mut [T],
        new: &'a mut [T],
        cell: &'a mut [T],
        state: &'a mut [T],
    ) {
        let count = state.len();
        let (input, output, forget) = (&mut input[..count], &mut output[..count], &mut forget[..count]);
        let (new, cell) = (&mut new[..count], &mut cell[..count]);
        for unit in 0..count {
            // The compiler does not inline `map` of an array here, and then compiles its function for old processors.
            let (i, o) = (input[unit].sigmoid(), output[unit].sigmoid());
            let (f, g) = (forget[unit].sigmoid(), new[unit].tanh());
            (input[unit], output[unit], forget[unit], new[unit]) = (i, o, f, g);
            cell[unit] = f.mul_add(cell[unit], i * g);
            state[unit] = o * cell[unit].tanh();
        }
    }

    /// Computes the gradients of the sums, and replaces the gradients of the states by those before the step. The gradient of the hidden state
    /// lacks its way through the weight.
    fn units_gradient<'a, 'b, 'c; T: Real>(
        gates: [&'a [T]; 4],
        states: [&'a [T]; 3],
        dstate: &'b mut [T],
        dcell: &'b mut [T],
        dsums: &'b mut [&'c mut [T]; 4],
    ) {
        let count = dstate.len();
        let [input, output, forget, new] = gates.map(|gate| &gate[..count]);
        let [cell, before, dy] = states.map(|state| &state[..count]);
        let [dinput, doutput, dforget, dnew] = dsums.each_mut().map(|dsum| &mut dsum[..count]);
        let dcell = &mut dcell[..count];
        for unit in 0..count {
            let [i, o, f, g] = [input[unit], output[unit], forget[unit], new[unit]];
            let (d, shown) = (dstate[unit] + dy[unit], cell[unit].tanh());
            let of_cell = (d * o).mul_add(T::ONE - shown * shown, dcell[unit]);
            dinput[unit] = of_cell * g * i * (T::ONE - i);
            doutput[unit] = d * shown * o * (T::ONE - o);
            dforget[unit] = of_cell * before[unit] * f * (T::ONE - f);
            dnew[unit] = of_cell * i * (T::ONE - g * g);
            dcell[unit] = of_cell * f;
            dstate[unit] = T::ZERO;
        }
    }
}
