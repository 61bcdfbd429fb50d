//! Reductions: of neighbours and across them, in packs and one by one, by threads, warps and blocks, in slices.

use super::host;
use super::writer::{FLOATS, Writer};
use crate::compare::{Microbatch, assert_agrees_on, unit};
use cuda::host::Order;
use ir::interp::Mode;
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::ops::step::Accumulate;
use ir::{At, Builder, DType, Module, Phase, Tensor, Type, ValueId, random};
use program::lower::LowerOptions;
use smallvec::SmallVec;

fn reduce(w: &mut Writer, kind: ReduceKind, x: ValueId, dims: &[u32], keep: bool) {
    w.op(Reduce { kind, dims: SmallVec::from_slice(dims), keep }, &[x]);
}

const KINDS: [ReduceKind; 4] = [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Max, ReduceKind::Min];

/// Sizes, and the dims that go.
const CASES: [(&[usize], &[u32]); 18] = [
    // Across: slices, no packs, few rows, many.
    (&[2048, 96], &[0]),
    (&[1500, 7], &[0]),
    (&[300, 7], &[0]),
    (&[7, 3000], &[0]),
    (&[3, 900, 20], &[1]),
    (&[40, 6, 50, 24], &[0, 2]),
    (&[2, 1], &[0]),
    // Along: by a thread, by some, by a warp, by a block, in slices.
    (&[900, 6], &[1]),
    (&[300, 24], &[1]),
    (&[2500, 301], &[1]),
    (&[3000, 64], &[1]),
    (&[40, 5001], &[1]),
    (&[3, 30_000], &[1]),
    (&[3, 30_001], &[1]),
    (&[70_000], &[0]),
    // Along several dims, in packs and one by one.
    (&[30, 4, 20, 16], &[0, 2, 3]),
    (&[9, 4, 7, 7], &[0, 2, 3]),
    (&[70, 3, 32, 8], &[0, 2, 3]),
];

#[test]
#[ignore = "needs a C++ compiler"]
fn floats_of_any_shape() {
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        for (i, (sizes, dims)) in CASES.into_iter().enumerate() {
            // Sums of half types are within their range.
            let x = w.numbers(dtype, sizes, |x| x / 8.0);
            for kind in [KINDS[0], KINDS[1 + (i + order) % 3]] {
                reduce(&mut w, kind, x, dims, i % 2 == 0);
            }
        }
        w.check(order as u32);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn integers_of_any_shape() {
    let mut w = Writer::default();
    for (i, (sizes, dims)) in CASES.into_iter().enumerate() {
        let dtype = [DType::I64, DType::I32, DType::U8, DType::I16][i % 4];
        let x = w.integers(dtype, sizes, 3..120);
        for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min] {
            reduce(&mut w, kind, x, dims, false);
        }
    }
    w.check(1);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn operands_lie_in_any_way() {
    let mut w = Writer::default();
    for dtype in [DType::F32, DType::BF16] {
        let x = w.floats(dtype, &[40, 48, 24]);
        for permutation in [[2, 0, 1], [1, 2, 0], [0, 2, 1], [2, 1, 0]] {
            let turned = w.transposed(x, &permutation);
            for (i, dims) in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 2]].into_iter().enumerate() {
                reduce(&mut w, KINDS[i % 4], turned, dims, i % 2 == 0);
            }
        }
        // At an odd place; one row for all.
        let cut = w.cut(x, 2, 1);
        reduce(&mut w, ReduceKind::Sum, cut, &[0, 1], false);
        reduce(&mut w, ReduceKind::Sum, cut, &[2], false);
        let row = w.floats(dtype, &[24]);
        let rows = Type::of(dtype, &[300, 24]);
        let rows = w.built(|b| b.broadcast(row, rows.dims).expect("a row"));
        reduce(&mut w, ReduceKind::Sum, rows, &[0], false);
        reduce(&mut w, ReduceKind::Max, rows, &[1], false);
        let nothing = w.floats(dtype, &[0, 5]);
        reduce(&mut w, ReduceKind::Sum, nothing, &[0], false);
        reduce(&mut w, ReduceKind::Sum, nothing, &[0, 1], true);
    }
    w.check(3);
}

/// The second microbatch adds to what the first has left, of one slice and of several.
#[test]
#[ignore = "needs a C++ compiler"]
fn sums_over_microbatches() {
    let cases = [(&[40, 24][..], 0), (&[1500, 24], 0), (&[41, 24], 1), (&[2, 30_000], 1)];
    for dtype in [DType::F32, DType::BF16] {
        let mut module = Module::new("sums");
        let inputs = cases.map(|(sizes, _)| {
            let ty = Type::of(dtype, &sizes.iter().map(|&size| size as u64).collect::<Vec<_>>());
            module.add_input(format!("{sizes:?}"), ty, true)
        });
        let microbatch = |step: u64| {
            let input = |(sizes, _): (&[usize], u32)| {
                let number = |i: usize| random::normal(5, step, i as u64) / 8.0;
                let numbers = (0..sizes.iter().product()).map(number).collect();
                (format!("{sizes:?}"), Tensor::float(dtype, sizes.to_vec(), numbers).rounded())
            };
            Microbatch::from(cases.map(input))
        };
        let microbatches = (0..3).map(microbatch).collect();
        let mut b = Builder::new(&mut module, "test");
        let sums = [0, 1, 2, 3].map(|i| b.sum(inputs[i], &[cases[i].1]).expect("a dim"));
        b.at(At::End(Phase::Update));
        let sums = sums.map(|sum| b.one(Accumulate, &[sum]).expect("a sum"));
        b.finish();
        sums.iter().for_each(|&sum| module.add_output(format!("{sum:?}"), sum));
        let make = |program| host(program, Order { threads: 2, first: None });
        let options = LowerOptions::of(cuda::TARGET);
        assert_agrees_on(&make, Mode::Typed, &module, &options, &[microbatches], |dtype| 3.0 * unit(dtype));
    }
}
