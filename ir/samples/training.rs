//! Samples: losses, dropout, random numbers, optimizer updates.

use super::table::{f32_type, float, of};
use super::*;
use crate::ops::Float;
use crate::ops::dropout::Dropout;
use crate::ops::loss::{CrossEntropy, CrossEntropyGrad};
use crate::ops::optimizer::{Adagrad, Adam, Adam8bit, Lion, Sgd};
use crate::ops::random::RandomUniform;

pub(super) fn losses() -> Vec<Sample> {
    let mut samples = vec![];
    // Positions, number of classes, smoothing, and the ignored label, which may be a class.
    let calls = [(&[2u64, 4][..], 6, 0.0, -100), (&[6], 4, 0.1, -1), (&[2, 6], 4, 0.1, 1)];
    for (positions, classes, smoothing, ignore_index) in calls {
        let label_smoothing = Float::new(smoothing);
        let loss = CrossEntropy { ignore_index, label_smoothing };
        let logits = float(&[positions, &[classes]].concat());
        let labels = of(DType::I64, positions, Fill::Labels(classes as i64, ignore_index));
        let logsumexp =
            Operand { ty: f32_type(positions), fill: Fill::Result(loss.clone().into(), vec![0, 1], 2) };
        samples.push(Sample::new(loss, [logits.clone(), labels.clone()]).statistics(&[2]));
        let grad = CrossEntropyGrad { ignore_index, label_smoothing };
        samples.push(Sample::new(grad, [logits, labels, logsumexp, float(&[])]).undifferentiable());
    }
    samples
}

/// The dim of the samples alone, as the major part of a dim, and after other dims; one sample for all; no samples, as in an
/// evaluation.
pub(super) fn dropout() -> Vec<Sample> {
    let op = |ratio, id, seed, dim| Dropout { ratio: Float::new(ratio), id, seed, dim };
    let numbers = |samples| of(DType::I64, &[samples], Fill::Integers(-3, 1 << 40));
    vec![
        Sample::new(op(0.5, 0, 7, 0), [float(&[2, 4, 6]), numbers(2)]),
        Sample::new(op(0.25, 3, u64::MAX, 0), [float(&[4, 6]), numbers(2)]),
        Sample::new(op(0.1, 1, 0, 1), [float(&[4, 2, 10]), numbers(2)]),
        Sample::new(op(0.5, u32::MAX, 0, 0), [float(&[4, 2]), numbers(1)]),
        Sample::new(op(0.5, 2, 0, 0), [float(&[4])]).undifferentiable(),
    ]
}

/// The dim of the samples alone, as the major part of a dim, and after other dims; one sample for all; no samples, as in an
/// evaluation.
pub(super) fn random() -> Vec<Sample> {
    let numbers = |samples| of(DType::I64, &[samples], Fill::Integers(-3, 1 << 40));
    let drawn = |id, seed, dim, sizes: &[u64], numbers: Option<Operand>| {
        let operands: Vec<Operand> = numbers.into_iter().collect();
        let sample = Sample::new(RandomUniform { id, seed, dim }, operands);
        sample.declared(f32_type(sizes))
    };
    vec![
        drawn(0, 7, 0, &[2, 4, 6], Some(numbers(2))),
        drawn(3, u64::MAX, 0, &[4, 6], Some(numbers(2))),
        drawn(1, 0, 1, &[4, 2, 10], Some(numbers(2))),
        drawn(u32::MAX, 0, 0, &[4, 2], Some(numbers(1))),
        drawn(2, 0, 0, &[4], None),
    ]
}

/// Each rule without scale and skip, with a scale, and with a false and a true skip.
pub(super) fn optimizers() -> Vec<Sample> {
    let scale = || of(DType::F32, &[], Fill::Value(0.25));
    let skip = |skips| of(DType::Bool, &[], Fill::Value(skips));
    let more = [vec![], vec![scale()], vec![scale(), skip(0.0)], vec![scale(), skip(1.0)]];
    let with = |(op, operands): (Op, Vec<Operand>), more: &Vec<Operand>| {
        Sample::new(op, [operands, more.clone()].concat()).undifferentiable()
    };
    more.iter().flat_map(|more| rules().into_iter().map(|rule| with(rule, more))).collect()
}

/// Adam with moments in 8 bits: rows of whole blocks, a row with a short block, a row of one block, and rows of two dims.
fn in_8_bits() -> Vec<(Op, Vec<Operand>)> {
    let scalar = |value| of(DType::F64, &[], Fill::Value(value));
    let rule = |decoupled, dims: &[u64], blocks: &[u64]| {
        let [beta1, beta2, eps] = [0.9, 0.99, 1e-8].map(Float::new);
        let adam = Adam8bit { beta1, beta2, eps, decoupled, block: 4 };
        let codes = || of(DType::U8, dims, Fill::Integers(0, 256));
        let largest = || of(DType::F32, blocks, Fill::Positive);
        let states = [codes(), largest(), codes(), largest()];
        let scalars = [scalar(1e-2), scalar(0.1), scalar(3.0)];
        (adam.into(), [&[float(dims), float(dims)][..], &states, &scalars].concat())
    };
    vec![
        rule(true, &[2, 8], &[2, 2]),
        rule(false, &[2, 6], &[2, 2]),
        rule(false, &[2, 4], &[2, 1]),
        rule(true, &[8, 2], &[4]),
    ]
}

/// The rules of optimizers, with their required operands.
fn rules() -> Vec<(Op, Vec<Operand>)> {
    let scalar = |value| of(DType::F64, &[], Fill::Value(value));
    let (tensor, positive) = (|| float(&[2, 4]), || of(DType::F32, &[2, 4], Fill::Positive));
    let mut rules = vec![];
    for decoupled in [false, true] {
        let adam = Adam { beta1: Float::new(0.9), beta2: Float::new(0.99), eps: Float::new(1e-8), decoupled };
        let tensors = [tensor(), tensor(), tensor(), positive()];
        rules.push((adam.into(), [&tensors[..], &[scalar(1e-2), scalar(0.1), scalar(3.0)]].concat()));
    }
    let adam =
        Adam { beta1: Float::new(0.9), beta2: Float::new(0.99), eps: Float::new(1e-8), decoupled: true };
    let (first, second) = (of(DType::BF16, &[2, 4], Fill::Normal), of(DType::BF16, &[2, 4], Fill::Positive));
    let scalars = [scalar(1e-2), scalar(0.1), scalar(3.0)];
    rules.push((adam.into(), [&[tensor(), tensor(), first, second][..], &scalars].concat()));
    for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
        let sgd = Sgd { momentum: Float::new(momentum), nesterov };
        rules.push((sgd.into(), vec![tensor(), tensor(), tensor(), scalar(1e-2), scalar(0.1)]));
    }
    rules.extend(in_8_bits());
    let lion = Lion { beta1: Float::new(0.9), beta2: Float::new(0.99) };
    rules.push((lion.into(), vec![tensor(), tensor(), tensor(), scalar(1e-2), scalar(0.1)]));
    let operands = vec![tensor(), tensor(), positive(), scalar(1e-2), scalar(0.1)];
    rules.push((Adagrad { eps: Float::new(1e-10) }.into(), operands));
    rules
}
