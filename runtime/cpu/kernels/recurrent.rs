//! Recurrent layers and their gradients. In each step one multiplication gives the product of the state and the weight for all entries of the
//! batch; then the gates of each entry are computed.
//!
//! Between two steps the state is in scratch, in the type in which it is computed. So f16 and bf16 are rounded only where a result is stored.

use super::PARALLEL;
use super::conv::reals;
use crate::call::Call;
use crate::element::with_float;
use crate::gemm::{Matrix, Multiply, gemm};
use crate::math::{Float, Real};
use crate::simd::vectorized;
use crate::storage::{Scratch, narrow, widen};
use ir::ops::recurrent::{Cell, Recurrent, RecurrentGrad};
use rayon::prelude::*;

/// A layer on the processor.
struct Layer<'a, T> {
    reverse: bool,
    steps: usize,
    batch: usize,
    /// The number of hidden units.
    units: usize,
    /// The number of gates of all units.
    width: usize,
    /// The number of steps of each entry, if they differ.
    lengths: Option<Vec<i64>>,
    /// `[width, units]`
    weight: &'a [T],
}

impl<T: Real> Layer<'_, T> {
    /// Returns the steps in the order in which the layer goes through them.
    fn forwards(&self) -> Vec<usize> {
        if self.reverse { (0..self.steps).rev().collect() } else { (0..self.steps).collect() }
    }

    fn backwards(&self) -> impl Iterator<Item = usize> {
        self.forwards().into_iter().rev()
    }

    /// Whether an entry has this step.
    fn has(&self, step: usize, entry: usize) -> bool {
        self.lengths.as_ref().is_none_or(|lengths| (step as i64) < lengths[entry])
    }

    /// Returns the row of an entry in the step before, among the rows of all steps. `None` for the entry's first step.
    fn before(&self, step: usize, entry: usize) -> Option<usize> {
        let before = if self.reverse { step + 1 } else { step.checked_sub(1)? };
        (before < self.steps && self.has(before, entry)).then_some(before * self.batch + entry)
    }

    /// Returns the smallest number of entries of one task.
    fn least(&self) -> usize {
        (PARALLEL / 8 / self.width.max(1)).max(1)
    }

    /// `sums (+)= state · weightᵀ`
    fn multiply(&self, state: &[T], sums: &mut [T], add: bool) {
        gemm(
            [self.batch, self.units, self.width],
            (sums, Matrix::with_rows(self.width)),
            (state, Matrix::with_rows(self.units)),
            (self.weight, Matrix::with_rows(self.units).transposed()),
            Multiply { factor: T::ONE, add, parallel: true },
        );
    }

    /// `dstate += dsums · weight`
    fn multiply_back(&self, dsums: &[T], dstate: &mut [T]) {
        gemm(
            [self.batch, self.width, self.units],
            (dstate, Matrix::with_rows(self.units)),
            (dsums, Matrix::with_rows(self.width)),
            (self.weight, Matrix::with_rows(self.units)),
            Multiply { factor: T::ONE, add: true, parallel: true },
        );
    }
}

/// Returns the layer of a call, and the rest of the scratch. The call has the weight and, behind the other operands, perhaps the lengths.
fn layer<'a, S: Float>(
    call: &mut Call<'a>,
    reverse: bool,
    weight: usize,
    sequence: &[usize],
    others: usize,
) -> (Layer<'a, S::Real>, &'a mut [S::Real]) {
    let sizes = &call.operand_view(weight).layout.sizes;
    let (width, units) = (sizes[0], sizes[1]);
    let lengths = (call.operands.len() > others).then(|| call.integers(others));
    let (elements, scratch) = (call.dense::<S>(weight), call.take_scratch::<S::Real>());
    let is_converted = S::as_reals(elements).is_none();
    let (room, scratch) = scratch.split_at_mut(if is_converted { width * units } else { 0 });
    let layer = Layer {
        reverse,
        steps: sequence[0],
        batch: sequence[1],
        units,
        width,
        lengths,
        weight: reals(elements, room),
    };
    (layer, scratch)
}

/// Returns the results as elements, in memory order.
fn results<'a, S: Float, const N: usize>(call: &mut Call<'a>) -> [&'a mut [S]; N] {
    call.take_results().map(bytemuck::cast_slice_mut)
}

