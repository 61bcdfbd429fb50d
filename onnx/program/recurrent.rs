//! Recurrent layers. ONNX multiplies the input by a weight itself. The input of this operator is multiplied already, so that weight is the
//! identity.

use super::attribute;
use super::constants::code;
use super::draft::{Draft, TensorId, size};
use super::operators::Results;
use ir::ops::recurrent::{Cell, Recurrent};
use ir::{DType, Node};

impl Draft<'_> {
    /// Returns a tensor of zeros with these sizes.
    fn zeros(&mut self, dtype: DType, sizes: &[i64]) -> TensorId {
        let sizes = self.integers(sizes);
        let zeros = self.push("ConstantOfShape", &[sizes], []);
        self.cast(zeros, DType::F32, dtype)
    }
}

/// Writes LSTM, GRU or RNN. The numbers that are kept for the gradient have no form.
pub(super) fn recurrent(draft: &mut Draft, node: &Node, op: &Recurrent) -> Results {
    let weight = draft.ty(node.operands[1]);
    let [width, units] = [0, 1].map(|dim| weight.dims[dim].size().unwrap_or_default());
    let (dtype, width, units) = (weight.dtype, size(width)?, size(units)?);
    let operands = draft.operands(node)?;
    let zeros = draft.zeros(dtype, &[width, width]);
    let identity = draft.push("EyeLike", &[zeros], [attribute::int("dtype", code(dtype))]);
    let identity = draft.unsqueeze(identity, 0);
    let [matrix, hidden] = [1, 2].map(|operand| draft.unsqueeze(operands[operand], 0));
    let bias = (op.cell == Cell::Gru).then(|| {
        let zeros = draft.zeros(dtype, &[width]);
        let both = draft.push("Concat", &[zeros, operands[3]], [attribute::int("axis", 0)]);
        draft.unsqueeze(both, 0)
    });
    let cell = (op.cell == Cell::Lstm).then(|| draft.unsqueeze(operands[3], 0));
    let lengths = operands.get(if op.cell.keeps_gates() { 4 } else { 3 }).map(|&lengths| {
        let from = draft.ty(node.operands[node.operands.len() - 1]).dtype;
        draft.cast(lengths, from, DType::I32)
    });
    let mut inputs = vec![Some(operands[0]), Some(identity), Some(matrix), bias, lengths, Some(hidden), cell];
    inputs.truncate(if cell.is_some() { 7 } else { 6 });
    let direction = if op.reverse { "reverse" } else { "forward" };
    let mut attributes = vec![attribute::int("hidden_size", units), attribute::text("direction", direction)];
    let operator = match op.cell {
        Cell::Lstm => "LSTM",
        Cell::Gru => "GRU",
        Cell::Rnn | Cell::RnnRelu => "RNN",
    };
    match op.cell {
        Cell::Gru => attributes.push(attribute::int("linear_before_reset", 1)),
        Cell::RnnRelu => attributes.push(attribute::texts("activations", ["Relu"])),
        Cell::Lstm | Cell::Rnn => {}
    }
    let states = if cell.is_some() { 2 } else { 1 };
    let made = draft.push_many(operator, &inputs, 1 + states, attributes);
    let mut results = vec![Some(draft.squeeze(made[0], 1))];
    results.extend(made[1..].iter().map(|&state| Some(draft.squeeze(state, 0))));
    results.resize(node.results.len(), None);
    Ok(results)
}
