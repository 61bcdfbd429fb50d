//! Reading at indices and the gradients of that: rows of any width, few and many indices, some of one place, negative
//! ones and such that are outside.

use super::host;
use super::writer::{FLOATS, Writer};
use crate::compare::{Microbatch, assert_agrees_on, unit};
use cuda::host::Order;
use ir::interp::Mode;
use ir::ops::indexing::{Gather, GatherElements, GatherGrad, GatherNd};
use ir::ops::scatter::{GatherElementsGrad, GatherNdGrad};
use ir::ops::step::Accumulate;
use ir::{At, Builder, DType, Module, Op, Phase, Tensor, Type, random};
use program::lower::LowerOptions;

const TYPES: [DType; 6] = [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I8];
const INDICES: [DType; 5] = [DType::I64, DType::I32, DType::U8, DType::I16, DType::I8];

fn of(dtype: DType, sizes: &[usize]) -> Type {
    Type::new(dtype, sizes.iter().map(|&size| ir::Dim::known(size as u64)))
}

/// Indices into a dim of `size` elements, some outside.
fn indices(w: &mut Writer, dtype: DType, sizes: &[usize], size: i64) -> ir::ValueId {
    let low = if matches!(dtype, DType::U8) { 0 } else { -size - 2 };
    w.integers(dtype, sizes, low..size + 2)
}

#[test]
#[ignore = "needs a C++ compiler"]
fn rows_are_read_in_packs_of_any_width() {
    let mut w = Writer::default();
    for (i, dtype) in TYPES.into_iter().enumerate() {
        for (j, width) in [1, 3, 8, 20, 64].into_iter().enumerate() {
            let index = INDICES[(i + j) % 5];
            let made = |w: &mut Writer, sizes: &[usize]| {
                if dtype.is_float() { w.floats(dtype, sizes) } else { w.integers(dtype, sizes, -100..100) }
            };
            let data = made(&mut w, &[3, 5, width]);
            let places = indices(&mut w, index, &[2, 7], 5);
            w.op(Gather { dim: 1 }, &[data, places]);
            let behind = w.cut(data, 0, 1);
            w.op(Gather { dim: 1 }, &[behind, places]);
            let places = indices(&mut w, index, &[], 3);
            w.op(Gather { dim: 0 }, &[data, places]);
            let places = indices(&mut w, index, &[3, 4, width], 5);
            w.op(GatherElements { dim: 1 }, &[data, places]);
            let places = indices(&mut w, index, &[70, 2], 3);
            w.op(GatherNd { batch_dims: 0 }, &[data, places]);
            let places = indices(&mut w, index, &[3, 9, 1], 5);
            w.op(GatherNd { batch_dims: 1 }, &[data, places]);
        }
    }
    let none = w.floats(DType::F32, &[0, 4]);
    let places = indices(&mut w, DType::I64, &[3], 1);
    w.op(Gather { dim: 0 }, &[none, places]);
    w.check(1);
}

/// One block sorts few; many are merged. Of few places each has so many updates that their sum is made in runs.
#[test]
#[ignore = "needs a C++ compiler"]
fn gradients_of_few_and_many_indices() {
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        let cases =
            [(1, 5, 8), (7, 3, 3), (64, 2, 16), (65, 1, 4), (700, 9, 24), (5000, 30, 2), (9001, 4, 1)];
        for (case, (count, size, width)) in cases.into_iter().enumerate() {
            let places = indices(&mut w, INDICES[case % 5], &[count], size);
            let small = |x: f64| x / 16.0;
            let updates = w.numbers(dtype, &[2, count, width], small);
            w.typed(GatherGrad { dim: 1 }, &[places, updates], &[of(dtype, &[2, size as usize, width])]);
            let updates = w.numbers(dtype, &[count, width], small);
            w.typed(GatherGrad { dim: 0 }, &[places, updates], &[of(dtype, &[size as usize, width])]);
            if case % 2 != order % 2 {
                continue;
            }
            let places = indices(&mut w, DType::I32, &[count, width], size);
            let sums = [of(dtype, &[size as usize, width])];
            w.typed(GatherElementsGrad { dim: 0 }, &[places, updates], &sums);
            let places = indices(&mut w, DType::I32, &[count, 1], size);
            w.typed(GatherNdGrad { batch_dims: 0 }, &[places, updates], &sums);
        }
        let (places, updates) = (w.integers(DType::I64, &[0], 0..4), w.floats(dtype, &[0, 3]));
        w.typed(GatherGrad { dim: 0 }, &[places, updates], &[of(dtype, &[4, 3])]);
        w.check(order as u32);
    }
}

/// Sums over microbatches: what no index names stays, what one names is added to.
#[test]
#[ignore = "needs a C++ compiler"]
fn gradients_add_up_over_microbatches() {
    let mut module = Module::new("sums");
    let ops: [(Op, &[u64]); 3] = [
        (GatherGrad { dim: 0 }.into(), &[200]),
        (GatherElementsGrad { dim: 0 }.into(), &[200, 8]),
        (GatherNdGrad { batch_dims: 0 }.into(), &[200, 1]),
    ];
    let mut inputs = vec![];
    for dtype in [DType::F32, DType::BF16] {
        for (op, places) in &ops {
            let name = format!("{} {dtype}", op.name());
            let types = [Type::of(DType::I64, places), Type::of(dtype, &[200, 8])];
            let operands = ["places", "updates"].map(|what| format!("{name} {what}"));
            let values = [0, 1].map(|i| module.add_input(&operands[i], types[i].clone(), false));
            let mut b = Builder::new(&mut module, "test");
            let sums = b.push_typed(op.clone(), &values, &[Type::of(dtype, &[9, 8])]).expect("types fit");
            b.at(At::End(Phase::Update));
            let sum = b.one(Accumulate, &sums).expect("floats add up");
            b.finish();
            module.add_output(name, sum);
            inputs.extend(operands.into_iter().zip(types));
        }
    }
    let microbatch = |number: u64| {
        let tensor = |(stream, (name, ty)): (usize, &(String, Type))| {
            let sizes: Vec<usize> =
                ty.sizes().expect("bound").into_iter().map(|size| size as usize).collect();
            let normal = |i: usize| random::normal(number, stream as u64, i as u64);
            let count = sizes.iter().product::<usize>();
            let tensor = match ty.dtype {
                DType::I64 => {
                    Tensor::int(ty.dtype, sizes, (0..count).map(|i| (3.0 * normal(i)) as i64).collect())
                }
                dtype => Tensor::float(dtype, sizes, (0..count).map(|i| normal(i) / 8.0).collect()).rounded(),
            };
            (name.clone(), tensor)
        };
        inputs.iter().enumerate().map(tensor).collect::<Microbatch>()
    };
    let steps: Vec<Vec<Microbatch>> = vec![(0..3).map(microbatch).collect(), vec![microbatch(3)]];
    let options = LowerOptions::of(cuda::TARGET);
    let make = |program| host(program, Order { threads: 1, first: None });
    // The interpreter rounds the sum of each microbatch.
    assert_agrees_on(&make, Mode::Typed, &module, &options, &steps, |dtype| 4.0 * unit(dtype));
}
