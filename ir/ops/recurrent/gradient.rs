//! `recurrent_grad`, the gradient of a recurrent layer. It goes through the steps from the last to the first.

use super::*;

/// The gradient of [`Recurrent`]. The gradients of weight and bias are contractions of its results.
///
/// - Operands: `weight`; for an LSTM `cell, gates, cells`, for a GRU `hidden, y, gates`, for an RNN `y`; `d y, d last`; for an LSTM
///   `d last_cell`; and perhaps `lengths`.
/// - Results: `d x`; for a GRU `d (p + bias)[t, b, g·h]`; `d hidden`; for an LSTM `d cell`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecurrentGrad {
    /// As in [`Recurrent`].
    pub cell: Cell,
    /// As in [`Recurrent`].
    pub reverse: bool,
}

impl RecurrentGrad {
    /// Returns the names and types of the operands before the lengths.
    fn expected(&self, dims: &LayerDims) -> Result<Vec<(&'static str, Type)>, TypeError> {
        let mut expected = vec![("weight", dims.ty([&dims.gates, &dims.hidden]))];
        match self.cell {
            Cell::Lstm => {
                expected.extend([("cell", dims.state()), ("gates", dims.kept()?), ("cells", dims.states())]);
            }
            Cell::Gru => {
                expected.extend([("hidden", dims.state()), ("y", dims.states()), ("gates", dims.kept()?)]);
            }
            Cell::Rnn | Cell::RnnRelu => expected.push(("y", dims.states())),
        }
        expected.extend([("d y", dims.states()), ("d last", dims.state())]);
        if self.cell == Cell::Lstm {
            expected.push(("d last_cell", dims.state()));
        }
        Ok(expected)
    }

    /// Returns the place of `d y` among the operands.
    fn dy(&self) -> usize {
        if self.cell.keeps_gates() { 4 } else { 2 }
    }

    /// Returns the number of operands before the lengths.
    fn operands(&self) -> usize {
        self.dy() + if self.cell == Cell::Lstm { 3 } else { 2 }
    }

    /// Computes the gradients of the sums of one unit in one step.
    fn unit(&self, cx: &Interp, sizes: &Sizes, [step, entry, unit]: [usize; 3], d: &mut UnitGradient) {
        let n = sizes.hidden;
        let (row, at) = (step * sizes.batch + entry, entry * n + unit);
        let number = |operand: usize, index: usize| cx.operands[operand].floats()[index];
        match self.cell {
            Cell::Lstm => {
                let [i, o, f, g] = [0, 1, 2, 3].map(|gate| number(2, (row * 4 + gate) * n + unit));
                let earlier = sizes.before(self.reverse, step, entry).map(|row| number(3, row * n + unit));
                let old = earlier.unwrap_or_else(|| number(1, at));
                let shown = number(3, row * n + unit).tanh();
                let dcell = d.cell + d.state * o * (1.0 - shown * shown);
                d.sums = [
                    dcell * g * i * (1.0 - i),
                    d.state * shown * o * (1.0 - o),
                    dcell * old * f * (1.0 - f),
                    dcell * i * (1.0 - g * g),
                ];
                (d.cell, d.direct) = (dcell * f, 0.0);
            }
            Cell::Gru => {
                let [z, r, new, q] = [0, 1, 2, 3].map(|gate| number(3, (row * 4 + gate) * n + unit));
                let earlier = sizes.before(self.reverse, step, entry).map(|row| number(2, row * n + unit));
                let old = earlier.unwrap_or_else(|| number(1, at));
                let dnew = d.state * (1.0 - z) * (1.0 - new * new);
                d.sums = [d.state * (old - new) * z * (1.0 - z), dnew * q * r * (1.0 - r), dnew, dnew * r];
                d.direct = d.state * z;
            }
            Cell::Rnn => {
                let y = number(1, row * n + unit);
                (d.sums[0], d.direct) = (d.state * (1.0 - y * y), 0.0);
            }
            Cell::RnnRelu => {
                let y = number(1, row * n + unit);
                (d.sums[0], d.direct) = (if y > 0.0 { d.state } else { 0.0 }, 0.0);
            }
        }
    }
}

/// The gradients of one unit in one step.
#[derive(Default)]
struct UnitGradient {
    /// The gradient of the new hidden state.
    state: f64,
    /// The gradient of the new cell state. After the step, the gradient of the old one.
    cell: f64,
    /// The gradients of the sums in the gates. In a GRU the last element is the gradient of `p + bias` in the new gate.
    sums: [f64; 4],
    /// The gradient of the old hidden state, without the way through the weight.
    direct: f64,
}

