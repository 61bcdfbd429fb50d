//! Samples: contractions, convolutions, experts, compression, determinants, attention, rotary embedding.

use super::table::{f32_type, float, of};
use super::*;
use crate::ops::Float;
use crate::ops::attention::{Attention, AttentionGrad};
use crate::ops::compression::{Addends, Orthogonalize};
use crate::ops::contract::Contract;
use crate::ops::conv::{Conv, ConvGradInput, ConvGradWeight};
use crate::ops::det::Det;
use crate::ops::experts::{Experts, ExpertsGrad};
use crate::ops::rotary::Rotary;
use smallvec::SmallVec;

pub(super) fn contractions() -> Vec<Sample> {
    let contract =
        |text: &str, lhs: &[u64], rhs: &[u64]| Sample::new(Contract::new(text), [float(lhs), float(rhs)]);
    vec![
        contract("mk,kn->mn", &[2, 4], &[4, 6]),
        contract("bsh,oh->bso", &[2, 4, 6], &[2, 6]),
        contract("bhsd,bhtd->bhst", &[2, 4, 6, 2], &[2, 4, 2, 2]),
        contract("bshd,hdo->bso", &[2, 4, 2, 6], &[2, 6, 4]),
        contract("ij,ij->", &[4, 6], &[4, 6]),
        contract("ij,ij->ji", &[4, 6], &[4, 6]),
        // Large enough that the gemm crate is used.
        contract("bmk,kn->bmn", &[2, 34, 36], &[36, 40]),
    ]
}