pub(super) fn run(op: &Recurrent, mut call: Call) {
    let sequence = &call.operand_view(0).layout.sizes;
    with_float!(call.dtype(), S => match op.cell {
        Cell::Lstm => {
            let (layer, scratch) = layer::<S>(&mut call, op.reverse, 1, sequence, 4);
            let [x, hidden, cell] = [0, 2, 3].map(|i| call.dense::<S>(i));
            lstm(&layer, x, [hidden, cell], scratch, results(&mut call));
        }
        Cell::Gru => {
            let (layer, scratch) = layer::<S>(&mut call, op.reverse, 1, sequence, 4);
            let [x, hidden, bias] = [0, 2, 3].map(|i| call.dense::<S>(i));
            gru(&layer, x, hidden, bias, scratch, results(&mut call));
        }
        Cell::Rnn | Cell::RnnRelu => {
            let (layer, scratch) = layer::<S>(&mut call, op.reverse, 1, sequence, 3);
            let [x, hidden] = [0, 2].map(|i| call.dense::<S>(i));
            rnn(&layer, op.cell == Cell::RnnRelu, x, hidden, scratch, results(&mut call));
        }
    });
}

pub(super) fn gradient(op: &RecurrentGrad, mut call: Call) {
    let sequence = &call.result_view(0).layout.sizes;
    with_float!(call.dtype(), S => match op.cell {
        Cell::Lstm => {
            let (layer, scratch) = layer::<S>(&mut call, op.reverse, 0, sequence, 7);
            let operands = [1, 2, 3, 4, 5, 6].map(|i| call.dense::<S>(i));
            lstm_gradient(&layer, operands, scratch, results(&mut call));
        }
        Cell::Gru => {
            let (layer, scratch) = layer::<S>(&mut call, op.reverse, 0, sequence, 6);
            let operands = [1, 2, 3, 4, 5].map(|i| call.dense::<S>(i));
            gru_gradient(&layer, operands, scratch, results(&mut call));
        }
        Cell::Rnn | Cell::RnnRelu => {
            let (layer, scratch) = layer::<S>(&mut call, op.reverse, 0, sequence, 4);
            let operands = [1, 2, 3].map(|i| call.dense::<S>(i));
            rnn_gradient(&layer, op.cell == Cell::RnnRelu, operands, scratch, results(&mut call));
        }
    });
}

/// Returns the rows of one step.
fn of_step<T>(all: &mut [T], step: usize, width: usize) -> &mut [T] {
    &mut all[step * width..][..width]
}

fn zero<S: Float>() -> S {
    S::narrow(S::Real::ZERO)
}

fn lstm<S: Float>(
    layer: &Layer<S::Real>,
    x: &[S],
    [hidden, before]: [&[S]; 2],
    scratch: &mut [S::Real],
    [y, last, last_cell, gates, cells]: [&mut [S]; 5],
) {
    let (batch, units, width) = (layer.batch, layer.units, layer.width);
    let (state, rest) = scratch.split_at_mut(batch * units);
    let (cell, sums) = rest.split_at_mut(batch * units);
    let sums = &mut sums[..batch * width];
    widen(hidden, state);
    widen(before, cell);
    for step in layer.forwards() {
        widen(&x[step * batch * width..][..batch * width], sums);
        layer.multiply(state, sums, true);
        let made = (
            of_step(y, step, batch * units).par_chunks_exact_mut(units),
            of_step(gates, step, batch * width).par_chunks_exact_mut(width),
            of_step(cells, step, batch * units).par_chunks_exact_mut(units),
        );
        let states = (state.par_chunks_exact_mut(units), cell.par_chunks_exact_mut(units));
        let entries = (sums.par_chunks_exact_mut(width), states, made).into_par_iter().enumerate();
        entries.with_min_len(layer.least()).for_each(|(entry, (sums, (state, cell), (y, gates, cells)))| {
            if !layer.has(step, entry) {
                [y, gates, cells].into_iter().for_each(|made| made.fill(zero()));
                return;
            }
            lstm_gates(sums, cell, state);
            narrow(state, y);
            narrow(sums, gates);
            narrow(cell, cells);
        });
    }
    narrow(state, last);
    narrow(cell, last_cell);
}

