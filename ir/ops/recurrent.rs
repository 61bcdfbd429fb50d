//! Recurrent layers over a sequence, LSTM, GRU and RNN in one direction: `recurrent`, and its gradient `recurrent_grad`.
//!
//! One node goes through all steps, so a long sequence needs no more nodes than a short one. Before it, one contraction multiplies the inputs
//! of all steps by their weight, and adds the bias. In each step the operator multiplies the hidden state by the recurrent weight, adds the
//! product to the input of the step, and computes the new state. `h'` is the hidden state before the step, and `p = h'·weightᵀ`.
//!
//! | cell | gates in their order | new state |
//! | --- | --- | --- |
//! | `lstm` | `i, o, f = σ(x + p)`, `g = tanh(x + p)` | `c = f·c' + i·g`, `h = o·tanh(c)` |
//! | `gru` | `z, r = σ(x + p + bias)`, `n = tanh(x + r·(p + bias))` | `h = n + z·(h' - n)` |
//! | `rnn` | | `h = tanh(x + p)` |
//! | `rnn_relu` | | `h = max(0, x + p)` |
//!
//! The formulas and the order of the gates are those of ONNX (`LSTM`, `GRU` with `linear_before_reset = 1`, `RNN`). LSTM: Hochreiter and
//! Schmidhuber, Neural Computation 9(8), with the forget gate of Gers et al.; GRU: Cho et al., arXiv 1406.1078, as cuDNN computes it.
//!
//! An entry of the batch may be shorter than the sequence. After its end the state stays as it is, and the outputs are zero. A layer that
//! goes backwards begins at the entry's last step.

mod gradient;

pub use gradient::RecurrentGrad;

use super::constant::Iota;
use super::contract::Contract;
use super::elementwise::{Compare, Select};
use super::shape::Concat;
use super::*;
use crate::{DType, Dim};

/// The cell of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cell {
    /// LSTM.
    Lstm,
    /// GRU. The reset gate acts on the product of the state and the weight.
    Gru,
    /// RNN with tanh.
    Rnn,
    /// RNN with relu.
    RnnRelu,
}

impl Cell {
    /// All cells with their names in text.
    pub const ALL: [(Self, &'static str); 4] =
        [(Self::Lstm, "lstm"), (Self::Gru, "gru"), (Self::Rnn, "rnn"), (Self::RnnRelu, "rnn_relu")];

    /// Returns the number of gates: the rows of the weight for each hidden unit.
    pub fn gates(self) -> u64 {
        match self {
            Self::Lstm => 4,
            Self::Gru => 3,
            Self::Rnn | Self::RnnRelu => 1,
        }
    }

    /// Whether the result `gates` keeps numbers for the gradient: the gates of an LSTM; those of a GRU, followed by `p + bias` of the new gate.
    /// There are four for each hidden unit.
    pub fn keeps_gates(self) -> bool {
        matches!(self, Self::Lstm | Self::Gru)
    }
}

impl Attribute for Cell {
    fn print(&self) -> String {
        Self::ALL.iter().find(|(cell, _)| cell == self).expect("all cells are listed").1.into()
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, name)| *name == text).map(|(cell, _)| *cell)
    }
}

/// A recurrent layer in one direction. With `t` steps, `b` entries, `h` hidden units and `g` gates:
///
/// - operands `x[t, b, g·h]`, `weight[g·h, h]`, `hidden[b, h]`; for an LSTM `cell[b, h]`, for a GRU `bias[g·h]`; and perhaps integer
///   `lengths[b]`, the number of steps of each entry;
/// - results `y[t, b, h]` and `last[b, h]`; for an LSTM `last_cell[b, h]`; and for the gradient `gates[t, b, 4·h]` ([`Cell::keeps_gates`]),
///   for an LSTM also `cells[t, b, h]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Recurrent {
    /// The cell.
    pub cell: Cell,
    /// Whether the layer begins at the last step.
    pub reverse: bool,
}

/// The dims of a layer.
struct LayerDims {
    dtype: DType,
    steps: Dim,
    batch: Dim,
    hidden: Dim,
    /// The gates of all hidden units.
    gates: Dim,
}

impl LayerDims {
    /// Reads the dims of a layer from a tensor `[t, b, ..]` and the weight.
    fn of(cell: Cell, sequence: &Type, weight: &Type) -> Result<Self, TypeError> {
        ensure!(
            sequence.ndim() == 3 && sequence.dtype.is_float(),
            "the sequence {sequence} must have three dims of floats"
        );
        let [gates, hidden] = &weight.dims[..] else {
            return Err(TypeError::new(format!("the weight {weight} must have two dims")));
        };
        ensure!(
            Dim::known(cell.gates()).product(hidden).as_ref() == Some(gates),
            "the weight {weight} must have {} rows for each column",
            cell.gates()
        );
        let [steps, batch] = [0, 1].map(|dim| sequence.dims[dim].clone());
        Ok(Self { dtype: sequence.dtype, steps, batch, hidden: hidden.clone(), gates: gates.clone() })
    }

