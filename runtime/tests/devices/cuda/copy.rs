//! Copies and sums over microbatches: in packs, by tiles, and element by element; and which of them is chosen.

use super::host;
use super::writer::Writer;
use crate::compare::{Microbatch, assert_agrees_on, unit};
use ir::interp::Mode;
use ir::ops::shape::Transpose;
use ir::ops::step::Accumulate;
use ir::{At, Builder, DType, Module, Phase, Tensor, Type, ValueId, random};
use runtime::cuda::host::Order;
use runtime::lower::{LowerOptions, Target};
use std::sync::Arc;

/// Of 8, 4, 2 and 1 bytes.
const TYPES: [DType; 5] = [DType::F64, DType::F32, DType::BF16, DType::I64, DType::I8];

fn made(w: &mut Writer, dtype: DType, sizes: &[usize]) -> ValueId {
    if dtype.is_float() { w.floats(dtype, sizes) } else { w.integers(dtype, sizes, -100..100) }
}

/// A copy of the transposed elements from `start` on of the last dim.
fn transposed(w: &mut Writer, dtype: DType, sizes: &[usize], start: usize, permutation: &[u32]) {
    let x = made(w, dtype, sizes);
    let last = sizes.len() as u32 - 1;
    let x = if start > 0 { w.cut(x, last, start as u64) } else { x };
    w.op(Transpose { permutation: permutation.iter().copied().collect() }, &[x]);
}

/// Sizes, the first element of the last dim that is taken, the permutation. Tiles are partial along both dims; sizes and
/// starts are even, odd, and multiples of a pack.
const CASES: [(&[usize], usize, &[u32]); 10] = [
    (&[40, 70], 0, &[1, 0]),
    (&[33, 67], 0, &[1, 0]),
    (&[130, 67], 1, &[1, 0]),
    (&[67, 132], 2, &[1, 0]),
    (&[3, 34, 66], 0, &[0, 2, 1]),
    (&[18, 3, 36], 0, &[2, 1, 0]),
    (&[2, 17, 3, 24], 0, &[0, 3, 2, 1]),
    (&[2, 6, 4, 32], 16, &[0, 2, 1, 3]),
    (&[2, 6, 4, 9], 1, &[0, 2, 1, 3]),
    (&[64, 4], 0, &[1, 0]),
];

