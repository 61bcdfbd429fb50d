//! Samples: recurrent layers in both directions, with and without lengths, and their gradients.

use super::table::{float, of};
use super::*;
use crate::ops::recurrent::{Cell, Recurrent, RecurrentGrad};

/// Every cell in both directions, with and without lengths.
pub(super) fn recurrent() -> Vec<Sample> {
    let ways = [(false, false), (false, true), (true, false), (true, true)];
    let samples = Cell::ALL.into_iter().flat_map(|(cell, _)| {
        ways.map(|way| layer(cell, way, [3, 4, 6])).into_iter().chain([layer(cell, (false, true), [2, 1, 5])])
    });
    samples.flatten().collect()
}

/// Returns a layer with these steps, entries and hidden units, and its gradient.
pub(super) fn layer(cell: Cell, (reverse, lengths): (bool, bool), [t, b, h]: [u64; 3]) -> [Sample; 2] {
    let (state, width) = (float(&[b, h]), cell.gates() * h);
    let (steps, weight) = (float(&[t, b, h]), float(&[width, h]));
    let kept = of(DType::F32, &[t, b, 4 * h], Fill::Probability);
    let mut forward = vec![float(&[t, b, width]), weight.clone(), state.clone()];
    let mut backward = vec![weight];
    match cell {
        Cell::Lstm => {
            forward.push(state.clone());
            backward.extend([state.clone(), kept, steps.clone()]);
        }
        Cell::Gru => {
            forward.push(float(&[width]));
            backward.extend([state.clone(), steps.clone(), kept]);
        }
        Cell::Rnn | Cell::RnnRelu => backward.push(steps.clone()),
    }
    backward.extend([steps, state.clone()]);
    if cell == Cell::Lstm {
        backward.push(state);
    }
    if lengths {
        let lengths = of(DType::I64, &[b], Fill::Integers(0, t as i64 + 1));
        forward.push(lengths.clone());
        backward.push(lengths);
    }
    let statistics: &[usize] = match cell {
        Cell::Lstm => &[3, 4],
        Cell::Gru => &[2],
        Cell::Rnn | Cell::RnnRelu => &[],
    };
    [
        Sample::new(Recurrent { cell, reverse }, forward).statistics(statistics),
        Sample::new(RecurrentGrad { cell, reverse }, backward).undifferentiable(),
    ]
}
