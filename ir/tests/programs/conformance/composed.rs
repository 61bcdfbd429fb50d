//! Compares fused operators with compositions of small operators.

use super::close;
use ir::interp::{Mode, StateValues, step};
use ir::ops::attention::Attention;
use ir::ops::constant::Iota;
use ir::ops::contract::Contract;
use ir::ops::det::Det;
use ir::ops::elementwise::{Binary, Compare, Select, Unary};
use ir::ops::indexing::Gather;
use ir::ops::loss::CrossEntropy;
use ir::ops::norm::{LayerNorm, RmsNorm};
use ir::ops::optimizer::{Adagrad, Adam, Lion, Sgd};
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::ops::rotary::Rotary;
use ir::ops::scatter::{ScatterElements, ScatterKind};
use ir::ops::shape::Concat;
use ir::ops::softmax::{LogSoftmax, Softmax, SoftmaxGrad};
use ir::ops::{Float, NodeRef};
use ir::samples::{Fill, Operand, Sample, samples};
use ir::{Builder, DType, Dim, Module, Op, Operator, Tensor, Type, TypeError, ValueId};
use std::collections::BTreeMap;

type Built = Result<Vec<ValueId>, TypeError>;

/// Evaluates the built values, given the tensors of the inputs.
fn evaluate(inputs: &[Tensor], build: impl Fn(&mut Builder, &[ValueId]) -> Built) -> Vec<Tensor> {
    let mut module = Module::new("composed");
    let name = |i: usize| format!("input.{i}");
    let values: Vec<ValueId> =
        inputs.iter().enumerate().map(|(i, x)| module.add_input(name(i), x.ty(), false)).collect();
    let mut b = Builder::new(&mut module, "test");
    let results = build(&mut b, &values).expect("well-typed");
    b.finish();
    for (i, &result) in results.iter().enumerate() {
        module.add_output(i.to_string(), result);
    }
    let feed: BTreeMap<String, Tensor> =
        inputs.iter().enumerate().map(|(i, x)| (name(i), x.clone())).collect();
    let outputs = step(&module, Mode::Exact, &mut StateValues::new(), &[feed]).expect("runs");
    (0..results.len()).map(|i| outputs[&i.to_string()][0].clone()).collect()
}

/// Returns normal tensors of these sizes.
fn normal(sizes: &[&[u64]]) -> Vec<Tensor> {
    let operands =
        sizes.iter().map(|sizes| Operand { ty: Type::of(DType::F64, sizes), fill: Fill::Normal }).collect();
    let any = samples().swap_remove(0);
    Sample { operands, ..any }.fill(5)
}

fn all_close(left: &[Tensor], right: &[Tensor]) {
    assert_eq!(left.len(), right.len());
    for (i, (left, right)) in left.iter().zip(right).enumerate() {
        assert!(close(left, right), "result {i}: {left:?} and {right:?}");
    }
}

fn reduce(b: &mut Builder, kind: ReduceKind, x: ValueId, dim: u32) -> Result<ValueId, TypeError> {
    b.one(Reduce { kind, dims: [dim].into_iter().collect(), keep: true }, &[x])
}

/// Builds `softmax(scale · q·kᵀ + bias) · v`, with zeros for rows of only −∞, as exporters write it.
fn composed_attention(b: &mut Builder, operands: &[ValueId], scale: f64) -> Result<ValueId, TypeError> {
    let scores = b.one(Contract::new("bhsd,bhtd->bhst"), &operands[..2])?;
    let mut scores = b.build(scores * scale)?;
    if let Some(&mask) = operands.get(3) {
        let bias = if b.ty(mask).dtype == DType::Bool {
            let (kept, hidden) = (b.splat_like(scores, 0.0)?, b.splat_like(scores, f64::NEG_INFINITY)?);
            b.one(Select, &[mask, kept, hidden])?
        } else {
            b.cast(mask, b.ty(scores).dtype)?
        };
        scores = b.build(scores + bias)?;
    }
    let probabilities = b.one(Softmax { dim: 3 }, &[scores])?;
    let undefined = b.one(Unary::IsNan, &[probabilities])?;
    let zero = b.splat_like(probabilities, 0.0)?;
    let probabilities = b.one(Select, &[undefined, zero, probabilities])?;
    b.one(Contract::new("bhst,bhte->bhse"), &[probabilities, operands[2]])
}