fn check_copies(dtype: DType, threads: u32) {
    let mut w = Writer::default();
    for (sizes, start, permutation) in CASES {
        transposed(&mut w, dtype, sizes, start, permutation);
    }
    w.check(threads);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn copies_between_layouts_in_words_of_every_size() {
    for (threads, dtype) in TYPES.into_iter().enumerate() {
        check_copies(dtype, threads as u32);
    }
}

/// A sum over three microbatches for each case, of transposed addends.
fn sums(dtype: DType) -> (Module, Vec<Microbatch>) {
    let mut module = Module::new("sums");
    let name = |index: usize| format!("x.{index}");
    let inputs = std::array::from_fn::<_, 10, _>(|index| {
        let sizes: Vec<u64> = CASES[index].0.iter().map(|&size| size as u64).collect();
        module.add_input(name(index), Type::of(dtype, &sizes), true)
    });
    let microbatch = |step: u64| {
        let input = |index: usize| {
            let sizes = CASES[index].0;
            let numbers = (0..sizes.iter().product::<usize>()).map(|i| random::normal(7, step, i as u64));
            (name(index), Tensor::float(dtype, sizes.to_vec(), numbers.collect()).rounded())
        };
        (0..CASES.len()).map(input).collect()
    };
    let microbatches = (0..3).map(microbatch).collect();
    let mut b = Builder::new(&mut module, "test");
    let addends = std::array::from_fn::<_, 10, _>(|index| {
        b.transpose(inputs[index], CASES[index].2).expect("a permutation")
    });
    b.at(At::End(Phase::Update));
    let sums = addends.map(|addend| b.one(Accumulate, &[addend]).expect("a sum"));
    b.finish();
    for (index, sum) in sums.into_iter().enumerate() {
        module.add_output(format!("sum.{index}"), sum);
    }
    (module, microbatches)
}

fn options() -> LowerOptions<'static> {
    LowerOptions { target: Target::Cuda, ..LowerOptions::default() }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn transposed_addends_are_added_up() {
    for (threads, dtype) in [DType::F64, DType::F32, DType::F16, DType::BF16].into_iter().enumerate() {
        let (module, microbatches) = sums(dtype);
        let make = |program| host(program, Order { threads: threads as u32, first: None });
        let bound = |dtype| 3.0 * unit(dtype);
        assert_agrees_on(&make, Mode::Typed, &module, &options(), &[microbatches], bound);
    }
}

#[test]
fn sums_of_transposed_addends_go_by_tiles() {
    let (module, _) = sums(DType::BF16);
    let program = runtime::lower::lower(&module, &options()).expect("it has kernels");
    let cuda = runtime::cuda::lower::lower(Arc::new(program)).expect("it has kernels");
    let count = |text: &str| cuda.kernels.iter().filter(|kernel| kernel.text.contains(text)).count();
    let found = (count("copying::transpose<"), count("copying::move<"));
    assert_eq!(found, (7, 3), "{:#?}", cuda.kernels.iter().map(|kernel| &kernel.text).collect::<Vec<_>>());
}

/// The call of the only copy's kernel, without the layouts.
fn kernel_of(dtype: DType, sizes: &[usize], start: usize, permutation: &[u32]) -> String {
    let mut w = Writer::default();
    transposed(&mut w, dtype, sizes, start, permutation);
    let cuda = runtime::cuda::lower::lower(Arc::new(w.lowered())).expect("it has kernels");
    let [kernel] = &cuda.kernels[..] else { panic!("one kernel: {:?}", cuda.kernels) };
    let call = kernel.text.lines().find_map(|line| line.trim().strip_prefix("copying::")).expect("a call");
    let (name, arguments) = call.split_once('<').expect("a template");
    let (_, last) = arguments.rsplit_once(">>, ").expect("two layouts");
    format!("{name}: {}", last.split_once(">(").expect("its end").0)
}

#[test]
fn the_widest_packs_are_chosen_that_sizes_strides_and_places_allow() {
    let heads = &[0, 2, 1, 3];
    // Elements of a thread, of which so many are read at once, so far apart.
    assert_eq!(kernel_of(DType::BF16, &[2, 16, 4, 64], 0, heads), "move: u32, 8, 8, 1");
    assert_eq!(kernel_of(DType::F32, &[2, 16, 4, 64], 0, heads), "move: u32, 4, 4, 1");
    assert_eq!(kernel_of(DType::I8, &[2, 16, 4, 64], 0, heads), "move: u32, 16, 16, 1");
    assert_eq!(kernel_of(DType::F64, &[2, 16, 4, 64], 0, heads), "move: u32, 2, 2, 1");
    // Rows of 60, of which 56 begin at byte 8.
    assert_eq!(kernel_of(DType::BF16, &[2, 16, 4, 60], 4, heads), "move: u32, 8, 4, 1");
    // An odd place, rows of 64.
    assert_eq!(kernel_of(DType::BF16, &[2, 16, 4, 65], 1, heads), "move: u32, 8, 1, 1");
    // Odd rows.
    assert_eq!(kernel_of(DType::BF16, &[2, 16, 4, 63], 0, heads), "move: u32, 1, 1, 1");
    // Four columns: a tile would be empty for the most part.
    assert_eq!(kernel_of(DType::F32, &[64, 4], 0, &[1, 0]), "move: u32, 4, 1, 4");
}

#[test]
fn a_transpose_goes_by_tiles() {
    // Sizes, distances, and whether two halves are read and written at once.
    let of = |dtype, sizes: &[usize], start| kernel_of(dtype, sizes, start, &[1, 0]);
    assert_eq!(of(DType::F32, &[96, 64], 0), "transpose: 64, 96, 64, 96, true, true");
    assert_eq!(of(DType::BF16, &[96, 64], 0), "transpose: 64, 96, 64, 96, true, true");
    assert_eq!(of(DType::BF16, &[96, 65], 0), "transpose: 65, 96, 65, 96, false, true");
    assert_eq!(of(DType::BF16, &[95, 64], 0), "transpose: 64, 95, 64, 95, true, false");
    assert_eq!(of(DType::BF16, &[96, 65], 1), "transpose: 64, 96, 65, 96, false, true");
    let batched = kernel_of(DType::I8, &[3, 96, 64], 0, &[0, 2, 1]);
    assert_eq!(batched, "transpose: 64, 96, 64, 96, true, true");
}

/// More elements than 32 bits count: nothing runs, but the kernel counts in 64.
#[test]
fn huge_copies_are_counted_in_64_bits() {
    let module = |bytes: u64| {
        let mut module = Module::new("huge");
        let x = module.add_input("x", Type::of(DType::I8, &[1 << 15, 3, bytes >> 15]), false);
        let mut b = Builder::new(&mut module, "test");
        let x = b.transpose(x, &[1, 0, 2]).expect("a permutation");
        b.finish();
        module.add_output("x", x);
        module
    };
    let index = |bytes: u64| {
        let program = runtime::lower::lower(&module(bytes), &options()).expect("it has kernels");
        let cuda = runtime::cuda::lower::lower(Arc::new(program)).expect("it has kernels");
        let text = cuda.kernels[0].text.clone();
        assert!(text.contains("16, 16, 1>("), "{text}");
        if text.contains("u32, 16") { "u32" } else { "i64" }
    };
    assert_eq!((index(1 << 33), index(1 << 35)), ("u32", "i64"));
}
