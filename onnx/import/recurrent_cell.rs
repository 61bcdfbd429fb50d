//! One step of RNN, GRU and LSTM. The formulas and the order of the gates are those of the ONNX standard.

use super::arithmetic::Built;
use super::context::{Context, Problem};
use super::gate::Gate;
use ir::ops::contract::Contract;
use ir::ops::elementwise::Binary;
use ir::{Dim, ValueId};

/// The kind of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Rnn,
    Gru,
    Lstm,
}

impl Kind {
    /// Returns the number of gates in the weights, one after the other: update, reset, hidden for a GRU; input, output, forget,
    /// cell for an LSTM.
    pub(super) fn gates(self) -> u64 {
        match self {
            Self::Rnn => 1,
            Self::Gru => 3,
            Self::Lstm => 4,
        }
    }

    /// Returns the number of activations of a direction.
    pub(super) fn activations(self) -> usize {
        self.defaults().len()
    }

    /// Returns the default activations.
    pub(super) fn defaults(self) -> &'static [&'static str] {
        match self {
            Self::Rnn => &["Tanh"],
            Self::Gru => &["Sigmoid", "Tanh"],
            Self::Lstm => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

/// The state that a step passes on, each value `[batch, hidden]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) hidden: ValueId,
    /// The cell state of an LSTM.
    pub(super) cell: Option<ValueId>,
}

/// The parameters that all steps of a direction share.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) kind: Kind,
    pub(super) hidden: u64,
    /// `[gates · hidden, hidden]`
    pub(super) weight: ValueId,
    /// `[gates · hidden]`; `None` if it was already added to the projected input.
    pub(super) bias: Option<ValueId>,
    /// The peepholes of an LSTM, for the input, output and forget gate, each `[hidden]`.
    pub(super) peepholes: Option<[ValueId; 3]>,
    /// The activations: f for an RNN; f, g for a GRU; f, g, h for an LSTM.
    pub(super) gates: Vec<Gate>,
    /// The bound to which the inputs of activations are clamped, in both directions.
    pub(super) clip: Option<f64>,
    /// Whether a GRU resets the product of the state and the weight, instead of the state.
    pub(super) reset_after: bool,
    /// Whether the forget gate of an LSTM is 1 minus its input gate.
    pub(super) input_forget: bool,
}

impl Cell {
    /// Builds the state after a step. `x` is the projected input, `[batch, gates · hidden]`.
    pub(super) fn step(&self, cx: &mut Context, x: ValueId, state: State) -> Result<State, Problem> {
        match self.kind {
            Kind::Rnn => {
                let sum = self.with_state(cx, x, state.hidden)?;
                Ok(State { hidden: self.activated(cx, 0, sum)?, cell: None })
            }
            Kind::Gru => Ok(State { hidden: self.gru(cx, x, state.hidden)?, cell: None }),
            Kind::Lstm => self.lstm(cx, x, state),
        }
    }

    /// `Hₜ = (1 - z)·h + z·Hₜ₋₁`, written as `h + z·(Hₜ₋₁ - h)`.
    fn gru(&self, cx: &mut Context, x: ValueId, before: ValueId) -> Built {
        let (gates, from_state) = if self.reset_after {
            let product = self.recurrent(cx, before, self.weight)?;
            let product = match self.bias {
                Some(bias) => cx.build(product + bias)?,
                None => product,
            };
            let (of_x, of_state) = (self.gate(cx, x, 0, 2)?, self.gate(cx, product, 0, 2)?);
            (cx.build(of_x + of_state)?, Some(self.gate(cx, product, 2, 1)?))
        } else {
            let weight = cx.b.slice(self.weight, 0, 0, Dim::known(2 * self.hidden))?;
            let (of_x, of_state) = (self.gate(cx, x, 0, 2)?, self.recurrent(cx, before, weight)?);
            (cx.build(of_x + of_state)?, None)
        };
        let (update, reset) = (self.gate(cx, gates, 0, 1)?, self.gate(cx, gates, 1, 1)?);
        let (update, reset) = (self.activated(cx, 0, update)?, self.activated(cx, 0, reset)?);
        let from_state = match from_state {
            Some(product) => cx.build(reset * product)?,
            None => {
                let weight = cx.b.slice(self.weight, 0, 2 * self.hidden, Dim::known(self.hidden))?;
                let kept = cx.build(reset * before)?;
                self.recurrent(cx, kept, weight)?
            }
        };
        let of_x = self.gate(cx, x, 2, 1)?;
        let sum = cx.build(of_x + from_state)?;
        let new = self.activated(cx, 1, sum)?;
        cx.build(new + update * (before - new))
    }

    /// `Cₜ = f·Cₜ₋₁ + i·c`, `Hₜ = o·h(Cₜ)`. The output gate's peephole reads the new cell.
    fn lstm(&self, cx: &mut Context, x: ValueId, state: State) -> Result<State, Problem> {
        let before = state.cell.ok_or_else(|| {
            Problem::new("the node has an initial hidden state without an initial cell state")
        })?;
        let sums = self.with_state(cx, x, state.hidden)?;
        let input = self.gate(cx, sums, 0, 1)?;
        let input = self.peeped(cx, input, 0, before)?;
        let input = self.activated(cx, 0, input)?;
        let forget = if self.input_forget {
            cx.build(1.0 - input)?
        } else {
            let forget = self.gate(cx, sums, 2, 1)?;
            let forget = self.peeped(cx, forget, 2, before)?;
            self.activated(cx, 0, forget)?
        };
        let new = self.gate(cx, sums, 3, 1)?;
        let new = self.activated(cx, 1, new)?;
        let cell = cx.build(forget * before + input * new)?;
        let output = self.gate(cx, sums, 1, 1)?;
        let output = self.peeped(cx, output, 1, cell)?;
        let output = self.activated(cx, 0, output)?;
        let shown = self.gates[2].of(cx, cell)?;
        Ok(State { hidden: cx.build(output * shown)?, cell: Some(cell) })
    }

    /// Adds the projected state to the projected input.
    fn with_state(&self, cx: &mut Context, x: ValueId, hidden: ValueId) -> Built {
        let product = self.recurrent(cx, hidden, self.weight)?;
        cx.build(x + product)
    }

    fn recurrent(&self, cx: &mut Context, hidden: ValueId, weight: ValueId) -> Built {
        Ok(cx.b.one(Contract::new("bh,gh->bg"), &[hidden, weight])?)
    }

    /// Returns `count` consecutive gates from the gate `first` on.
    fn gate(&self, cx: &mut Context, gates: ValueId, first: u64, count: u64) -> Built {
        Ok(cx.b.slice(gates, 1, first * self.hidden, Dim::known(count * self.hidden))?)
    }

    /// Adds a peephole to a gate, if the cell has peepholes.
    fn peeped(&self, cx: &mut Context, gate: ValueId, which: usize, cell: ValueId) -> Built {
        let Some(peepholes) = self.peepholes else { return Ok(gate) };
        cx.build(gate + cell * peepholes[which])
    }

    fn activated(&self, cx: &mut Context, which: usize, sum: ValueId) -> Built {
        let sum = match self.clip {
            Some(clip) => cx.build(Binary::AtMost.of(Binary::AtLeast.of(sum, -clip), clip))?,
            None => sum,
        };
        self.gates[which].of(cx, sum)
    }
}