    fn ty<const N: usize>(&self, dims: [&Dim; N]) -> Type {
        Type::new(self.dtype, dims.into_iter().cloned())
    }

    /// Returns the type of the state between two steps.
    fn state(&self) -> Type {
        self.ty([&self.batch, &self.hidden])
    }

    /// Returns the type of the states of all steps.
    fn states(&self) -> Type {
        self.ty([&self.steps, &self.batch, &self.hidden])
    }

    /// Returns the type of the gates of all steps.
    fn all_gates(&self) -> Type {
        self.ty([&self.steps, &self.batch, &self.gates])
    }

    /// Returns the type of the numbers that are kept for the gradient.
    fn kept(&self) -> Result<Type, TypeError> {
        let kept = Dim::known(4).product(&self.hidden);
        let kept =
            kept.ok_or_else(|| TypeError::new(format!("{} hidden units are too many", self.hidden)))?;
        Ok(self.ty([&self.steps, &self.batch, &kept]))
    }

    /// Refuses operands that do not have these types, with the lengths as a possible last operand.
    fn check(&self, operands: &[Type], expected: &[(&str, Type)]) -> Result<(), TypeError> {
        for ((name, expected), operand) in expected.iter().zip(operands) {
            ensure!(
                operand.dtype == expected.dtype && operand.dims == expected.dims,
                "the operand `{name}` is {operand}, not {expected}"
            );
        }
        match &operands[expected.len().min(operands.len())..] {
            [] if operands.len() == expected.len() => Ok(()),
            [lengths] if lengths.dtype.is_integer() && lengths.dims[..] == [self.batch.clone()] => Ok(()),
            [lengths] => {
                Err(TypeError::new(format!("the lengths are {lengths}, not integers [{}]", self.batch)))
            }
            _ => Err(TypeError::new(format!(
                "takes {} operands and perhaps lengths, not {}",
                expected.len(),
                operands.len()
            ))),
        }
    }
}

/// Returns the indices of the steps in the order in which the layer goes through them.
fn walk(reverse: bool, steps: usize) -> Vec<usize> {
    if reverse { (0..steps).rev().collect() } else { (0..steps).collect() }
}

/// The sizes of a bound layer, and the lengths of its entries.
struct Sizes {
    steps: usize,
    batch: usize,
    hidden: usize,
    lengths: Option<Vec<i64>>,
}

impl Sizes {
    fn of(sequence: &Tensor, weight: &Tensor, lengths: Option<&&Tensor>) -> Self {
        let [steps, batch] = [0, 1].map(|dim| sequence.sizes[dim]);
        let lengths = lengths.map(|lengths| lengths.ints().to_vec());
        Self { steps, batch, hidden: weight.sizes[1], lengths }
    }

    /// Whether an entry has this step.
    fn has(&self, step: usize, entry: usize) -> bool {
        self.lengths.as_ref().is_none_or(|lengths| (step as i64) < lengths[entry])
    }

    /// Returns the row of the step before, in the layer's direction. `None` for the first step of an entry.
    fn before(&self, reverse: bool, step: usize, entry: usize) -> Option<usize> {
        let before = if reverse { step + 1 } else { step.checked_sub(1)? };
        (before < self.steps && self.has(before, entry)).then_some(before * self.batch + entry)
    }

    /// Returns `state · weightᵀ` for one entry.
    fn product(&self, state: &[f64], weight: &[f64], entry: usize) -> Vec<f64> {
        let state = &state[entry * self.hidden..][..self.hidden];
        weight.chunks_exact(self.hidden).map(|row| row.iter().zip(state).map(|(w, h)| w * h).sum()).collect()
    }

    /// Returns `gradient · weight` for the gates of one entry.
    fn product_back(&self, gradient: &[f64], weight: &[f64]) -> Vec<f64> {
        let term = |unit: usize| {
            gradient.iter().enumerate().map(|(gate, d)| d * weight[gate * self.hidden + unit]).sum()
        };
        (0..self.hidden).map(term).collect()
    }
}

fn sigmoid(x: f64) -> f64 {
    super::elementwise::Unary::Sigmoid.scalar(x)
}

impl Recurrent {
    /// Returns the names and types of the operands before the lengths.
    fn expected(&self, dims: &LayerDims) -> Vec<(&'static str, Type)> {
        let weight = dims.ty([&dims.gates, &dims.hidden]);
        let mut expected = vec![("x", dims.all_gates()), ("weight", weight), ("hidden", dims.state())];
        match self.cell {
            Cell::Lstm => expected.push(("cell", dims.state())),
            Cell::Gru => expected.push(("bias", dims.ty([&dims.gates]))),
            Cell::Rnn | Cell::RnnRelu => {}
        }
        expected
    }

