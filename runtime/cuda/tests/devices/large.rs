//! Tensors large enough for several threads, blocks and tasks: against the interpreter, and bitwise the same on any
//! number of threads.

use crate::compare::{Microbatch, assert_agrees, assert_agrees_in, bytes, device, unit};
use ir::interp::Mode;
use ir::ops::Float;
use ir::ops::attention::{Attention, AttentionGrad};
use ir::ops::contract::Contract;
use ir::ops::conv::{Conv, ConvGradInput, ConvGradWeight};
use ir::ops::elementwise::{Binary, Cast, Select, Unary};
use ir::ops::experts::{Experts, ExpertsGrad};
use ir::ops::indexing::{Gather, GatherGrad};
use ir::ops::loss::{CrossEntropy, CrossEntropyGrad};
use ir::ops::norm::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad};
use ir::ops::optimizer::{Adagrad, Adam, Adam8bit, Lion, Sgd};
use ir::ops::recurrent::{Cell, Recurrent, RecurrentGrad};
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::ops::rotary::Rotary;
use ir::ops::shape::{Concat, Pad};
use ir::ops::softmax::{LogSoftmax, Softmax, SoftmaxGrad};
use ir::{Builder, DType, Dim, Module, Op, Tensor, Type, ValueId, random};
use program::device::{ProgramId, StepOutputs, step};
use program::lower::{LowerOptions, lower};
use smallvec::smallvec;

/// A program that is being written: every result is an output.
struct Writer {
    module: Module,
    inputs: Microbatch,
    dtype: DType,
}

impl Writer {
    fn new(dtype: DType) -> Self {
        Self { module: Module::new("large"), inputs: Microbatch::new(), dtype }
    }

    fn floats(&mut self, sizes: &[usize]) -> ValueId {
        let stream = self.inputs.len() as u64;
        let elements =
            (0..sizes.iter().product()).map(|i: usize| random::normal(2, stream, i as u64)).collect();
        self.input(Tensor::float(self.dtype, sizes.to_vec(), elements).rounded())
    }

    fn integers(&mut self, sizes: &[usize], below: i64) -> ValueId {
        let stream = self.inputs.len() as u64;
        let number = |i: usize| (random::normal(2, stream, i as u64).abs() * 1e6) as i64 % below;
        let elements = (0..sizes.iter().product()).map(number).collect();
        self.input(Tensor::int(DType::I64, sizes.to_vec(), elements))
    }

    fn input(&mut self, tensor: Tensor) -> ValueId {
        let name = format!("input.{}", self.inputs.len());
        let value = self.module.add_input(&name, tensor.ty(), true);
        self.inputs.insert(name, tensor);
        value
    }

    fn op(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> Vec<ValueId> {
        self.typed(op, operands, None)
    }

    fn typed(&mut self, op: impl Into<Op>, operands: &[ValueId], declared: Option<Type>) -> Vec<ValueId> {
        let op = op.into();
        let name = op.name();
        let mut b = Builder::new(&mut self.module, "test");
        let declared = declared.into_iter().collect::<Vec<_>>();
        let results = b.push_typed(op, operands, &declared).unwrap_or_else(|error| panic!("{error}"));
        b.finish();
        for &result in &results {
            let count = self.module.outputs.len();
            self.module.add_output(format!("{name}.{count}"), result);
        }
        results.to_vec()
    }

    fn transpose(&mut self, x: ValueId, permutation: &[u32]) -> ValueId {
        let mut b = Builder::new(&mut self.module, "test");
        let y = b.transpose(x, permutation).expect("a permutation");
        b.finish();
        y
    }

    fn scalar(&mut self, dtype: DType, value: f64) -> ValueId {
        let mut b = Builder::new(&mut self.module, "test");
        let scalar = b.scalar(dtype, value).expect("a scalar");
        b.finish();
        scalar
    }

    fn run(&self, threads: usize) -> StepOutputs {
        let program =
            lower(&self.module, &LowerOptions::of(cpu::TARGET)).unwrap_or_else(|error| panic!("{error}"));
        let inputs = vec![bytes(&program, &self.inputs)];
        step(&mut device(program, &Default::default(), threads), ProgramId(0), &inputs)
            .expect("the step runs")
    }
}

/// Writes a program in every float type, holds it against the interpreter, and runs it on several threads.
fn check(write: impl Fn(&mut Writer)) {
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let mut writer = Writer::new(dtype);
        write(&mut writer);
        let (module, options) = (&writer.module, &LowerOptions::of(cpu::TARGET));
        let steps = [vec![writer.inputs.clone()]];
        match dtype {
            DType::F64 => assert_agrees(module, options, &steps, 1e-11),
            DType::F32 => assert_agrees(module, options, &steps, 2e-4),
            // What one operator rounds otherwise the next ones carry on.
            _ => assert_agrees_in(Mode::Typed, module, options, &steps, |dtype| 2.0 * unit(dtype)),
        }
        let alone = writer.run(1);
        for threads in [2, 3, 7] {
            let together = writer.run(threads);
            let same = alone.iter().find(|(name, bytes)| together[*name] != **bytes);
            assert!(same.is_none(), "`{}` differs on {threads} threads", same.expect("some").0);
        }
    }
}