vectorized! {
    /// Replaces the sums by the gates `i, o, f, g`, and the states by those after the step.
    fn lstm_gates<'a; T: Real>(sums: &'a mut [T], cell: &'a mut [T], state: &'a mut [T]) {
        let units = state.len();
        let (input, rest) = sums.split_at_mut(units);
        let (output, rest) = rest.split_at_mut(units);
        let (forget, new) = rest.split_at_mut(units);
        let (new, cell) = (&mut new[..units], &mut cell[..units]);
        for unit in 0..units {
            let [i, o, f] = [input[unit], output[unit], forget[unit]].map(Real::sigmoid);
            let g = new[unit].tanh();
            (input[unit], output[unit], forget[unit], new[unit]) = (i, o, f, g);
            cell[unit] = f.mul_add(cell[unit], i * g);
            state[unit] = o * cell[unit].tanh();
        }
    }

    /// Computes the gradients of the sums, and replaces those of the states by those before the step. That of the hidden state lacks its
    /// way through the weight.
    fn lstm_gates_gradient<'a; T: Real>(
        gates: &'a [T],
        cell: &'a [T],
        before: &'a [T],
        dy: &'a [T],
        dstate: &'a mut [T],
        dcell: &'a mut [T],
        dsums: &'a mut [T],
    ) {
        let units = dstate.len();
        let [input, output, forget, new] = [0, 1, 2, 3].map(|gate| &gates[gate * units..][..units]);
        let (dinput, rest) = dsums.split_at_mut(units);
        let (doutput, rest) = rest.split_at_mut(units);
        let (dforget, dnew) = rest.split_at_mut(units);
        let (dnew, dcell) = (&mut dnew[..units], &mut dcell[..units]);
        let (cell, before, dy) = (&cell[..units], &before[..units], &dy[..units]);
        for unit in 0..units {
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

fn lstm_gradient<S: Float>(
    layer: &Layer<S::Real>,
    [first, gates, cells, dy, dlast, dlast_cell]: [&[S]; 6],
    scratch: &mut [S::Real],
    [dx, dhidden, dfirst]: [&mut [S]; 3],
) {
    let (batch, units, width) = (layer.batch, layer.units, layer.width);
    let (dstate, rest) = scratch.split_at_mut(batch * units);
    let (dcell, dsums) = rest.split_at_mut(batch * units);
    let dsums = &mut dsums[..batch * width];
    widen(dlast, dstate);
    widen(dlast_cell, dcell);
    for step in layer.backwards() {
        let states = (dstate.par_chunks_exact_mut(units), dcell.par_chunks_exact_mut(units));
        let dx = of_step(dx, step, batch * width).par_chunks_exact_mut(width);
        let entries = (dsums.par_chunks_exact_mut(width), states, dx).into_par_iter().enumerate();
        let rows = || [(); 4].map(|()| Scratch::new());
        entries.with_min_len(layer.least()).for_each_init(
            rows,
            |rows, (entry, (dsums, (dstate, dcell), dx))| {
                if !layer.has(step, entry) {
                    dsums.fill(S::Real::ZERO);
                    dx.fill(zero());
                    return;
                }
                let row = step * batch + entry;
                let before = match layer.before(step, entry) {
                    Some(before) => &cells[before * units..][..units],
                    None => &first[entry * units..][..units],
                };
                let own = [&gates[row * width..][..width], &cells[row * units..][..units], before];
                let [wide_gates, wide_cell, wide_before, wide_dy] = rows;
                let dy = wide_dy.read(&dy[row * units..][..units]);
                let (gates, cell, before) =
                    (wide_gates.read(own[0]), wide_cell.read(own[1]), wide_before.read(own[2]));
                lstm_gates_gradient(gates, cell, before, dy, dstate, dcell, dsums);
                narrow(dsums, dx);
            },
        );
        layer.multiply_back(dsums, dstate);
    }
    narrow(dstate, dhidden);
    narrow(dcell, dfirst);
}

fn gru<S: Float>(
    layer: &Layer<S::Real>,
    x: &[S],
    hidden: &[S],
    bias: &[S],
    scratch: &mut [S::Real],
    [y, last, gates]: [&mut [S]; 3],
) {
    let (batch, units, width) = (layer.batch, layer.units, layer.width);
    let (state, products) = scratch.split_at_mut(batch * units);
    let products = &mut products[..batch * width];
    let mut wide_bias = Scratch::new();
    let bias = wide_bias.read(bias);
    widen(hidden, state);
    for step in layer.forwards() {
        layer.multiply(state, products, false);
        let x = x[step * batch * width..][..batch * width].par_chunks_exact(width);
        let y = of_step(y, step, batch * units).par_chunks_exact_mut(units);
        let gates = of_step(gates, step, batch * 4 * units).par_chunks_exact_mut(4 * units);
        let states = (products.par_chunks_exact(width), state.par_chunks_exact_mut(units));
        let entries = (x, states, y, gates).into_par_iter().enumerate().with_min_len(layer.least());
        let rows = || [Scratch::new(), Scratch::new()];
        entries.for_each_init(rows, |[wide_x, wide_gates], (entry, (x, (product, state), y, gates))| {
            if !layer.has(step, entry) {
                y.fill(zero());
                gates.fill(zero());
                return;
            }
            let x = wide_x.read(x);
            wide_gates.write(gates, |gates| gru_gates(x, product, bias, gates, state));
            narrow(state, y);
        });
    }
    narrow(state, last);
}

vectorized! {
    /// Computes the gates `z, r, n` and the product of the new gate with its bias, and replaces the state by that after the step.
    fn gru_gates<'a; T: Real>(x: &'a [T], product: &'a [T], bias: &'a [T], gates: &'a mut [T], state: &'a mut [T]) {
        let units = state.len();
        let thirds = |all: &'a [T]| [0, 1, 2].map(|gate| &all[gate * units..][..units]);
        let ([x_z, x_r, x_n], [p_z, p_r, p_n], [b_z, b_r, b_n]) = (thirds(x), thirds(product), thirds(bias));
        let (update, rest) = gates.split_at_mut(units);
        let (reset, rest) = rest.split_at_mut(units);
        let (new, inner) = rest.split_at_mut(units);
        let inner = &mut inner[..units];
        for unit in 0..units {
            let z = (x_z[unit] + p_z[unit] + b_z[unit]).sigmoid();
            let r = (x_r[unit] + p_r[unit] + b_r[unit]).sigmoid();
            let q = p_n[unit] + b_n[unit];
            let n = r.mul_add(q, x_n[unit]).tanh();
            (update[unit], reset[unit], new[unit], inner[unit]) = (z, r, n, q);
            state[unit] = z.mul_add(state[unit] - n, n);
        }
    }

    /// Computes the gradients of the sums, `dx`, and of the products with their bias, and replaces that of the state by that before the step
    /// without its way through the weight.
    fn gru_gates_gradient<'a; T: Real>(
        gates: &'a [T],
        before: &'a [T],
        dy: &'a [T],
        dstate: &'a mut [T],
        dx: &'a mut [T],
        dproduct: &'a mut [T],
    ) {
        let units = dstate.len();
        let [update, reset, new, inner] = [0, 1, 2, 3].map(|gate| &gates[gate * units..][..units]);
        let (before, dy) = (&before[..units], &dy[..units]);
        let (dx_z, rest) = dx.split_at_mut(units);
        let (dx_r, dx_n) = rest.split_at_mut(units);
        let (dp_z, rest) = dproduct.split_at_mut(units);
        let (dp_r, dp_n) = rest.split_at_mut(units);
        let (dx_n, dp_n) = (&mut dx_n[..units], &mut dp_n[..units]);
        for unit in 0..units {
            let [z, r, n, q] = [update[unit], reset[unit], new[unit], inner[unit]];
            let d = dstate[unit] + dy[unit];
            let of_new = d * (T::ONE - z) * (T::ONE - n * n);
            let of_update = d * (before[unit] - n) * z * (T::ONE - z);
            let of_reset = of_new * q * r * (T::ONE - r);
            (dx_z[unit], dx_r[unit], dx_n[unit]) = (of_update, of_reset, of_new);
            (dp_z[unit], dp_r[unit], dp_n[unit]) = (of_update, of_reset, of_new * r);
            dstate[unit] = d * z;
        }
    }
}

