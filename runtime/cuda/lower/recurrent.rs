//! Recurrent layers: a launch for each step, between one that copies the first states to scratch and one that stores the last.

use super::source::{KernelDraft, RECURRENT, address, computed};
use super::{Multiprocessors, Step, Unplaced};
use crate::program::Argument;
use ir::ops::recurrent::{Cell, Recurrent, RecurrentGrad};
use ir::{DType, Op};
use program::{Instruction, View};

/// The entries of the batch that a warp or a thread computes, as in the kernels.
const ENTRIES: usize = 4;

/// A layer on a GPU.
struct Layer<'a> {
    instruction: &'a Instruction,
    cell: Cell,
    reverse: bool,
    weight: &'a View,
    steps: usize,
    batch: usize,
    /// The number of hidden units.
    units: usize,
    /// The number of gates of all units.
    width: usize,
    lengths: Option<&'a View>,
}

impl<'a> Layer<'a> {
    /// Returns the layer of an instruction. `weight` and `lengths` are the places of these operands, and `sequence` has a row for each step and
    /// entry.
    fn of(
        instruction: &'a Instruction,
        (cell, reverse): (Cell, bool),
        [weight, lengths]: [usize; 2],
        sequence: &View,
    ) -> Self {
        let weight = &instruction.operands[weight];
        let [steps, batch] = [0, 1].map(|dim| sequence.layout.sizes[dim]);
        let [width, units] = [0, 1].map(|dim| weight.layout.sizes[dim]);
        let lengths = instruction.operands.get(lengths);
        Self { instruction, cell, reverse, weight, steps, batch, units, width, lengths }
    }

    fn states(&self) -> usize {
        self.batch * self.units
    }

    /// Returns the type that the layer is computed in.
    fn computed(&self) -> &'static str {
        computed(self.weight.dtype)
    }

    /// Returns the steps in the order in which the layer goes through them.
    fn forwards(&self) -> Vec<usize> {
        if self.reverse { (0..self.steps).rev().collect() } else { (0..self.steps).collect() }
    }

    /// Adds a pointer into scratch, behind this number of elements.
    fn scratch(&self, run: &mut KernelDraft, elements: usize) -> String {
        let mut view = self.instruction.scratch.clone().expect("the states between steps are in scratch");
        view.layout.offset += (elements * words(self.weight.dtype)) as isize;
        run.parameter(format!("{}*", self.computed()), address(&view))
    }

    /// Adds the lengths, and returns them as an argument.
    fn lengths(&self, run: &mut KernelDraft) -> String {
        self.lengths.map_or_else(|| "recurrent::Whole()".into(), |lengths| run.reads(lengths))
    }

    /// Returns the first parameters of a step's template.
    fn shape(&self) -> String {
        let cell = match self.cell {
            Cell::Lstm => "LSTM",
            Cell::Gru => "GRU",
            Cell::Rnn => "RNN",
            Cell::RnnRelu => "RNN_RELU",
        };
        format!("recurrent::{cell}, {}, {}, {}", self.batch, self.units, self.computed())
    }

    /// Returns an operand of an LSTM, or the weight in its place: it is not read then.
    fn of_lstm(&self, run: &mut KernelDraft, operand: usize) -> String {
        run.reads(if self.cell == Cell::Lstm { &self.instruction.operands[operand] } else { self.weight })
    }
}

/// Returns the part of a tensor that belongs to a step.
fn of_step(view: &View, step: usize) -> View {
    let mut part = view.clone();
    part.layout.offset += step as isize * part.layout.strides[0];
    part
}

/// Returns the f32 numbers that an element takes in the type in which it is computed.
fn words(dtype: DType) -> usize {
    if dtype == DType::F64 { 2 } else { 1 }
}

pub(super) fn layer(op: &Recurrent, instruction: &Instruction) -> Vec<Step> {
    let (operands, results) = (&instruction.operands, &instruction.results);
    let lengths = if op.cell.keeps_gates() { 4 } else { 3 };
    let layer = Layer::of(instruction, (op.cell, op.reverse), [1, lengths], &operands[0]);
    let (states, has_cell) = (layer.states(), op.cell == Cell::Lstm);
    if states == 0 {
        return vec![];
    }
    let mut run = KernelDraft::of("recurrent_start", &RECURRENT);
    let (hidden, cell) = (run.reads(&operands[2]), layer.of_lstm(&mut run, 3));
    let [state, cells] = [0, 2].map(|buffer| layer.scratch(&mut run, buffer * states));
    run.line(format!("recurrent::start<{states}>({hidden}, {cell}, {state}, {cells}, {has_cell});"));
    let mut steps = vec![Step::Kernel(run.threads(states))];
    for (index, step) in layer.forwards().into_iter().enumerate() {
        let mut run = KernelDraft::of("recurrent_step", &RECURRENT);
        let (x, weight) = (run.reads(&of_step(&operands[0], step)), run.reads(layer.weight));
        let bias = run.reads(if op.cell == Cell::Gru { &operands[3] } else { layer.weight });
        let lengths = layer.lengths(&mut run);
        let number = run.parameter("i64", Argument::Number(step as i64));
        let [state, next, cells] =
            [index % 2, (index + 1) % 2, 2].map(|buffer| layer.scratch(&mut run, buffer * states));
        // An RNN keeps nothing, and only an LSTM keeps cell states: nothing is written to what stands in their places.
        let [gates, kept] = match op.cell {
            Cell::Lstm => [3, 4],
            Cell::Gru => [2, 0],
            Cell::Rnn | Cell::RnnRelu => [0, 0],
        };
        let [y, gates, kept] = [0, gates, kept].map(|result| run.writes(&of_step(&results[result], step)));
        run.line(format!(
            "recurrent::step<{}>({x}, {weight}, {bias}, {lengths}, {number}, {state}, {next}, {cells}, {y}, {gates}, {kept});",
            layer.shape()
        ));
        steps.push(Step::Kernel(run.threads(32 * layer.units * layer.batch.div_ceil(ENTRIES))));
    }
    let mut run = KernelDraft::of("recurrent_finish", &RECURRENT);
    let [state, cells] = [layer.steps % 2, 2].map(|buffer| layer.scratch(&mut run, buffer * states));
    let [last, last_cell] = [1, if has_cell { 2 } else { 1 }].map(|result| run.writes(&results[result]));
    run.line(format!("recurrent::finish<{states}>({state}, {cells}, {last}, {last_cell}, {has_cell});"));
    steps.push(Step::Kernel(run.threads(states)));
    steps
}