    /// Returns the number of operands before the lengths.
    fn operands(&self) -> usize {
        if self.cell.keeps_gates() { 4 } else { 3 }
    }

    /// Builds the hidden state before each step, `[t, b, h]`: the outputs moved by a step.
    fn before(&self, b: &mut Builder, node: NodeRef) -> Result<ValueId, GradientError> {
        let (y, hidden) = (node.results[0], node.operands[2]);
        let dims = b.ty(y).dims.clone();
        let steps = dims[0].size().ok_or(GradientError::Undefined("the number of steps must be bound"))?;
        let first = b.reshape(hidden, [Dim::known(1), dims[1].clone(), dims[2].clone()])?;
        if steps <= 1 {
            return Ok(first);
        }
        let rest = b.slice(y, 0, u64::from(self.reverse), Dim::known(steps - 1))?;
        let parts = if self.reverse { [rest, first] } else { [first, rest] };
        let before = b.one(Concat { dim: 0 }, &parts)?;
        match node.operands.get(self.operands()) {
            Some(&lengths) if self.reverse => {
                // An entry that is shorter than the sequence begins at its own last step, whose neighbour has the output 0.
                let lengths = b.cast(lengths, DType::I64)?;
                let places = b.one_typed(Iota { dim: 0 }, &[], Type::new(DType::I64, [dims[0].clone()]))?;
                let places = b.reshape(places, [dims[0].clone(), Dim::known(1), Dim::known(1)])?;
                let lengths = b.reshape(lengths, [dims[1].clone(), Dim::known(1)])?;
                let begins = Compare::Equal.of(places + 1.0, lengths);
                Ok(b.build(Select.of(begins, first, before))?)
            }
            _ => Ok(before),
        }
    }
}