/// Builds the gradients of `Σ weight · out` in these values, through all given nodes.
fn gradients(
    b: &mut Builder,
    nodes: &[(Op, Vec<ValueId>, Vec<ValueId>)],
    d: &mut BTreeMap<ValueId, ValueId>,
) {
    for (op, operands, results) in nodes.iter().rev() {
        let dresults: Vec<Option<ValueId>> = results.iter().map(|result| d.get(result).copied()).collect();
        let node = NodeRef { operands, results };
        let built = op.gradient(b, node, &dresults).expect("has a gradient");
        for (&operand, gradient) in operands.iter().zip(built) {
            if let Some(gradient) = gradient {
                let sum = d.get(&operand).copied().map_or(Ok(gradient), |sum| b.build(sum + gradient));
                d.insert(operand, sum.expect("of one type"));
            }
        }
    }
}

/// Returns the result of a forward function and its gradients in the first three inputs. The last input weighs the result.
fn with_gradients(
    inputs: &[Tensor],
    forward: impl Fn(&mut Builder, &[ValueId]) -> Result<ValueId, TypeError>,
) -> Vec<Tensor> {
    evaluate(inputs, |b, values| {
        let (weight, operands) = values.split_last().expect("a weight");
        // The builder gives nodes their place in the module only in `finish`, so a copy of the module is built first.
        let mut copy = b.module().clone();
        let mut scratch = Builder::new(&mut copy, "test");
        forward(&mut scratch, operands)?;
        scratch.finish();
        let out = forward(b, operands)?;
        let nodes: Vec<_> =
            copy.nodes().map(|(_, n)| (n.op.clone(), n.operands.to_vec(), n.results.to_vec())).collect();
        let mut d = BTreeMap::from([(out, *weight)]);
        gradients(b, &nodes, &mut d);
        Ok([out].into_iter().chain(operands[..3].iter().map(|operand| d[operand])).collect())
    })
}

#[test]
fn attention_is_its_composition_forward_and_backward_under_every_mask() {
    let scale = 0.7;
    let mut tried = 0;
    for sample in samples() {
        // The composition supports neither grouped heads nor `causal`.
        let Op::Attention(Attention { causal: false, .. }) = sample.op else { continue };
        if sample.operands[0].ty.dims[1] != sample.operands[1].ty.dims[1] {
            continue;
        }
        let mut inputs = sample.fill(1);
        let weight = sample.result_types().expect("well-typed").swap_remove(0);
        inputs.extend(
            Sample { operands: vec![Operand { ty: weight, fill: Fill::Normal }], ..sample.clone() }.fill(9),
        );
        let fused = with_gradients(&inputs, |b, operands| {
            Ok(b.push(Attention { scale: Float::new(scale), causal: false }, operands)?[0])
        });
        let composed = with_gradients(&inputs, |b, operands| composed_attention(b, operands, scale));
        // If every score is NaN, so is the softmax gradient of the composition; the fused operator gives zeros there.
        let defined = |x: &Tensor| !x.floats().iter().any(|x| x.is_nan());
        assert!(fused.iter().all(defined));
        all_close(&fused[..1], &composed[..1]);
        if composed.iter().all(defined) {
            all_close(&fused, &composed);
            tried += 1;
        }
    }
    assert!(tried >= 3, "gradients compared in {tried} samples only");
}

#[test]
fn a_causal_and_grouped_attention_is_a_masked_one_with_repeated_heads() {
    let op = |causal| Attention { scale: Float::new(0.5), causal };
    let inputs = normal(&[&[2, 6, 4, 3], &[2, 2, 4, 3], &[2, 2, 4, 5]]);
    let fused = evaluate(&inputs, |b, x| Ok(b.push(op(true), x)?.to_vec()));
    let masked = evaluate(&inputs, |b, x| {
        let heads = b.one_typed(Iota { dim: 0 }, &[], Type::of(DType::I64, &[6]))?;
        let three = b.scalar(DType::I64, 3.0)?;
        let group = b.one(Binary::Div, &[heads, three])?;
        let repeated = [1, 2].map(|i| b.one(Gather { dim: 1 }, &[x[i], group]).expect("well-typed"));
        let position =
            |b: &mut Builder, dim| b.one_typed(Iota { dim }, &[], Type::of(DType::I64, &[1, 1, 4, 4]));
        let (query, key) = (position(b, 2)?, position(b, 3)?);
        let visible = b.one(Compare::LessEqual, &[key, query])?;
        Ok(b.push(op(false), &[x[0], repeated[0], repeated[1], visible])?.to_vec())
    });
    all_close(&fused, &masked);
}