#[test]
fn elementwise_chains_with_broadcasts_and_transposes() {
    check(|w| {
        let (x, y, row, column) =
            (w.floats(&[300, 170]), w.floats(&[170, 300]), w.floats(&[170]), w.floats(&[300, 1]));
        let y = w.transpose(y, &[1, 0]);
        let sum = w.op(Binary::Add, &[x, y])[0];
        let scaled = w.op(Binary::Mul, &[sum, row])[0];
        let gelu = w.op(Unary::GeluTanh, &[scaled])[0];
        let less = w.op(ir::ops::elementwise::Compare::Less, &[gelu, column])[0];
        w.op(Select, &[less, gelu, column]);
        let turned = w.op(Unary::Exp, &[y])[0];
        w.op(Binary::Sub, &[turned, column]);
        w.typed(ir::ops::shape::Reshape, &[turned], Some(Type::of(w.dtype, &[170, 300])));
    });
}

#[test]
fn reductions_of_every_kind_over_every_dim() {
    check(|w| {
        let x = w.floats(&[40, 50, 70]);
        for dims in [
            smallvec![0],
            smallvec![1],
            smallvec![2],
            smallvec![0, 1],
            smallvec![1, 2],
            smallvec![0, 2],
            smallvec![0, 1, 2],
        ] {
            for kind in [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Max, ReduceKind::Min] {
                w.op(Reduce { kind, dims: smallvec::SmallVec::clone(&dims), keep: false }, &[x]);
            }
        }
    });
}

#[test]
fn contractions_large_and_many() {
    check(|w| {
        let (x, weight) = (w.floats(&[8, 40, 96]), w.floats(&[96, 150]));
        let y = w.op(Contract::new("bsh,hk->bsk"), &[x, weight])[0];
        w.op(Contract::new("bsh,bsk->hk"), &[x, y]);
        w.op(Contract::new("bsk,hk->bsh"), &[y, weight]);
        let (q, k) = (w.floats(&[6, 4, 50, 24]), w.floats(&[6, 4, 60, 24]));
        w.op(Contract::new("bhsd,bhtd->bhst"), &[q, k]);
        w.op(Contract::new("bhsd,bhtd->bsht"), &[q, k]);
        let long = w.floats(&[70_000]);
        w.op(Contract::new("a,a->"), &[long, long]);
    });
}

/// More rows and columns than one thread multiplies at once, of experts that threads share.
#[test]
fn experts_of_many_rows() {
    check(|w| {
        let (x, index) = (w.floats(&[700, 300]), w.integers(&[700], 2));
        let (matrices, turned) = (w.floats(&[2, 300, 24]), w.floats(&[2, 24, 300]));
        let y = w.op(Experts { transposed: false }, &[x, matrices, index])[0];
        w.op(Experts { transposed: true }, &[x, turned, index]);
        w.typed(ExpertsGrad, &[index, x, y], Some(Type::of(w.dtype, &[2, 300, 24])));
    });
}

#[test]
fn multiplications_that_threads_share_or_divide() {
    check(|w| {
        let (x, matrices) = (w.floats(&[8, 64, 128]), w.floats(&[8, 128, 130]));
        let y = w.op(Contract::new("eck,ekn->ecn"), &[x, matrices])[0];
        w.op(Contract::new("eck,ecn->ekn"), &[x, y]);
        w.op(Contract::new("ecn,ekn->eck"), &[y, matrices]);
    });
}