impl Operator for Recurrent {
    fn facts(&self) -> Facts {
        use OperandRole::*;
        let operands = match self.cell {
            Cell::Lstm => Operands::new(&[Data, Weight, Hidden, CellState, Lengths]),
            Cell::Gru => Operands::new(&[Data, Weight, Hidden, Bias, Lengths]),
            Cell::Rnn | Cell::RnnRelu => Operands::new(&[Data, Weight, Hidden, Lengths]),
        };
        operands.optional(Lengths).anywhere(PrecisionClass::Full)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x, weight, ..] = types.operands else {
            return Err(TypeError::new("takes at least an input, a weight and a state"));
        };
        let dims = LayerDims::of(self.cell, x, weight)?;
        dims.check(types.operands, &self.expected(&dims))?;
        let mut results = vec![dims.states(), dims.state()];
        match self.cell {
            Cell::Lstm => results.extend([dims.state(), dims.kept()?, dims.states()]),
            Cell::Gru => results.push(dims.kept()?),
            Cell::Rnn | Cell::RnnRelu => {}
        }
        Ok(results)
    }

    /// The entries of the batch are independent. Steps follow each other, and every unit reads all units.
    fn factors(&self, signature: &Signature) -> Factors {
        let (operands, results) = match self.cell {
            Cell::Lstm => ("t^ b g^, g^ h^, b h^, b h^", "t^ b h^, b h^, b h^, t^ b k^, t^ b h^"),
            Cell::Gru => ("t^ b g^, g^ h^, b h^, g^", "t^ b h^, b h^, t^ b k^"),
            Cell::Rnn | Cell::RnnRelu => ("t^ b g^, g^ h^, b h^", "t^ b h^, b h^"),
        };
        let lengths = if signature.operands.len() > self.operands() { ", b" } else { "" };
        Factors::rule(&format!("{operands}{lengths} -> {results}"), signature)
    }

    /// `d weight = Σ d (x + p)·h'`, where `p + bias` of a GRU's new gate has a gradient of its own, and `d bias` is its sum.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let of_states = if self.cell == Cell::Lstm { 3 } else { 2 };
        if d[of_states..].iter().any(Option::is_some) {
            return Err(GradientError::Undefined("the kept numbers of a recurrent layer have no gradient"));
        }
        let mut gradients = vec![None; node.operands.len()];
        if d.iter().all(Option::is_none) {
            return Ok(gradients);
        }
        let mut operands = vec![node.operands[1]];
        match self.cell {
            Cell::Lstm => operands.extend([node.operands[3], node.results[3], node.results[4]]),
            Cell::Gru => operands.extend([node.operands[2], node.results[0], node.results[2]]),
            Cell::Rnn | Cell::RnnRelu => operands.push(node.results[0]),
        }
        for (gradient, &result) in d[..of_states].iter().zip(node.results) {
            let zero =
                |b: &mut Builder| b.splat(Type::new(b.ty(result).dtype, b.ty(result).dims.clone()), 0.0);
            operands.push(gradient.map_or_else(|| zero(b), Ok)?);
        }
        operands.extend(node.operands.get(self.operands()));
        let made = b.push(RecurrentGrad { cell: self.cell, reverse: self.reverse }, &operands)?;
        let dproduct = made[usize::from(self.cell == Cell::Gru)];
        let before = self.before(b, node)?;
        gradients[0] = Some(made[0]);
        gradients[1] = Some(b.one(Contract::new("tbg,tbh->gh"), &[dproduct, before])?);
        match self.cell {
            Cell::Lstm => (gradients[2], gradients[3]) = (Some(made[1]), Some(made[2])),
            Cell::Gru => (gradients[2], gradients[3]) = (Some(made[2]), Some(b.sum(dproduct, &[0, 1])?)),
            Cell::Rnn | Cell::RnnRelu => gradients[2] = Some(made[1]),
        }
        Ok(gradients)
    }

    fn cost(&self, signature: &Signature) -> Cost {
        products(signature, &signature.operands[0], &signature.operands[1])
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let lengths = cx.operands.get(self.operands());
        let sizes = Sizes::of(cx.operands[0], cx.operands[1], lengths);
        let [x, weight, hidden] = [0, 1, 2].map(|i| cx.operands[i].floats());
        let (n, width) = (sizes.hidden, self.cell.gates() as usize * sizes.hidden);
        let (mut state, mut cell) = (hidden.to_vec(), Vec::new());
        if self.cell == Cell::Lstm {
            cell.extend_from_slice(cx.operands[3].floats());
        }
        let all = sizes.steps * sizes.batch;
        let (mut y, mut gates, mut cells) = (vec![0.0; all * n], vec![0.0; all * 4 * n], vec![0.0; all * n]);
        for step in walk(self.reverse, sizes.steps) {
            for entry in (0..sizes.batch).filter(|&entry| sizes.has(step, entry)) {
                let row = step * sizes.batch + entry;
                let product = sizes.product(&state, weight, entry);
                let x = &x[row * width..][..width];
                for unit in 0..n {
                    let (old, kept) = (state[entry * n + unit], &mut gates[row * 4 * n..][..4 * n]);
                    let sum = |gate: usize| x[gate * n + unit] + product[gate * n + unit];
                    state[entry * n + unit] = match self.cell {
                        Cell::Lstm => {
                            let [i, o, f, g] =
                                [sigmoid(sum(0)), sigmoid(sum(1)), sigmoid(sum(2)), sum(3).tanh()];
                            [i, o, f, g]
                                .into_iter()
                                .enumerate()
                                .for_each(|(gate, x)| kept[gate * n + unit] = x);
                            let cell = &mut cell[entry * n + unit];
                            *cell = f * *cell + i * g;
                            cells[row * n + unit] = *cell;
                            o * cell.tanh()
                        }
                        Cell::Gru => {
                            let bias = |gate: usize| cx.operands[3].floats()[gate * n + unit];
                            let [z, r] = [0, 1].map(|gate| sigmoid(sum(gate) + bias(gate)));
                            let q = product[2 * n + unit] + bias(2);
                            let new = (x[2 * n + unit] + r * q).tanh();
                            [z, r, new, q]
                                .into_iter()
                                .enumerate()
                                .for_each(|(gate, x)| kept[gate * n + unit] = x);
                            new + z * (old - new)
                        }
                        Cell::Rnn => sum(0).tanh(),
                        Cell::RnnRelu => super::elementwise::Unary::Relu.scalar(sum(0)),
                    };
                }
                y[row * n..][..n].copy_from_slice(&state[entry * n..][..n]);
            }
        }
        let results = match self.cell {
            Cell::Lstm => vec![y, state, cell, gates, cells],
            Cell::Gru => vec![y, state, gates],
            Cell::Rnn | Cell::RnnRelu => vec![y, state],
        };
        tensors(cx, results)
    }
}

/// Returns results with their types.
fn tensors(cx: &Interp, results: Vec<Vec<f64>>) -> Vec<Tensor> {
    let tensor = |(i, elements): (usize, Vec<f64>)| Tensor::float(cx.results[i].dtype, cx.sizes(i), elements);
    results.into_iter().enumerate().map(tensor).collect()
}

/// Counts a multiplication and an addition for each element of the weight, step and entry.
fn products(signature: &Signature, gates: &Type, weight: &Type) -> Cost {
    let columns = weight.dims[1].size().unwrap_or(0);
    Cost::per_element(signature, gates, columns.saturating_mul(2))
}