pub(super) fn convolutions() -> Vec<Sample> {
    [
        convolve([&[2, 4, 7], &[2, 4, 3], &[1], &[1], &[1, 1]]),
        convolve([&[2, 2, 9], &[4, 2, 4], &[3], &[1], &[0, 2]]),
        // Some elements are read by no window.
        convolve([&[2, 2, 7], &[2, 2, 1], &[4], &[1], &[0, 0]]),
        convolve([&[2, 2, 5, 7], &[2, 2, 3, 3], &[1, 1], &[1, 1], &[0, 0, 0, 0]]),
        convolve([&[2, 2, 7, 9], &[4, 2, 3, 2], &[2, 3], &[2, 1], &[1, 0, 2, 3]]),
        convolve([&[2, 4, 3, 4], &[6, 4, 1, 1], &[1, 1], &[1, 1], &[0, 0, 0, 0]]),
        // Several groups, also with one channel each.
        convolve([&[2, 4, 5, 5], &[4, 2, 3, 3], &[2, 2], &[1, 1], &[1, 1, 1, 1]]),
        convolve([&[2, 4, 4, 5], &[8, 1, 3, 3], &[1, 2], &[1, 1], &[0, 1, 2, 1]]),
        convolve([&[2, 2, 3, 4, 5], &[2, 2, 2, 3, 2], &[1, 2, 1], &[2, 1, 1], &[1, 1, 0, 0, 2, 1]]),
        // One channel in each group: windows larger than the image, also an image of one element; strides and dilations; one and three
        // spatial dims; lines longer than a block of vectors.
        convolve([&[2, 2, 6, 5], &[2, 1, 7, 7], &[1, 1], &[1, 1], &[3, 3, 3, 3]]),
        convolve([&[2, 4, 1, 1], &[4, 1, 3, 3], &[1, 1], &[1, 1], &[1, 1, 1, 1]]),
        convolve([&[2, 2, 8, 9], &[4, 1, 3, 3], &[3, 2], &[1, 2], &[0, 3, 2, 1]]),
        convolve([&[2, 2, 7, 6], &[2, 1, 2, 4], &[1, 1], &[2, 1], &[1, 0, 1, 3]]),
        convolve([&[2, 2, 9, 1], &[2, 1, 5, 1], &[2, 1], &[1, 1], &[2, 0, 2, 0]]),
        convolve([&[2, 2, 70], &[2, 1, 4], &[1], &[1], &[3, 0]]),
        convolve([&[2, 2, 11], &[4, 1, 5], &[3], &[2], &[4, 1]]),
        convolve([&[2, 2, 3, 4, 5], &[4, 1, 2, 3, 2], &[2, 1, 1], &[1, 1, 2], &[0, 1, 1, 1, 1, 0]]),
        // Large enough that the gemm crate is used.
        convolve([&[2, 2, 13, 13], &[12, 2, 3, 3], &[1, 1], &[1, 1], &[1, 1, 1, 1]]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Makes a convolution of an image and a weight with these strides, dilations and pads, and its gradients.
fn convolve([x, weight, strides, dilations, pads]: [&[u64]; 5]) -> [Sample; 3] {
    let (strides, dilations) = (SmallVec::from_slice(strides), SmallVec::from_slice(dilations));
    let pads = SmallVec::from_slice(pads);
    let conv = Conv { strides: strides.clone(), dilations: dilations.clone(), pads: pads.clone() };
    let grad_input =
        ConvGradInput { strides: strides.clone(), dilations: dilations.clone(), pads: pads.clone() };
    let grad_weight = ConvGradWeight { strides, dilations, pads };
    let forward = Sample::new(conv, [float(x), float(weight)]);
    let ty = forward.result_types().expect("samples are well-typed").remove(0);
    let dy = Operand { ty, fill: Fill::Normal };
    [
        forward,
        Sample::new(grad_input, [float(weight), dy.clone()]).declared(f32_type(x)),
        Sample::new(grad_weight, [float(x), dy]).declared(f32_type(weight)),
    ]
}

pub(super) fn experts() -> Vec<Sample> {
    let index = of(DType::I64, &[8], Fill::Integers(-4, 4));
    let wild = of(DType::I32, &[8], Fill::Integers(-6, 6));
    let calls = [
        (false, [4, 6, 2], index.clone()),
        (true, [4, 2, 6], wild.clone()),
        // Whole packs of 16 bytes in half types.
        (false, [4, 16, 8], wild),
        (true, [4, 8, 16], index),
    ];
    let forward = |(transposed, weights, index): (bool, [u64; 3], Operand)| {
        let width = if transposed { weights[2] } else { weights[1] };
        Sample::new(Experts { transposed }, [float(&[8, width]), float(&weights), index])
    };
    let gradient = |(_, weights, index): (bool, [u64; 3], Operand)| {
        let operands = [index, float(&[8, weights[1]]), float(&[8, weights[2]])];
        Sample::new(ExpertsGrad, operands).declared(f32_type(&weights)).undifferentiable()
    };
    calls.clone().into_iter().map(forward).chain(calls.into_iter().map(gradient)).collect()
}

pub(super) fn determinants() -> Vec<Sample> {
    let of = |dims: &[u64]| Sample::new(Det, [float(dims)]);
    vec![of(&[2, 4, 3, 3]), of(&[6, 1, 1]), of(&[2, 5, 5])]
}

pub(super) fn compressions() -> Vec<Sample> {
    let addends = |count, dims: &[u64]| Sample::new(Addends { count }, [float(dims)]).undifferentiable();
    let basis = |operand: Operand| Sample::new(Orthogonalize, [operand]).undifferentiable();
    vec![
        addends(1, &[4, 6]),
        addends(3, &[2, 4, 2]),
        basis(float(&[6, 4])),
        basis(float(&[2, 4, 4])),
        // More rows than a block has threads.
        basis(float(&[2, 300, 3])),
        // Some columns depend on others.
        basis(of(DType::F32, &[2, 10, 3], Fill::Value(2.0))),
        basis(of(DType::F32, &[8, 2], Fill::Value(0.0))),
    ]
}

pub(super) fn attention() -> Vec<Sample> {
    let mut samples = vec![];
    // Batch, query heads, key-value heads, queries, keys, widths of q and v.
    let plain = [2, 4, 4, 6, 5, 2, 3];
    let grouped = [2, 8, 2, 4, 4, 3, 2];
    let masks = [
        of(DType::Bool, &[2, 1, 6, 5], Fill::Mask),
        of(DType::F32, &[1, 1, 6, 5], Fill::Mask),
        of(DType::F32, &[2, 4, 6, 5], Fill::HugeMask),
        of(DType::Bool, &[2, 1, 1, 5], Fill::Normal),
    ];
    samples.extend(attend(plain, false, None));
    samples.extend(attend(grouped, false, None));
    samples.extend(attend(grouped, true, None));
    samples.extend(attend(grouped, true, Some(of(DType::F32, &[2, 8, 1, 4], Fill::Mask))));
    samples.extend(masks.into_iter().flat_map(|mask| attend(plain, false, Some(mask))));
    // In half precision tensor cores are used, because rows are whole packs of 16 bytes.
    let packs = [2, 4, 2, 18, 18, 16, 8];
    samples.extend(attend(packs, true, Some(of(DType::Bool, &[1, 1, 18, 18], Fill::Mask))));
    samples.extend(attend(packs, false, Some(of(DType::F32, &[1, 4, 18, 18], Fill::HugeMask))));
    samples
}

/// Makes attention with these sizes, and its gradient.
fn attend([b, h, g, s, t, d, e]: [u64; 7], causal: bool, mask: Option<Operand>) -> [Sample; 2] {
    let scale = Float::new(0.7);
    let op = Attention { scale, causal };
    let smooth = !mask.as_ref().is_some_and(|mask| matches!(mask.fill, Fill::HugeMask));
    let operands: Vec<Operand> =
        [float(&[b, h, s, d]), float(&[b, g, t, d]), float(&[b, g, t, e])].into_iter().chain(mask).collect();
    let result = |dims: &[u64], result| Operand {
        ty: f32_type(dims),
        fill: Fill::Result(op.clone().into(), (0..operands.len()).collect(), result),
    };
    let more = [result(&[b, h, s, e], 0), result(&[b, h, s], 1), float(&[b, h, s, e])];
    let backward = operands.iter().cloned().chain(more).collect::<Vec<_>>();
    let forward = Sample::new(op.clone(), operands.clone()).statistics(&[1]);
    [Sample { smooth, ..forward }, Sample::new(AttentionGrad { scale, causal }, backward).undifferentiable()]
}

pub(super) fn rotary() -> Vec<Sample> {
    let tables = [&[2u64, 1, 4, 3][..], &[4, 3]];
    let sample = |interleaved, table: &[u64]| {
        Sample::new(Rotary { interleaved }, [float(&[2, 2, 4, 6]), float(table), float(table)])
    };
    [false, true].into_iter().flat_map(|interleaved| tables.map(|table| sample(interleaved, table))).collect()
}
