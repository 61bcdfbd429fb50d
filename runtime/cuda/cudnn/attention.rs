//! Builds cuDNN's graphs of attention: the operations that cuDNN runs as one, in the order and with the types by which cuDNN
//! recognizes them ("scaled dot product attention" of its graph API).
//!
//! The gradient lets cuDNN hold the scores' gradient as a whole, rounded like all operands of multiplications. Adding up `d q` in
//! memory part by part would take less room, but would add in another order each time.

use super::{Function, Graph, InstructionTensor, Operation, Reduction, Tensor, TensorId, TensorStorage};
use ir::ops::attention::{Attention, AttentionGrad};
use ir::{DType, Op};
use program::layout::Layout;
use program::{Instruction, View};

/// Returns the graph of attention or of its gradient, or the reason why there is none.
pub(super) fn graph(op: &Op, instruction: &Instruction) -> Result<Graph, String> {
    let (scale, causal, operands) = match op {
        Op::Attention(Attention { scale, causal }) => (scale.get(), *causal, 3),
        Op::AttentionGrad(AttentionGrad { scale, causal }) => (scale.get(), *causal, 6),
        _ => return Err("cuDNN does not support this operator".into()),
    };
    if instruction.operands.len() != operands {
        return Err("a mask (cuDNN is used only for causal masks)".into());
    }
    if instruction.parts.is_some() {
        return Err("a part of the queries (cuDNN is used only for whole sequences)".into());
    }
    let dtype = instruction.operands[0].dtype;
    if !matches!(dtype, DType::F16 | DType::BF16) {
        return Err(format!("{dtype} (cuDNN is used for attention in f16 and bf16)"));
    }
    let mut writer = Writer::new(instruction);
    let scale = writer.number(scale as f32);
    match op {
        Op::Attention(_) => writer.forward(scale, causal),
        _ => writer.gradient(scale, causal),
    }
    Ok(writer.graph)
}

/// A graph under construction.
struct Writer<'a> {
    instruction: &'a Instruction,
    graph: Graph,
    /// The type of the operands of multiplications.
    dtype: DType,
    batch: i64,
    heads: i64,
    /// The number of key-value heads.
    groups: i64,
    queries: i64,
    keys: i64,
}

impl<'a> Writer<'a> {
    fn new(instruction: &'a Instruction) -> Self {
        let [q, k] = [0, 1].map(|index| &instruction.operands[index].layout.sizes);
        let [batch, heads, queries] = [0, 1, 2].map(|dim| q[dim] as i64);
        let [groups, keys] = [1, 2].map(|dim| k[dim] as i64);
        let dtype = instruction.operands[0].dtype;
        Self { instruction, graph: Graph::default(), dtype, batch, heads, groups, queries, keys }
    }

    /// Adds `out = softmax(scale · q·kᵀ) · v`, and `logsumexp` of the scores.
    fn forward(&mut self, scale: TensorId, causal: bool) {
        let [q, v, out] =
            [InstructionTensor::Operand(0), InstructionTensor::Operand(2), InstructionTensor::Result(0)]
                .map(|part| self.memory(part));
        let (k, logsumexp) =
            (self.transposed(InstructionTensor::Operand(1)), self.of_rows(InstructionTensor::Result(1)));
        let mut scores = self.scores(q, k, scale);
        if causal {
            scores = self.hide_later(scores);
        }
        let largest = self.reduced(Reduction::Max, scores);
        let apart = self.map(Function::Subtract, &[scores, largest]);
        let exp = self.map(Function::Exp, &[apart]);
        let sum = self.reduced(Reduction::Sum, exp);
        let log = self.map(Function::Log, &[sum]);
        self.map_to(Function::Add, &[largest, log], logsumexp);
        let share = self.between(self.dtype, self.all());
        self.map_to(Function::Divide, &[exp, sum], share);
        self.multiply(share, v, out);
    }