/// Many units of few entries, with a part of a panel at their end, and few units of many entries.
#[test]
fn recurrent_layers_whose_units_or_entries_are_divided() {
    for ((cell, _), [t, b, h]) in
        Cell::ALL.into_iter().flat_map(|cell| [(cell, [3, 20, 150]), (cell, [2, 600, 24])])
    {
        check(|w| {
            let reverse = h == 24;
            let (gates, dtype) = (cell.gates() as usize, w.dtype);
            let (x, weight, hidden) =
                (w.floats(&[t, b, gates * h]), w.floats(&[gates * h, h]), w.floats(&[b, h]));
            // The gradients of the last step shrink on their way to the first.
            let small = w.scalar(dtype, 0.5 / (h as f64).sqrt());
            let weight = w.op(Binary::Mul, &[weight, small])[0];
            let lengths = w.integers(&[b], t as i64 + 1);
            let (dy, dlast) = (w.floats(&[t, b, h]), w.floats(&[b, h]));
            let extra = match cell {
                Cell::Lstm => vec![w.floats(&[b, h])],
                Cell::Gru => vec![w.floats(&[gates * h])],
                Cell::Rnn | Cell::RnnRelu => vec![],
            };
            for lengths in [vec![], vec![lengths]] {
                let operands = [&[x, weight, hidden][..], &extra, &lengths].concat();
                let made = w.op(Recurrent { cell, reverse }, &operands);
                let kept = match cell {
                    Cell::Lstm => vec![extra[0], made[3], made[4]],
                    Cell::Gru => vec![hidden, made[0], made[2]],
                    Cell::Rnn | Cell::RnnRelu => vec![made[0]],
                };
                let dstates = if cell == Cell::Lstm { vec![dlast, dlast] } else { vec![dlast] };
                let operands = [&[weight][..], &kept, &[dy], &dstates, &lengths].concat();
                w.op(RecurrentGrad { cell, reverse }, &operands);
            }
        });
    }
}

#[test]
fn softmaxes_norms_and_losses_of_many_rows() {
    check(|w| {
        let (x, dy) = (w.floats(&[500, 130]), w.floats(&[500, 130]));
        let (scale, bias) = (w.floats(&[130]), w.floats(&[130]));
        let y = w.op(Softmax { dim: 1 }, &[x])[0];
        w.op(SoftmaxGrad { dim: 1 }, &[y, dy]);
        w.op(Softmax { dim: 0 }, &[x]);
        w.op(LogSoftmax { dim: 1 }, &[x]);
        let norm = w.op(LayerNorm { eps: 1e-5.into() }, &[x, scale, bias]);
        w.op(LayerNormGrad, &[x, scale, norm[1], norm[2], dy]);
        let norm = w.op(RmsNorm { eps: 1e-5.into() }, &[x, scale]);
        w.op(RmsNormGrad, &[x, scale, norm[1], dy]);
        let labels = w.integers(&[500], 133);
        let (ignore_index, label_smoothing) = (7, Float::new(0.1));
        let loss = w.op(CrossEntropy { ignore_index, label_smoothing }, &[x, labels]);
        w.op(CrossEntropyGrad { ignore_index, label_smoothing }, &[x, labels, loss[2], loss[0]]);
    });
}

#[test]
fn attention_of_several_blocks_with_masks_and_shared_heads() {
    check(|w| {
        let (scale, dtype) = (Float::new(0.2), w.dtype);
        for (causal, keys) in [(true, 150), (false, 90)] {
            // As models have them: [batch, position, head, feature], turned.
            let [q, k, v, dout] = [(150, 6, 8), (keys, 3, 8), (keys, 3, 5), (150, 6, 5)].map(|(s, h, d)| {
                let x = w.floats(&[2, s, h, d]);
                w.transpose(x, &[0, 2, 1, 3])
            });
            let mask = w.floats(&[2, 1, 150, keys]);
            let results = w.op(Attention { scale, causal }, &[q, k, v, mask]);
            w.op(AttentionGrad { scale, causal }, &[q, k, v, mask, results[0], results[1], dout]);
            let zero = w.scalar(dtype, 0.0);
            let kept = w.op(ir::ops::elementwise::Compare::Less, &[mask, zero])[0];
            let results = w.op(Attention { scale, causal }, &[q, k, v, kept]);
            w.op(AttentionGrad { scale, causal }, &[q, k, v, kept, results[0], results[1], dout]);
        }
    });
}