#[test]
fn norms_are_their_compositions() {
    let inputs = normal(&[&[2, 3, 4], &[4], &[4]]);
    let eps = 1e-3;
    let rstd = |b: &mut Builder, square: ValueId| {
        let mean = reduce(b, ReduceKind::Mean, square, 2)?;
        let eps = b.splat_like(mean, eps)?;
        let sum = b.build(mean + eps)?;
        b.one(Unary::Rsqrt, &[sum])
    };
    let fused = evaluate(&inputs, |b, x| Ok(b.push(LayerNorm { eps: Float::new(eps) }, x)?.to_vec()));
    let composed = evaluate(&inputs, |b, x| {
        let mean = reduce(b, ReduceKind::Mean, x[0], 2)?;
        let centred = b.one(Binary::Sub, &[x[0], mean])?;
        let square = b.build(centred * centred)?;
        let rstd = rstd(b, square)?;
        let unit = b.build(centred * rstd)?;
        let scaled = b.build(unit * x[1])?;
        let flat = |b: &mut Builder, x| b.reshape(x, [2, 3].map(Dim::known));
        Ok(vec![b.build(scaled + x[2])?, flat(b, mean)?, flat(b, rstd)?])
    });
    all_close(&fused, &composed);
    let fused = evaluate(&inputs, |b, x| Ok(vec![b.push(RmsNorm { eps: Float::new(eps) }, &x[..2])?[0]]));
    let composed = evaluate(&inputs, |b, x| {
        let square = b.build(x[0] * x[0])?;
        let rstd = rstd(b, square)?;
        let unit = b.build(x[0] * rstd)?;
        Ok(vec![b.build(unit * x[1])?])
    });
    all_close(&fused, &composed);
}

#[test]
fn cross_entropy_is_the_negative_log_probability_of_smoothed_labels() {
    let (ignored, smoothing, classes) = (-1, 0.2, 5);
    let logits = normal(&[&[4, classes]]).swap_remove(0);
    let inputs = [logits, Tensor::int(DType::I64, vec![4], vec![3, -1, 0, 4])];
    let op = CrossEntropy { ignore_index: ignored, label_smoothing: Float::new(smoothing) };
    let fused = evaluate(&inputs, |b, x| Ok(b.push(op.clone(), x)?[..2].to_vec()));
    let composed = evaluate(&inputs, |b, x| {
        let log = b.one(LogSoftmax { dim: 1 }, &[x[0]])?;
        let label = b.reshape(x[1], [4, 1].map(Dim::known))?;
        let class = b.one_typed(Iota { dim: 0 }, &[], Type::of(DType::I64, &[classes]))?;
        let hit = b.one(Compare::Equal, &[label, class])?;
        let share = smoothing / classes as f64;
        let (on, off) = (b.splat_like(log, smoothing - 1.0 - share)?, b.splat_like(log, -share)?);
        let target = b.one(Select, &[hit, on, off])?;
        let ignored = b.scalar(DType::I64, ignored as f64)?;
        let skipped = b.one(Compare::Equal, &[label, ignored])?;
        let (one, zero) = (b.splat_like(log, 1.0)?, b.splat_like(log, 0.0)?);
        let counts = b.one(Select, &[skipped, zero, one])?;
        let terms = b.build(log * target)?;
        let counted = b.build(terms * counts)?;
        Ok(vec![b.sum(counted, &[0, 1])?, b.sum(counts, &[0, 1])?])
    });
    all_close(&fused, &composed);
    assert_eq!(fused[1].item(), 3.0);
}

