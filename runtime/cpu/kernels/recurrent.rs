//! Recurrent layers and their gradients.
//!
//! A step has one task for each part of the layer: some hidden units of some entries of the batch. A task multiplies the states of its
//! entries by its columns of the weight, and then computes its gates and its states, so the threads meet once in each step. A task reads
//! the states of all units before the step, therefore the states after it are written beside them.
//!
//! Between two steps the state is in scratch, in the type in which it is computed. So f16 and bf16 are rounded only where a result is stored.

mod gru;
mod lstm;
mod product;
mod rnn;

use crate::call::Call;
use crate::element::with_float;
use crate::math::{Float, Real};
use crate::scratch::packed_len;
use ir::ops::recurrent::{Cell, Recurrent, RecurrentGrad};
use product::{LANES, Packed};
use rayon::prelude::*;
use std::ops::Range;

/// The multiplications of a task, below which one more task takes longer than it saves.
const TASK: usize = 1 << 17;

/// A layer on the processor.
struct Layer<'a, T> {
    reverse: bool,
    steps: usize,
    batch: usize,
    /// The number of hidden units.
    units: usize,
    /// The number of gates of a unit.
    gates: usize,
    /// The number of steps of each entry, if they differ.
    lengths: Option<Vec<i64>>,
    /// The weight by which a step multiplies.
    weight: Packed<'a, T>,
    /// The number of entries of a task.
    entries_of_task: usize,
    /// The number of units of a task.
    units_of_task: usize,
}

/// The part of a layer that one task computes.
struct Part {
    entries: Range<usize>,
    units: Range<usize>,
}

/// The rows of a matrix that belong to a part of the layer. A row has an element for each unit of the part. An entry has one row or, in a
/// matrix of gates, one row for each gate.
type Rows<'a, S> = Vec<&'a mut [S]>;

impl<T: Real> Layer<'_, T> {
    /// Returns the number of gates of all units.
    fn width(&self) -> usize {
        self.gates * self.units
    }

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

    /// Returns the state before a step of a part's entry: that of the step before, or the first state.
    fn state_before<'s, S>(
        &self,
        [states, first]: [&'s [S]; 2],
        part: &Part,
        step: usize,
        entry: usize,
    ) -> &'s [S] {
        match self.before(step, entry) {
            Some(row) => self.of_row(states, part, row),
            None => self.of_row(first, part, entry),
        }
    }

    /// Returns the elements of a part's units in a row of a matrix that has an element for each unit.
    fn of_row<'s, S>(&self, matrix: &'s [S], part: &Part, row: usize) -> &'s [S] {
        &matrix[row * self.units..][part.units.clone()]
    }

    /// Adds the products of a part's entries with its columns of the weight. `states` is the whole left operand.
    fn multiply(&self, states: &[T], part: &Part, sums: &mut [&mut [T]]) {
        let depth = self.weight.depth();
        self.weight.add_products(
            &states[part.entries.start * depth..part.entries.end * depth],
            &part.units,
            sums,
        );
    }

    /// Returns the number of parts along the units, and that along the entries.
    fn counts(&self) -> [usize; 2] {
        [self.units.div_ceil(self.units_of_task), self.batch.div_ceil(self.entries_of_task)]
    }

    /// Returns all parts of the layer.
    fn parts(&self) -> impl Iterator<Item = Part> {
        let [of_units, of_entries] = self.counts();
        let range = |part: usize, size: usize, all: usize| part * size..((part + 1) * size).min(all);
        (0..of_entries * of_units).map(move |part| Part {
            entries: range(part / of_units, self.entries_of_task, self.batch),
            units: range(part % of_units, self.units_of_task, self.units),
        })
    }

    /// Cuts a matrix into the rows of each part. It has `gates` rows of all units for each entry.
    fn cut<'s, S>(&self, matrix: &'s mut [S], gates: usize) -> Vec<Rows<'s, S>> {
        let [of_units, of_entries] = self.counts();
        let rows = self.entries_of_task.min(self.batch) * gates;
        let mut parts: Vec<Rows<S>> = (0..of_entries * of_units).map(|_| Vec::with_capacity(rows)).collect();
        for (row, units) in matrix.chunks_exact_mut(self.units).enumerate() {
            let first = row / gates / self.entries_of_task * of_units;
            for (part, units) in units.chunks_mut(self.units_of_task).enumerate() {
                parts[first + part].push(units);
            }
        }
        parts
    }

    /// Runs the tasks of a step. `parts` has the memory of each part of the layer, in the order of [`Self::parts`].
    fn for_each<M: Send>(&self, parts: impl Iterator<Item = M>, task: impl Fn(&Part, M) + Sync) {
        let mut tasks: Vec<(Part, M)> = self.parts().zip(parts).collect();
        if tasks.len() == 1 {
            return tasks.drain(..).for_each(|(part, memory)| task(&part, memory));
        }
        tasks.into_par_iter().with_max_len(1).for_each(|(part, memory)| task(&part, memory));
    }

    /// Adds the ways of the states' gradients through the weight: `dstate += dsums · weight`.
    fn add_through_weight(&self, dsums: &[T], dstate: &mut [T]) {
        let parts = self.cut(dstate, 1).into_iter();
        self.for_each(parts, |part, mut dstate| self.multiply(dsums, part, &mut dstate));
    }
}

