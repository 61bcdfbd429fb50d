//! Norms: rows of a part of a warp, of a warp, of a block, and longer than registers hold; gradients summed over rows that
//! a block goes through in one round and in several.

use super::writer::{FLOATS, Writer};
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::norm::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad};
use ir::{DType, Op, Type, ValueId};
use program::{Kernel, Section};
use std::collections::BTreeSet;

/// Both norms of `x` and their gradients.
fn norms(w: &mut Writer, dtype: DType, x: ValueId, sizes: &[usize]) {
    let columns = &sizes[sizes.len() - 1..];
    let [scale, bias] = [0, 1].map(|_| w.floats(dtype, columns));
    let dy = w.numbers(dtype, sizes, |x| x / 16.0);
    let layer = w.op(LayerNorm { eps: 1e-5.into() }, &[x, scale, bias]);
    w.op(LayerNormGrad, &[x, scale, layer[1], layer[2], dy]);
    let rms = w.op(RmsNorm { eps: 1e-6.into() }, &[x, scale]);
    w.op(RmsNormGrad, &[x, scale, rms[1], dy]);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn rows_of_any_length_are_normalized() {
    let cases = [
        // Held: by a part of a warp, by a warp, by two and more.
        &[3, 5, 6][..],
        &[3, 1],
        &[300, 64],
        &[37, 101],
        &[21, 768],
        &[9, 1600],
        &[2, 2, 2048],
        &[3, 6001],
        // Not held: by the gradient, by either.
        &[9, 9000],
        &[3, 33000],
        &[2, 33001],
    ];
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        for sizes in cases {
            let x = w.numbers(dtype, sizes, |x| x + 1.5);
            norms(&mut w, dtype, x, sizes);
        }
        w.check(order as u32);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn blocks_go_through_many_rows() {
    let mut w = Writer::default();
    for (dtype, sizes) in [(DType::F32, [70_001, 8]), (DType::BF16, [140_000, 3])] {
        let x = w.numbers(dtype, &sizes, |x| x + 1.5);
        norms(&mut w, dtype, x, &sizes);
    }
    w.check(3);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn rows_at_odd_places_and_no_rows() {
    let mut w = Writer::default();
    for dtype in FLOATS {
        let x = w.floats(dtype, &[1 + 5 * 64]);
        let x = w.cut(x, 0, 1);
        let to = Type::of(dtype, &[5, 64]);
        let x = w.built(|b| b.reshape(x, to.dims).expect("as many"));
        norms(&mut w, dtype, x, &[5, 64]);
        let x = w.floats(dtype, &[0, 8]);
        norms(&mut w, dtype, x, &[0, 8]);
    }
    w.check(1);
}

/// The gradient of a norm in mixed precision: x and d y are of half types or single, scale and statistics single.
fn mixed_gradient(w: &mut Writer, sizes: &[usize], [x, dy]: [DType; 2], adds: bool) {
    let scale = w.floats(DType::F32, &sizes[sizes.len() - 1..]);
    let x = w.numbers(x, sizes, |x| x + 1.5);
    let dy = w.numbers(dy, sizes, |x| x / 16.0);
    let halves = [x, dy];
    let [x, dy] = halves.map(|half| w.built(|b| b.cast(half, DType::F32).expect("a float")));
    let layer = w.op(LayerNorm { eps: 1e-5.into() }, &[x, scale, scale]);
    let rms = w.op(RmsNorm { eps: 1e-6.into() }, &[x, scale]);
    let gradients: [(Op, Vec<ValueId>); 2] = [
        (LayerNormGrad.into(), vec![x, scale, layer[1], layer[2], dy]),
        (RmsNormGrad.into(), vec![x, scale, rms[1], dy]),
    ];
    for (op, operands) in gradients {
        if !adds {
            w.op(op, &operands);
            continue;
        }
        // What goes past the norm is added to what comes through it.
        let residual = w.floats(DType::F32, sizes);
        let made = w.built(|b| b.push(op, &operands).expect("a norm's gradient"));
        w.op(Binary::Add, &[made[0], residual]);
        made[1..].iter().for_each(|&sum| drop(w.op(Unary::Neg, &[sum])));
    }
    halves.into_iter().zip([x, dy]).for_each(|(half, cast)| w.widen_in_readers(half, cast));
}

/// The element types of x and d y, and whether something is added, of every norm's gradient that a device is given.
fn gradients_of(w: &Writer) -> BTreeSet<(DType, DType, bool)> {
    let program = w.lowered();
    let places = program.section(Section::Microbatch).iter().filter_map(|instruction| {
        let dy = match &instruction.kernel {
            Kernel::Op(Op::LayerNormGrad(_)) => 4,
            Kernel::Op(Op::RmsNormGrad(_)) => 3,
            _ => return None,
        };
        let operands = &instruction.operands;
        Some((operands[0].dtype, operands[dy].dtype, operands.len() > dy + 1))
    });
    places.collect()
}

/// The kernel reads x of one type and d y of another: the pass `absorb` writes such programs.
#[test]
#[ignore = "needs a C++ compiler"]
fn the_rows_of_a_gradient_are_of_two_types() {
    const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
    let mut w = Writer::default();
    let mut all = BTreeSet::new();
    for x in TYPES {
        for dy in TYPES {
            for (sizes, adds) in
                [(&[5, 6][..], true), (&[37, 101], false), (&[21, 768], true), (&[3, 9000], false)]
            {
                mixed_gradient(&mut w, sizes, [x, dy], adds);
                all.insert((x, dy, adds));
            }
        }
    }
    assert_eq!(gradients_of(&w), all);
    w.check(2);
}