#[test]
fn rotary_turns_halves_or_neighbours() {
    let inputs = normal(&[&[2, 3, 4], &[3, 2], &[3, 2]]);
    let halves = evaluate(&inputs, |b, x| Ok(vec![b.one(Rotary { interleaved: false }, x)?]));
    let composed = evaluate(&inputs, |b, x| {
        let (first, second) = (b.slice(x[0], 2, 0, Dim::known(2))?, b.slice(x[0], 2, 2, Dim::known(2))?);
        let turned = |b: &mut Builder, a, other, sign| {
            let (kept, crossed) = (b.build(a * x[1])?, b.build(other * x[2])?);
            b.one(sign, &[kept, crossed])
        };
        let (left, right) = (turned(b, first, second, Binary::Sub)?, turned(b, second, first, Binary::Add)?);
        Ok(vec![b.one(Concat { dim: 2 }, &[left, right])?])
    });
    all_close(&halves, &composed);
    // Interleaved pairs become halves by the permutation 0 2 1 3 of the last dim, which is its own inverse.
    let permuted = |b: &mut Builder, x: ValueId| {
        let (outer, dims) = (b.reshape(x, [2, 3, 2, 2].map(Dim::known))?, b.ty(x).dims.clone());
        let swapped = b.transpose(outer, &[0, 1, 3, 2])?;
        b.reshape(swapped, dims)
    };
    let neighbours = evaluate(&inputs, |b, x| {
        let before = permuted(b, x[0])?;
        let turned = b.one(Rotary { interleaved: true }, &[before, x[1], x[2]])?;
        Ok(vec![permuted(b, turned)?])
    });
    all_close(&halves, &neighbours);
}

/// As in PyTorch's `_safe_softmax`: the gradient of a fully masked row that is replaced by other numbers is zero and not NaN.
#[test]
fn a_softmax_of_which_nothing_is_read_has_the_gradient_zero() {
    let x = Tensor::float(DType::F64, vec![2, 2], vec![f64::NEG_INFINITY, f64::NEG_INFINITY, 0.5, 1.0]);
    let [dx, split, of_nan] = <[Tensor; 3]>::try_from(evaluate(&[x], |b, x| {
        let y = b.one(Softmax { dim: 1 }, x)?;
        let (nothing, zero, dy) = (b.one(Unary::IsNan, &[y])?, b.splat_like(y, 0.0)?, b.one(Unary::Tanh, x)?);
        let replaced = b.one(Select, &[nothing, zero, x[0]])?;
        let (op, operands) = (SoftmaxGrad { dim: 1 }, [y, replaced]);
        let dx = b.one(op.clone(), &operands)?;
        let split = op.partition(b, NodeRef { operands: &operands, results: &[dx] })?[0];
        Ok(vec![dx, split, b.one(op, &[y, dy])?])
    }))
    .expect("three results");
    // The derivative is y·(1 - y)·(x₀ - x₁).
    let share = 1.0 / (1.0 + 0.5_f64.exp());
    let slope = share * (1.0 - share) * -0.5;
    let expected = Tensor::float(DType::F64, vec![2, 2], vec![0.0, 0.0, slope, -slope]);
    all_close(&[dx, split], &[expected.clone(), expected]);
    assert!(of_nan.floats()[..2].iter().all(|x| x.is_nan()), "{of_nan:?}");
}

/// Returns the gradients of an operator in all operands, for a gradient of 1 of its result.
fn gradients_of(op: impl Into<Op>, operands: &[Tensor]) -> Vec<Tensor> {
    let op = op.into();
    evaluate(operands, |b, x| {
        let y = b.one(op.clone(), x)?;
        let dy = b.splat(b.ty(y).clone(), 1.0)?;
        let built =
            op.gradient(b, NodeRef { operands: x, results: &[y] }, &[Some(dy)]).expect("has a gradient");
        Ok(built.into_iter().flatten().collect())
    })
}

fn row(elements: &[f64]) -> Tensor {
    Tensor::float(DType::F64, vec![elements.len()], elements.to_vec())
}

#[test]
fn the_gradient_of_a_product_that_is_scattered_holds_where_factors_are_zero() {
    let places = Tensor::int(DType::I64, vec![5], vec![0, 0, 1, 3, 3]);
    let (data, updates) = (row(&[2.0, 0.0, 3.0, 0.0]), row(&[5.0, 0.0, 7.0, 0.0, 4.0]));
    let built = gradients_of(ScatterElements { dim: 0, kind: ScatterKind::Mul }, &[data, places, updates]);
    all_close(&built, &[row(&[0.0, 7.0, 1.0, 0.0]), row(&[0.0, 10.0, 0.0, 0.0, 0.0])]);
}

#[test]
fn equal_largest_updates_share_the_gradient() {
    let places = Tensor::int(DType::I64, vec![4], vec![0, 0, 1, 1]);
    let (data, updates) = (row(&[1.0, 2.0]), row(&[3.0, 3.0, 2.0, 1.0]));
    let built = gradients_of(ScatterElements { dim: 0, kind: ScatterKind::Max }, &[data, places, updates]);
    all_close(&built, &[row(&[0.0, 0.5]), row(&[0.5, 0.5, 0.5, 0.0])]);
}