fn gru_gradient<S: Float>(
    layer: &Layer<S::Real>,
    [hidden, y, gates, dy, dlast]: [&[S]; 5],
    scratch: &mut [S::Real],
    [dx, dproduct, dhidden]: [&mut [S]; 3],
) {
    let (batch, units, width) = (layer.batch, layer.units, layer.width);
    let (dstate, products) = scratch.split_at_mut(batch * units);
    let products = &mut products[..batch * width];
    widen(dlast, dstate);
    for step in layer.backwards() {
        let made = (
            of_step(dx, step, batch * width).par_chunks_exact_mut(width),
            of_step(dproduct, step, batch * width).par_chunks_exact_mut(width),
        );
        let states = (products.par_chunks_exact_mut(width), dstate.par_chunks_exact_mut(units));
        let entries = (states, made).into_par_iter().enumerate().with_min_len(layer.least());
        let rows = || [(); 4].map(|()| Scratch::new());
        entries.for_each_init(rows, |rows, (entry, ((product, dstate), (dx, dproduct)))| {
            if !layer.has(step, entry) {
                product.fill(S::Real::ZERO);
                dx.fill(zero());
                dproduct.fill(zero());
                return;
            }
            let row = step * batch + entry;
            let before = match layer.before(step, entry) {
                Some(before) => &y[before * units..][..units],
                None => &hidden[entry * units..][..units],
            };
            let [wide_gates, wide_before, wide_dy, wide_dx] = rows;
            let gates = wide_gates.read(&gates[row * 4 * units..][..4 * units]);
            let (before, dy) = (wide_before.read(before), wide_dy.read(&dy[row * units..][..units]));
            wide_dx.write(dx, |dx| gru_gates_gradient(gates, before, dy, dstate, dx, product));
            narrow(product, dproduct);
        });
        layer.multiply_back(products, dstate);
    }
    narrow(dstate, dhidden);
}