    /// Adds the gradient. With the probabilities `p = exp(scale · q·kᵀ - logsumexp)` and `d p = d out · vᵀ`: `d v = pᵀ · d out`,
    /// `d score = p·(d p - Σ d out·out)`, `d q = scale · d score · k`, `d k = scale · d scoreᵀ · q`.
    fn gradient(&mut self, scale: TensorId, causal: bool) {
        let read =
            [InstructionTensor::Operand(0), InstructionTensor::Operand(3), InstructionTensor::Operand(5)];
        let [q, out, dout] = read.map(|part| self.memory(part));
        let [k, v] =
            [InstructionTensor::Operand(1), InstructionTensor::Operand(2)].map(|part| self.transposed(part));
        let [dq, dk, dv] = [0, 1, 2].map(|index| self.memory(InstructionTensor::Result(index)));
        let (logsumexp, dot) = (self.of_rows(InstructionTensor::Operand(4)), self.dots_of_rows(out, dout));
        let scores = self.scores(q, k, scale);
        let mut apart = self.map(Function::Subtract, &[scores, logsumexp]);
        if causal {
            apart = self.hide_later(apart);
        }
        let share = self.map(Function::Exp, &[apart]);
        let turned = self.turned(share);
        self.multiply_summed(turned, dout, dv);
        let dshare = self.between(DType::F32, self.all());
        self.multiply(dout, v, dshare);
        let apart = self.map(Function::Subtract, &[dshare, dot]);
        let dscore = self.map(Function::Multiply, &[apart, share]);
        let dscore = self.map(Function::Multiply, &[dscore, scale]);
        let turned = self.turned(dscore);
        self.multiply_summed(turned, q, dk);
        let keys = self.keys_again(k);
        self.multiply(dscore, keys, dq);
    }

    /// Returns the sizes of the scores.
    fn all(&self) -> [i64; 4] {
        [self.batch, self.heads, self.queries, self.keys]
    }

    /// Returns the sizes of a tensor with one number for each row of the scores.
    fn rows(&self) -> [i64; 4] {
        [self.batch, self.heads, self.queries, 1]
    }

    fn push(&mut self, dtype: DType, sizes: [i64; 4], strides: [i64; 4], held: TensorStorage) -> TensorId {
        let (sizes, strides) = (sizes.to_vec(), strides.to_vec());
        self.graph.tensors.push(Tensor { dtype, sizes, strides, held });
        self.graph.tensors.len() - 1
    }

    /// Adds a tensor between operations.
    fn between(&mut self, dtype: DType, sizes: [i64; 4]) -> TensorId {
        self.push(dtype, sizes, dense(sizes), TensorStorage::Between)
    }

    fn number(&mut self, number: f32) -> TensorId {
        self.push(DType::F32, [1; 4], [1; 4], TensorStorage::Number(number.to_bits()))
    }