/// The direction in which a weight is multiplied.
enum Product {
    /// `state · weightᵀ`
    Forward,
    /// `d sums · weight`
    Backward,
}

/// Returns the layer of a call, and the rest of the scratch. The call has the weight and, behind the other operands, perhaps the lengths.
fn layer<'a, S: Float>(
    call: &mut Call<'a>,
    (product, reverse): (Product, bool),
    sequence: &[usize],
    [weight, others]: [usize; 2],
) -> (Layer<'a, S::Real>, &'a mut [S::Real]) {
    let sizes = &call.operand_view(weight).layout.sizes;
    let (width, units, batch) = (sizes[0], sizes[1], sequence[1]);
    let lengths = (call.operands.len() > others).then(|| call.integers(others));
    let (elements, scratch) = (call.dense::<S>(weight), call.take_scratch::<S::Real>());
    let gates = width / units.max(1);
    let (weight, scratch) = match product {
        Product::Forward => {
            let (room, scratch) = scratch.split_at_mut(packed_len(units, gates, units));
            (Packed::transposed(elements, [units, gates, units], room), scratch)
        }
        Product::Backward => {
            let (room, scratch) = scratch.split_at_mut(packed_len(width, 1, units));
            (Packed::of(elements, [width, units], room), scratch)
        }
    };
    // Parts are divided along the units: then a thread reads its own part of the weight in every step, which stays in its cache.
    let tasks = rayon::current_num_threads().min(batch * width * units / TASK).max(1);
    let units_of_task = units.div_ceil(tasks).next_multiple_of(LANES).max(LANES);
    let entries_of_task = batch.div_ceil(tasks.div_ceil(units.div_ceil(units_of_task).max(1))).max(1);
    let steps = sequence[0];
    (Layer { reverse, steps, batch, units, gates, lengths, weight, entries_of_task, units_of_task }, scratch)
}

/// Returns the results as elements, in memory order.
fn results<'a, S: Float, const N: usize>(call: &mut Call<'a>) -> [&'a mut [S]; N] {
    call.take_results().map(bytemuck::cast_slice_mut)
}

pub(super) fn run(op: &Recurrent, mut call: Call) {
    let sequence = &call.operand_view(0).layout.sizes;
    let direction = (Product::Forward, op.reverse);
    with_float!(call.dtype(), S => match op.cell {
        Cell::Lstm => {
            let (layer, scratch) = layer::<S>(&mut call, direction, sequence, [1, 4]);
            let [x, hidden, cell] = [0, 2, 3].map(|i| call.dense::<S>(i));
            lstm::run(&layer, x, [hidden, cell], scratch, results(&mut call));
        }
        Cell::Gru => {
            let (layer, scratch) = layer::<S>(&mut call, direction, sequence, [1, 4]);
            let [x, hidden, bias] = [0, 2, 3].map(|i| call.dense::<S>(i));
            gru::run(&layer, x, hidden, bias, scratch, results(&mut call));
        }
        Cell::Rnn | Cell::RnnRelu => {
            let (layer, scratch) = layer::<S>(&mut call, direction, sequence, [1, 3]);
            let [x, hidden] = [0, 2].map(|i| call.dense::<S>(i));
            rnn::run(&layer, op.cell == Cell::RnnRelu, x, hidden, scratch, results(&mut call));
        }
    });
}

pub(super) fn gradient(op: &RecurrentGrad, mut call: Call) {
    let sequence = &call.result_view(0).layout.sizes;
    let direction = (Product::Backward, op.reverse);
    with_float!(call.dtype(), S => match op.cell {
        Cell::Lstm => {
            let (layer, scratch) = layer::<S>(&mut call, direction, sequence, [0, 7]);
            let operands = [1, 2, 3, 4, 5, 6].map(|i| call.dense::<S>(i));
            lstm::gradient(&layer, operands, scratch, results(&mut call));
        }
        Cell::Gru => {
            let (layer, scratch) = layer::<S>(&mut call, direction, sequence, [0, 6]);
            let operands = [1, 2, 3, 4, 5].map(|i| call.dense::<S>(i));
            gru::gradient(&layer, operands, scratch, results(&mut call));
        }
        Cell::Rnn | Cell::RnnRelu => {
            let (layer, scratch) = layer::<S>(&mut call, direction, sequence, [0, 4]);
            let operands = [1, 2, 3].map(|i| call.dense::<S>(i));
            rnn::gradient(&layer, op.cell == Cell::RnnRelu, operands, scratch, results(&mut call));
        }
    });
}

/// Returns the rows of one step.
fn of_step<T>(all: &mut [T], step: usize, width: usize) -> &mut [T] {
    &mut all[step * width..][..width]
}

/// Sets all elements of some rows to zero.
fn clear<'a, 'b: 'a, S: Float + 'b>(rows: impl IntoIterator<Item = &'a mut &'b mut [S]>) {
    rows.into_iter().for_each(|row| row.fill(S::narrow(S::Real::ZERO)));
}