#[test]
fn indexing_copies_and_rotations() {
    check(|w| {
        let (table, tokens) = (w.floats(&[300, 64]), w.integers(&[12, 60], 320));
        let rows = w.op(Gather { dim: 0 }, &[table, tokens])[0];
        let dtype = w.dtype;
        w.typed(GatherGrad { dim: 0 }, &[tokens, rows], Some(Type::of(dtype, &[300, 64])));
        let heads = w.typed(ir::ops::shape::Reshape, &[rows], Some(Type::of(dtype, &[12, 60, 4, 16])))[0];
        let heads = w.transpose(heads, &[0, 2, 1, 3]);
        let (cos, sin) = (w.floats(&[60, 8]), w.floats(&[60, 8]));
        w.op(Rotary { interleaved: false }, &[heads, cos, sin]);
        w.op(Rotary { interleaved: true }, &[heads, cos, sin]);
        w.op(Concat { dim: 1 }, &[heads, heads]);
        let dims = [12, 4, 60, 20].map(Dim::known);
        w.typed(Pad { dim: 3, before: 3, value: 0.5.into() }, &[heads], Some(Type::new(dtype, dims)));
    });
}

#[test]
fn optimizers_of_large_parameters_whose_gradients_lie_otherwise() {
    check(|w| {
        let [p, m] = [0, 1].map(|_| w.floats(&[250, 200]));
        let v = w.floats(&[250, 200]);
        let v = w.op(Unary::Abs, &[v])[0];
        let g = w.floats(&[200, 250]);
        let g = w.transpose(g, &[1, 0]);
        let [rate, decay, count] = [0.01, 0.1, 3.0].map(|value| w.scalar(DType::F64, value));
        for decoupled in [true, false] {
            let adam = Adam { beta1: 0.9.into(), beta2: 0.95.into(), eps: 1e-3.into(), decoupled };
            w.op(adam, &[p, g, m, v, rate, decay, count]);
        }
        w.op(Sgd { momentum: 0.9.into(), nesterov: false }, &[p, g, m, rate, decay]);
        w.op(Adagrad { eps: 1e-3.into() }, &[p, g, v, rate, decay]);
        let [codes, other_codes] = [0, 1].map(|_| w.integers(&[250, 200], 256));
        let [codes, other_codes] =
            [codes, other_codes].map(|codes| w.op(Cast { to: DType::U8 }, &[codes])[0]);
        let largest = Tensor::splat(w.dtype, vec![196], 0.5);
        let largest = w.input(largest);
        let (beta1, beta2, eps) = (0.9.into(), 0.95.into(), 1e-3.into());
        let adam = Adam8bit { beta1, beta2, eps, decoupled: true, block: 256 };
        w.op(adam, &[p, g, codes, largest, other_codes, largest, rate, decay, count]);
        w.op(Lion { beta1: 0.9.into(), beta2: 0.99.into() }, &[p, g, m, rate, decay]);
    });
}

/// Tiles that end within a line of windows; fewer images than threads, and more; groups; single elements as windows.
#[test]
fn convolutions_of_several_tiles() {
    for (x, weight, stride, dilation, pads) in [
        ([5, 16, 39, 38], [8, 16, 3, 3], 1, 1, [1, 0, 1, 2]),
        ([1, 12, 61, 43], [8, 6, 5, 2], 2, 2, [3, 1, 0, 4]),
        ([9, 24, 30, 30], [24, 1, 3, 3], 1, 1, [1, 1, 1, 1]),
        ([3, 40, 28, 27], [33, 40, 1, 1], 1, 1, [0, 0, 0, 0]),
    ] {
        check(|w| {
            let [strides, dilations] =
                [stride, dilation].map(|by| smallvec::SmallVec::<[u64; 3]>::from_slice(&[by, by]));
            let pads = smallvec::SmallVec::from_slice(&pads);
            let types =
                [x, weight].map(|sizes| Type::new(w.dtype, sizes.map(|size| Dim::known(size as u64))));
            let (image, kernel) = (w.floats(&x), w.floats(&weight));
            let conv = Conv { strides, dilations, pads };
            let y = w.op(conv.clone(), &[image, kernel])[0];
            let Conv { strides, dilations, pads } = conv.clone();
            let [of_image, of_kernel] = types;
            w.typed(ConvGradInput { strides, dilations, pads }, &[kernel, y], Some(of_image));
            let Conv { strides, dilations, pads } = conv;
            w.typed(ConvGradWeight { strides, dilations, pads }, &[image, y], Some(of_kernel));
        });
    }
}