#[test]
fn a_singular_matrix_has_the_gradient_of_a_determinant() {
    let matrix = |elements: [f64; 4]| Tensor::float(DType::F64, vec![2, 2], elements.to_vec());
    let built = gradients_of(Det, &[matrix([1.0, 2.0, 2.0, 4.0])]);
    all_close(&built, &[matrix([4.0, -2.0, -2.0, 1.0])]);
}

#[test]
fn equal_largest_elements_share_the_gradient() {
    let op = Reduce { kind: ReduceKind::Max, dims: [0].into_iter().collect(), keep: false };
    all_close(&gradients_of(op, &[row(&[3.0, 1.0, 3.0, 2.0])]), &[row(&[0.5, 0.0, 0.5, 0.0])]);
}

/// Runs an update of a parameter with a gradient and zero states, then `lr`, `weight_decay` and further f64 scalars.
fn update(op: impl Into<Op>, states: usize, scalars: &[f64]) -> Vec<Tensor> {
    let vector = |x: [f64; 2]| Tensor::float(DType::F64, vec![2], x.to_vec());
    let mut inputs = vec![vector([2.0, -1.0]), vector([0.5, -3.0])];
    inputs.extend((0..states).map(|_| vector([0.0, 0.0])));
    inputs.extend(scalars.iter().map(|&x| Tensor::float(DType::F64, vec![], vec![x])));
    let op = op.into();
    evaluate(&inputs, |b, x| Ok(b.push(op.clone(), x)?.to_vec()))
}

#[test]
fn the_first_step_of_adam_has_the_length_of_the_learning_rate() {
    let adam = |decoupled| Adam {
        beta1: Float::new(0.9),
        beta2: Float::new(0.999),
        eps: Float::new(0.0),
        decoupled,
    };
    let expect = |result: &Tensor, expected: [f64; 2]| {
        assert!(
            close(result, &Tensor::float(DType::F64, vec![2], expected.to_vec())),
            "{result:?} {expected:?}"
        );
    };
    let results = update(adam(true), 2, &[0.1, 0.0, 1.0]);
    expect(&results[0], [1.9, -0.9]);
    expect(&results[1], [0.05, -0.3]);
    expect(&results[2], [0.00025, 0.009]);
    // Weight decay of AdamW: 2·(1 - 0.1·0.5) and -1·(1 - 0.1·0.5), before the step.
    expect(&update(adam(true), 2, &[0.1, 0.5, 1.0])[0], [1.8, -0.85]);
    // Weight decay of Adam is added to the gradient, 0.5 + 0.5·2 and -3 - 0.5·1; the step keeps its length.
    let results = update(adam(false), 2, &[0.1, 0.5, 1.0]);
    expect(&results[0], [1.9, -0.9]);
    expect(&results[1], [0.15, -0.35]);
}

#[test]
fn gradient_descent_follows_its_velocity() {
    let sgd = |nesterov| Sgd { momentum: Float::new(0.5), nesterov };
    let results = update(sgd(false), 1, &[0.1, 1.0]);
    // g = gradient + parameter = 2.5 and -4; the velocity starts as g.
    assert!(close(&results[0], &Tensor::float(DType::F64, vec![2], vec![1.75, -0.6])));
    assert!(close(&results[1], &Tensor::float(DType::F64, vec![2], vec![2.5, -4.0])));
    // Nesterov adds half of the velocity to the gradient: 1.5·g.
    let ahead = update(sgd(true), 1, &[0.1, 1.0]);
    assert!(close(&ahead[0], &Tensor::float(DType::F64, vec![2], vec![1.625, -0.4])));
}

#[test]
fn adagrad_divides_by_the_root_of_all_squares_so_far() {
    let adagrad = |sum: f64| {
        let vector = |x: [f64; 2]| Tensor::float(DType::F64, vec![2], x.to_vec());
        let scalar = |x| Tensor::float(DType::F64, vec![], vec![x]);
        let inputs = [vector([2.0, -1.0]), vector([0.5, -3.0]), vector([sum, sum]), scalar(0.1), scalar(1.0)];
        evaluate(&inputs, |b, x| Ok(b.push(Adagrad { eps: Float::new(0.0) }, x)?.to_vec()))
    };
    // g = gradient + parameter = 2.5 and -4: the first step has the length of the learning rate.
    let first = adagrad(0.0);
    assert!(close(&first[0], &Tensor::float(DType::F64, vec![2], vec![1.9, -0.9])));
    assert!(close(&first[1], &Tensor::float(DType::F64, vec![2], vec![6.25, 16.0])));
    // √(9 + 16) = 5.
    let next = adagrad(9.0);
    assert!((next[0].floats()[1] - (-1.0 + 0.1 * 4.0 / 5.0)).abs() < 1e-15);
}

