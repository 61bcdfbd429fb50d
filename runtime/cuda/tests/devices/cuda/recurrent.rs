//! Recurrent layers and their gradients: fewer and more units than a warp has threads, parts of a group of entries, both directions, entries
//! with no step and with all steps.

use super::writer::{FLOATS, Writer};
use ir::ops::recurrent::{Cell, Recurrent, RecurrentGrad};
use ir::{DType, ValueId};

/// Adds a layer with these steps, entries and hidden units, and its gradient.
fn layer(w: &mut Writer, dtype: DType, (cell, reverse): (Cell, bool), [t, b, h]: [usize; 3], lengths: bool) {
    let width = cell.gates() as usize * h;
    // So that products stay near 1, and the gradients of the last step shrink on their way to the first.
    let weight = w.numbers(dtype, &[width, h], |x| 0.5 * x / (h as f64).sqrt());
    let (x, hidden) = (w.floats(dtype, &[t, b, width]), w.floats(dtype, &[b, h]));
    let own: Vec<ValueId> = match cell {
        Cell::Lstm => vec![w.floats(dtype, &[b, h])],
        Cell::Gru => vec![w.floats(dtype, &[width])],
        Cell::Rnn | Cell::RnnRelu => vec![],
    };
    let lengths: Vec<ValueId> =
        if lengths { vec![w.integers(DType::I32, &[b], 0..t as i64 + 1)] } else { vec![] };
    let made = w.op(Recurrent { cell, reverse }, &[&[x, weight, hidden][..], &own, &lengths].concat());
    let kept = match cell {
        Cell::Lstm => vec![own[0], made[3], made[4]],
        Cell::Gru => vec![hidden, made[0], made[2]],
        Cell::Rnn | Cell::RnnRelu => vec![made[0]],
    };
    let (dy, dlast) = (w.floats(dtype, &[t, b, h]), w.floats(dtype, &[b, h]));
    let dstates = if cell == Cell::Lstm { vec![dlast, dlast] } else { vec![dlast] };
    let operands = [&[weight][..], &kept, &[dy], &dstates, &lengths].concat();
    w.op(RecurrentGrad { cell, reverse }, &operands);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn layers_of_any_size_and_direction() {
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        for (cell, _) in Cell::ALL {
            for (index, sizes) in
                [[1, 1, 1], [3, 5, 7], [2, 4, 32], [4, 9, 33], [2, 2, 70]].into_iter().enumerate()
            {
                let reverse = (index + order) % 2 == 0;
                layer(&mut w, dtype, (cell, reverse), sizes, false);
                layer(&mut w, dtype, (cell, !reverse), sizes, true);
            }
        }
        w.check(order as u32);
    }
}