fn rnn<S: Float>(
    layer: &Layer<S::Real>,
    relu: bool,
    x: &[S],
    hidden: &[S],
    scratch: &mut [S::Real],
    [y, last]: [&mut [S]; 2],
) {
    let (batch, units) = (layer.batch, layer.units);
    let (state, sums) = scratch.split_at_mut(batch * units);
    let sums = &mut sums[..batch * units];
    widen(hidden, state);
    for step in layer.forwards() {
        widen(&x[step * batch * units..][..batch * units], sums);
        layer.multiply(state, sums, true);
        let y = of_step(y, step, batch * units).par_chunks_exact_mut(units);
        let entries = (sums.par_chunks_exact(units), state.par_chunks_exact_mut(units), y).into_par_iter();
        entries.enumerate().with_min_len(layer.least()).for_each(|(entry, (sums, state, y))| {
            if layer.has(step, entry) {
                rnn_units(relu, sums, state);
                narrow(state, y);
            } else {
                y.fill(zero());
            }
        });
    }
    narrow(state, last);
}

vectorized! {
    /// `state = tanh(sums)`, or the sums that are larger than 0.
    fn rnn_units<'a; T: Real>(relu: bool, sums: &'a [T], state: &'a mut [T]) {
        if relu {
            state.iter_mut().zip(sums).for_each(|(state, &sum)| *state = sum.larger(T::ZERO));
        } else {
            state.iter_mut().zip(sums).for_each(|(state, &sum)| *state = sum.tanh());
        }
    }

    /// Computes the gradients of the sums. That of the state before the step has no way but through the weight.
    fn rnn_units_gradient<'a; T: Real>(relu: bool, y: &'a [T], dy: &'a [T], dstate: &'a mut [T], dsums: &'a mut [T]) {
        for (((&y, &dy), dstate), dsum) in y.iter().zip(dy).zip(dstate.iter_mut()).zip(dsums.iter_mut()) {
            let d = *dstate + dy;
            let through = if relu { if y > T::ZERO { d } else { T::ZERO } } else { d * (T::ONE - y * y) };
            (*dsum, *dstate) = (through, T::ZERO);
        }
    }
}

fn rnn_gradient<S: Float>(
    layer: &Layer<S::Real>,
    relu: bool,
    [y, dy, dlast]: [&[S]; 3],
    scratch: &mut [S::Real],
    [dx, dhidden]: [&mut [S]; 2],
) {
    let (batch, units) = (layer.batch, layer.units);
    let (dstate, dsums) = scratch.split_at_mut(batch * units);
    let dsums = &mut dsums[..batch * units];
    widen(dlast, dstate);
    for step in layer.backwards() {
        let dx = of_step(dx, step, batch * units).par_chunks_exact_mut(units);
        let entries =
            (dsums.par_chunks_exact_mut(units), dstate.par_chunks_exact_mut(units), dx).into_par_iter();
        let rows = || [Scratch::new(), Scratch::new()];
        let entries = entries.enumerate().with_min_len(layer.least());
        entries.for_each_init(rows, |[wide_y, wide_dy], (entry, (dsums, dstate, dx))| {
            if !layer.has(step, entry) {
                dsums.fill(S::Real::ZERO);
                dx.fill(zero());
                return;
            }
            let row = (step * batch + entry) * units;
            let (y, dy) = (wide_y.read(&y[row..][..units]), wide_dy.read(&dy[row..][..units]));
            rnn_units_gradient(relu, y, dy, dstate, dsums);
            narrow(dsums, dx);
        });
        layer.multiply_back(dsums, dstate);
    }
    narrow(dstate, dhidden);
}