#[test]
fn lion_steps_by_the_sign_of_its_momentum_and_gradient() {
    let lion = Lion { beta1: Float::new(0.5), beta2: Float::new(0.75) };
    let vector = |x: [f64; 3]| Tensor::float(DType::F64, vec![3], x.to_vec());
    let scalar = |x| Tensor::float(DType::F64, vec![], vec![x]);
    let inputs = [vector([2.0, -1.0, 4.0]), vector([0.5, -3.0, 1.0]), vector([-1.0, 1.0, -1.0])];
    let inputs = [&inputs[..], &[scalar(0.1), scalar(1.0)]].concat();
    let results = evaluate(&inputs, |b, x| Ok(b.push(lion.clone(), x)?.to_vec()));
    // The directions are -1, -1 and (for a sum of zero) 0; parameters decay by a tenth.
    assert!(close(&results[0], &vector([1.9, -0.8, 3.6])));
    assert!(close(&results[1], &vector([-0.625, 0.0, -0.5])));
}

/// Returns the parameter, the gradient and the states of an update, and its f64 scalars.
fn operands_of(rule: &Op, gradient: [f64; 2]) -> Vec<Tensor> {
    let vector = |x: [f64; 2]| Tensor::float(DType::F64, vec![2], x.to_vec());
    let (states, scalars) = match rule {
        Op::Adam(_) => (2, &[0.1, 0.5, 3.0][..]),
        Op::Sgd(_) | Op::Adagrad(_) | Op::Lion(_) => (1, &[0.1, 0.5][..]),
        other => panic!("`{}` has operands of its own", other.name()),
    };
    let mut operands = vec![vector([2.0, -1.0]), vector(gradient)];
    operands.extend((0..states).map(|_| vector([0.5, 0.25])));
    operands.extend(scalars.iter().map(|&x| Tensor::float(DType::F64, vec![], vec![x])));
    operands
}

fn every_rule() -> [Op; 6] {
    let (beta1, beta2, eps) = (Float::new(0.9), Float::new(0.999), Float::new(1e-8));
    let adam = |decoupled| Adam { beta1, beta2, eps, decoupled };
    let sgd = |nesterov| Sgd { momentum: Float::new(0.5), nesterov };
    [
        adam(false).into(),
        adam(true).into(),
        sgd(false).into(),
        sgd(true).into(),
        Adagrad { eps }.into(),
        Lion { beta1, beta2 }.into(),
    ]
}

/// Returns the results of an update with further operands after its required ones.
fn update_with(rule: &Op, gradient: [f64; 2], more: &[Tensor]) -> Vec<Tensor> {
    let operands = [operands_of(rule, gradient), more.to_vec()].concat();
    evaluate(&operands, |b, x| Ok(b.push(rule.clone(), x)?.to_vec()))
}

fn scale(number: f64) -> Tensor {
    Tensor::float(DType::F64, vec![], vec![number])
}

#[test]
fn the_scale_of_an_update_multiplies_its_gradient() {
    for rule in every_rule() {
        let scaled = update_with(&rule, [0.5, -3.0], &[scale(0.3)]);
        assert_eq!(scaled, update_with(&rule, [0.5 * 0.3, -3.0 * 0.3], &[]), "{rule:?}");
        let runs = update_with(&rule, [0.5, -3.0], &[scale(0.3), Tensor::bool(vec![], vec![false])]);
        assert_eq!(scaled, runs, "{rule:?}");
    }
}

#[test]
fn an_update_that_is_skipped_changes_nothing_though_its_gradient_is_nan() {
    for rule in every_rule() {
        let skipped =
            update_with(&rule, [f64::NAN, f64::INFINITY], &[scale(0.3), Tensor::bool(vec![], vec![true])]);
        let mut old = operands_of(&rule, [0.0; 2]);
        old.remove(1);
        assert_eq!(skipped[..], old[..skipped.len()], "{rule:?}");
    }
}