pub(super) fn gradient(op: &RecurrentGrad, instruction: &Instruction) -> Vec<Step> {
    let (operands, results) = (&instruction.operands, &instruction.results);
    // The places of the first state, the outputs, the gates, the cell states, `d y` and the lengths. The weight stands for an operand that
    // the cell does not have.
    let [first, y, gates, kept, dy, lengths] = match op.cell {
        Cell::Lstm => [1, 0, 2, 3, 4, 7],
        Cell::Gru => [1, 2, 3, 0, 4, 6],
        Cell::Rnn | Cell::RnnRelu => [0, 1, 0, 0, 2, 4],
    };
    let layer = Layer::of(instruction, (op.cell, op.reverse), [0, lengths], &results[0]);
    let (states, sums, has_cell) = (layer.states(), layer.batch * layer.width, op.cell == Cell::Lstm);
    if states == 0 {
        return vec![];
    }
    // Scratch: the gradients of the states and of the cell states, and twice those of the sums of a step.
    let behind = |buffer: usize| 2 * states + buffer * sums;
    let mut run = KernelDraft::of("recurrent_start_gradient", &RECURRENT);
    let (dlast, dlast_cell) = (run.reads(&operands[dy + 1]), layer.of_lstm(&mut run, dy + 2));
    let [dstate, dcells, dsums] = [0, states, behind(0)].map(|start| layer.scratch(&mut run, start));
    run.line(format!(
        "recurrent::start_gradient<{states}, {sums}>({dlast}, {dlast_cell}, {dstate}, {dcells}, {dsums}, {has_cell});"
    ));
    let mut steps = vec![Step::Kernel(run.threads(sums.max(states)))];
    for (index, step) in layer.forwards().into_iter().rev().enumerate() {
        let mut run = KernelDraft::of("recurrent_step_gradient", &RECURRENT);
        let (weight, lengths) = (run.reads(layer.weight), layer.lengths(&mut run));
        let number = run.parameter("i64", Argument::Number(step as i64));
        let begins = run.parameter("i64", Argument::Number(i64::from(index + 1 == layer.steps)));
        let first = run.reads(&operands[first]);
        let [y, gates, kept] = [y, gates, kept].map(|operand| match operand {
            0 => run.reads(layer.weight),
            operand => run.reads(&of_step(&operands[operand], step)),
        });
        let dy = run.reads(&of_step(&operands[dy], step));
        let [dstate, dcells, dbehind, dsums] = [0, states, behind(index % 2), behind((index + 1) % 2)]
            .map(|start| layer.scratch(&mut run, start));
        let dx = run.writes(&of_step(&results[0], step));
        let dproduct = run.writes(&of_step(&results[usize::from(op.cell == Cell::Gru)], step));
        let before = if op.reverse { states as i64 } else { -(states as i64) };
        run.line(format!(
            "recurrent::step_gradient<{}>({weight}, {lengths}, {number}, {before}, {begins}, {first}, {y}, {gates}, {kept}, \
             {dy}, {dstate}, {dcells}, {dbehind}, {dsums}, {dx}, {dproduct});",
            layer.shape()
        ));
        steps.push(Step::Kernel(run.threads(layer.units * layer.batch.div_ceil(ENTRIES))));
    }
    let mut run = KernelDraft::of("recurrent_finish_gradient", &RECURRENT);
    let [dbehind, dstate, dcells] =
        [behind(layer.steps % 2), 0, states].map(|start| layer.scratch(&mut run, start));
    let weight = run.reads(layer.weight);
    let hidden = if op.cell == Cell::Gru { 2 } else { 1 };
    let [dhidden, dcell] =
        [hidden, if has_cell { 2 } else { hidden }].map(|result| run.writes(&results[result]));
    run.line(format!(
        "recurrent::finish_gradient<{}, {}, {}>({dbehind}, {weight}, {dstate}, {dcells}, {dhidden}, {dcell}, {has_cell});",
        layer.batch, layer.units, layer.width
    ));
    steps.push(Step::Kernel(run.threads(layer.units * layer.batch.div_ceil(ENTRIES))));
    steps
}

/// Returns the f32 numbers of scratch that a layer takes: two hidden states and the cell state.
pub(super) fn scratch(_: &Op, operands: &[Unplaced], _: &[Unplaced], _: Multiprocessors) -> usize {
    3 * operands[2].layout.len() * words(operands[1].dtype)
}

/// Returns the f32 numbers of scratch that the gradient of a layer takes: those of the states, and twice those of the sums of a step.
pub(super) fn scratch_of_gradient(
    _: &Op,
    operands: &[Unplaced],
    results: &[Unplaced],
    _: Multiprocessors,
) -> usize {
    let weight = &operands[0];
    let batch = results[0].layout.sizes[1];
    let [width, units] = [0, 1].map(|dim| weight.layout.sizes[dim]);
    2 * batch * (units + width) * words(weight.dtype)
}