impl Operator for RecurrentGrad {
    fn facts(&self) -> Facts {
        use OperandRole::*;
        let operands = match self.cell {
            Cell::Lstm => Operands::new(&[
                Weight,
                CellState,
                Gates,
                Cells,
                Gradient,
                LastGradient,
                LastCellGradient,
                Lengths,
            ]),
            Cell::Gru => Operands::new(&[Weight, Hidden, Output, Gates, Gradient, LastGradient, Lengths]),
            Cell::Rnn | Cell::RnnRelu => Operands::new(&[Weight, Output, Gradient, LastGradient, Lengths]),
        };
        operands.optional(Lengths).anywhere(PrecisionClass::Full)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let (Some(weight), Some(dy)) = (types.operands.first(), types.operands.get(self.dy())) else {
            return Err(TypeError::new(format!("takes at least {} operands", self.operands())));
        };
        let dims = LayerDims::of(self.cell, dy, weight)?;
        dims.check(types.operands, &self.expected(&dims)?)?;
        let mut results = vec![dims.all_gates()];
        match self.cell {
            Cell::Lstm => results.extend([dims.state(), dims.state()]),
            Cell::Gru => results.extend([dims.all_gates(), dims.state()]),
            Cell::Rnn | Cell::RnnRelu => results.push(dims.state()),
        }
        Ok(results)
    }

    fn factors(&self, signature: &Signature) -> Factors {
        let (operands, results) = match self.cell {
            Cell::Lstm => ("g^ h^, b h^, t^ b k^, t^ b h^, t^ b h^, b h^, b h^", "t^ b g^, b h^, b h^"),
            Cell::Gru => ("g^ h^, b h^, t^ b h^, t^ b k^, t^ b h^, b h^", "t^ b g^, t^ b g^, b h^"),
            Cell::Rnn | Cell::RnnRelu => ("g^ h^, t^ b h^, t^ b h^, b h^", "t^ b g^, b h^"),
        };
        let lengths = if signature.operands.len() > self.operands() { ", b" } else { "" };
        let gradients: Vec<u32> = (self.dy() as u32..self.operands() as u32).collect();
        Factors::rule(&format!("{operands}{lengths} -> {results}"), signature).linear_in(&gradients)
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::SECOND)
    }

    fn cost(&self, signature: &Signature) -> Cost {
        products(signature, &signature.results[0], &signature.operands[0])
    }

    /// Goes through the steps from the last to the first: `d h' = d (p + bias)·weight`, plus the direct way in a GRU.
    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let dy = self.dy();
        let lengths = cx.operands.get(self.operands());
        let sizes = Sizes::of(cx.operands[dy], cx.operands[0], lengths);
        let weight = cx.operands[0].floats();
        let (n, gates) = (sizes.hidden, self.cell.gates() as usize);
        let mut state = cx.operands[dy + 1].floats().to_vec();
        let mut cell = if self.cell == Cell::Lstm {
            cx.operands[dy + 2].floats().to_vec()
        } else {
            vec![0.0; state.len()]
        };
        let all = sizes.steps * sizes.batch * gates * n;
        let (mut dx, mut dproducts) = (vec![0.0; all], vec![0.0; all]);
        for step in walk(!self.reverse, sizes.steps) {
            for entry in (0..sizes.batch).filter(|&entry| sizes.has(step, entry)) {
                let row = step * sizes.batch + entry;
                let (dx, dproduct) =
                    (&mut dx[row * gates * n..][..gates * n], &mut dproducts[row * gates * n..][..gates * n]);
                for unit in 0..n {
                    let at = entry * n + unit;
                    let mut d = UnitGradient {
                        state: state[at] + cx.operands[dy].floats()[row * n + unit],
                        cell: cell[at],
                        ..UnitGradient::default()
                    };
                    self.unit(cx, &sizes, [step, entry, unit], &mut d);
                    for gate in 0..gates {
                        dx[gate * n + unit] = d.sums[gate];
                        let own = self.cell == Cell::Gru && gate == 2;
                        dproduct[gate * n + unit] = d.sums[if own { 3 } else { gate }];
                    }
                    (state[at], cell[at]) = (d.direct, d.cell);
                }
                let through = sizes.product_back(dproduct, weight);
                through.iter().enumerate().for_each(|(unit, d)| state[entry * n + unit] += d);
            }
        }
        let results = match self.cell {
            Cell::Lstm => vec![dx, state, cell],
            Cell::Gru => vec![dx, dproducts, state],
            Cell::Rnn | Cell::RnnRelu => vec![dx, state],
        };
        tensors(cx, results)
    }
}