    fn view(&self, part: InstructionTensor) -> &'a View {
        part.view(self.instruction).expect("infer has counted, and `scratch` has asked for it")
    }

    /// Adds a tensor in memory.
    fn memory(&mut self, part: InstructionTensor) -> TensorId {
        let view = self.view(part);
        let (sizes, strides) = lies(&view.layout);
        self.push(view.dtype, sizes, strides, TensorStorage::memory(part, view))
    }

    /// Adds a tensor in memory with its last two dims exchanged.
    fn transposed(&mut self, part: InstructionTensor) -> TensorId {
        let view = self.view(part);
        let ([b, h, s, d], [of_b, of_h, of_s, of_d]) = lies(&view.layout);
        self.push(view.dtype, [b, h, d, s], [of_b, of_h, of_d, of_s], TensorStorage::memory(part, view))
    }

    /// Adds a tensor in memory without holes, with one number for each row of the scores.
    fn of_rows(&mut self, part: InstructionTensor) -> TensorId {
        let held = TensorStorage::memory(part, self.view(part));
        self.push(DType::F32, self.rows(), dense(self.rows()), held)
    }

    fn map_to(&mut self, function: Function, operands: &[TensorId], out: TensorId) {
        self.graph.operations.push(Operation::Map { function, operands: operands.to_vec(), out });
    }

    /// Adds a function with f32 results, which have the size of its first operand.
    fn map(&mut self, function: Function, operands: &[TensorId]) -> TensorId {
        self.map_as(DType::F32, function, operands)
    }

    fn map_as(&mut self, dtype: DType, function: Function, operands: &[TensorId]) -> TensorId {
        let sizes = &self.graph.tensors[operands[0]].sizes;
        let sizes = [0, 1, 2, 3].map(|dim| sizes[dim]);
        let out = self.between(dtype, sizes);
        self.map_to(function, operands, out);
        out
    }

    /// Adds a reduction of each row to one number.
    fn reduced(&mut self, reduction: Reduction, from: TensorId) -> TensorId {
        let out = self.between(DType::F32, self.rows());
        self.graph.operations.push(Operation::Reduce { reduction, from, out });
        out
    }

    fn multiply(&mut self, left: TensorId, right: TensorId, out: TensorId) {
        self.graph.operations.push(Operation::Multiply { sides: [left, right], out });
    }

    /// Adds the product of each head, summed over the heads that share a key-value head.
    fn multiply_summed(&mut self, left: TensorId, right: TensorId, out: TensorId) {
        if self.heads == self.groups {
            return self.multiply(left, right, out);
        }
        let width = self.graph.tensors[out].sizes[3];
        let of_heads = self.between(self.dtype, [self.batch, self.heads, self.keys, width]);
        self.multiply(left, right, of_heads);
        self.graph.operations.push(Operation::Reduce { reduction: Reduction::Sum, from: of_heads, out });
    }

    /// Adds `scale · q·kᵀ`.
    fn scores(&mut self, q: TensorId, k: TensorId, scale: TensorId) -> TensorId {
        let product = self.between(DType::F32, self.all());
        self.multiply(q, k, product);
        self.map(Function::Multiply, &[product, scale])
    }

    /// Replaces the scores of keys after the query with −∞.
    fn hide_later(&mut self, scores: TensorId) -> TensorId {
        let query = self.map_as(DType::I32, Function::Index(2), &[scores]);
        let key = self.map_as(DType::I32, Function::Index(3), &[scores]);
        let seen = self.map_as(DType::Bool, Function::AtLeast, &[query, key]);
        let hidden = self.number(f32::NEG_INFINITY);
        self.map(Function::Select, &[scores, hidden, seen])
    }

    /// Adds `Σ d out·out`, one number for each row, in scratch: cuDNN computes it for all rows first.
    fn dots_of_rows(&mut self, out: TensorId, dout: TensorId) -> TensorId {
        let products = self.map(Function::Multiply, &[dout, out]);
        let (sum, one) = (self.reduced(Reduction::Sum, products), self.number(1.0));
        let dots = self.of_rows(InstructionTensor::Scratch);
        self.map_to(Function::Multiply, &[sum, one], dots);
        dots
    }

    /// Exchanges rows and columns of scores that are to be multiplied.
    fn turned(&mut self, scores: TensorId) -> TensorId {
        let [batch, heads, queries, keys] = self.all();
        let [of_batch, of_heads, of_queries, of_keys] = dense(self.all());
        let (sizes, strides) = ([batch, heads, keys, queries], [of_batch, of_heads, of_keys, of_queries]);
        let out = self.push(self.dtype, sizes, strides, TensorStorage::Between);
        self.graph.operations.push(Operation::View { from: scores, out });
        out
    }

    /// Returns `k` as a view of its transpose.
    fn keys_again(&mut self, transposed: TensorId) -> TensorId {
        let Tensor { dtype, sizes, strides, .. } = &self.graph.tensors[transposed];
        let (dtype, order) = (*dtype, [0, 1, 3, 2]);
        let (sizes, strides) = (order.map(|dim| sizes[dim]), order.map(|dim| strides[dim]));
        let out = self.push(dtype, sizes, strides, TensorStorage::Between);
        self.graph.operations.push(Operation::View { from: transposed, out });
        out
    }
}

/// Returns the strides of a row-major tensor without holes.
fn dense([_, b, c, d]: [i64; 4]) -> [i64; 4] {
    [b * c * d, c * d, d, 1]
}

/// Returns the sizes and strides of a tensor of four dims. A dim of one element may have any stride, but cuDNN expects the dense
/// one.
fn lies(layout: &Layout) -> ([i64; 4], [i64; 4]) {
    let sizes = [0, 1, 2, 3].map(|dim| layout.sizes[dim] as i64);
    let likely = dense(sizes);
    let stride = |dim: usize| if sizes[dim] == 1 { likely[dim] } else { layout.strides[dim] as i64 };
    (sizes, [0, 1, 2, 3].map(stride))
}
