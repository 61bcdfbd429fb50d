//! Copies and sums over microbatches: in packs, by tiles, and element by element; and which of them is chosen.

use super::host;
use super::writer::Writer;
use cuda::host::Order;
use ir::ops::shape::Reshape;
use ir::ops::step::Accumulate;
use ir::{At, Builder, DType, Module, Phase, Tensor, Type, ValueId};
use program::device::ProgramId;
use program::layout::Layout;
use program::lower::LowerOptions;
use program::{Microbatches, Program, Section};
use std::sync::Arc;

/// Of 8, 4, 2 and 1 bytes.
const TYPES: [DType; 5] = [DType::F64, DType::F32, DType::BF16, DType::I64, DType::I8];

fn made(w: &mut Writer, dtype: DType, sizes: &[usize]) -> ValueId {
    if dtype.is_float() { w.floats(dtype, sizes) } else { w.integers(dtype, sizes, -100..100) }
}

/// The transposed elements from `start` on of the last dim in one row, which takes a copy.
fn transposed(w: &mut Writer, dtype: DType, sizes: &[usize], start: usize, permutation: &[u32]) {
    let x = made(w, dtype, sizes);
    let last = sizes.len() as u32 - 1;
    let x = if start > 0 { w.cut(x, last, start as u64) } else { x };
    let count = sizes[..sizes.len() - 1].iter().product::<usize>() * (sizes[sizes.len() - 1] - start);
    let x = w.transposed(x, permutation);
    w.typed(Reshape, &[x], &[Type::of(dtype, &[count as u64])]);
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

/// A sum over microbatches, whose addend lies transposed: with the elements `[i, j]` at `j * rows + i`. Lowering lays sums out
/// as their addends, so the program is changed.
fn sum(dtype: DType, [rows, columns]: [usize; 2]) -> Program {
    let mut module = Module::new("sum");
    let x = module.add_input("x", Type::of(dtype, &[rows as u64, columns as u64]), true);
    let mut b = Builder::new(&mut module, "test");
    b.at(At::End(Phase::Update));
    let sum = b.one(Accumulate, &[x]).expect("a sum");
    b.finish();
    module.add_output("sum", sum);
    let mut program = program::lower::lower(&module, &options()).expect("it has kernels");
    let [adds] = &mut program.sections[Section::Microbatch as usize][..] else { panic!("one sum") };
    adds.operands[0].layout = Layout::in_order(&[rows, columns], &[1, 0]);
    program
}

fn options() -> LowerOptions<'static> {
    LowerOptions { microbatches: Microbatches::Many, ..LowerOptions::of(cuda::TARGET) }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn transposed_addends_are_added_up() {
    let cases = [[96, 64], [33, 67], [130, 68], [66, 35], [64, 4], [4, 64]];
    for (threads, dtype) in [DType::F64, DType::F32, DType::F16, DType::BF16].into_iter().enumerate() {
        for sizes in cases {
            let [rows, columns] = sizes;
            let mut device = host(sum(dtype, sizes), Order { threads: threads as u32, first: None });
            // Small integers, whose sums are exact.
            let number = |microbatch: usize, place: usize| ((7 * place + 3 * microbatch) % 32) as f64;
            let id = ProgramId(0);
            device.run(id, Section::Prepare).expect("it begins");
            for microbatch in 0..3 {
                let numbers = (0..rows * columns).map(|place| number(microbatch, place)).collect();
                let x = Tensor::float(dtype, vec![rows, columns], numbers);
                device.write_input(id, 0, &x.to_bytes()).expect("it fits");
                device.run(id, Section::Microbatch).expect("it runs");
            }
            device.run(id, Section::Update).expect("it ends");
            let place = |index: usize| index % columns * rows + index / columns;
            let total = |index| (0..3).map(|microbatch| number(microbatch, place(index))).sum();
            let expected =
                Tensor::float(dtype, vec![rows, columns], (0..rows * columns).map(total).collect());
            let given = device.read_output(id, 0).expect("it is there");
            assert!(given == expected.to_bytes(), "{dtype} {sizes:?}");
        }
    }
}

/// The kernel of the only sum or copy.
fn text_of(program: Program) -> String {
    let cuda = cuda::lower::lower(Arc::new(program)).expect("it has kernels");
    let [kernel] = &cuda.kernels[..] else { panic!("one kernel: {:?}", cuda.kernels) };
    kernel.text.clone()
}

#[test]
fn sums_of_transposed_addends_go_by_tiles() {
    assert!(text_of(sum(DType::BF16, [96, 64])).contains("96, 64, 96, 64, true, true>(a0, a1, a2);"));
    assert!(text_of(sum(DType::F32, [64, 4])).contains("copying::move<"));
}

/// The call of the only copy's kernel, without the layouts.
fn kernel_of(dtype: DType, sizes: &[usize], start: usize, permutation: &[u32]) -> String {
    let mut w = Writer::default();
    transposed(&mut w, dtype, sizes, start, permutation);
    let text = text_of(w.lowered());
    let call = text.lines().find_map(|line| line.trim().strip_prefix("copying::")).expect("a call");
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

/// Rows whose length and distance are multiples of a pack, but whose place is not.
fn rows_at_an_odd_place(start: u64) -> Writer {
    let mut w = Writer::default();
    let x = w.floats(DType::BF16, &[8, 80]);
    let x = w.built(|b| b.slice(x, 1, start, ir::Dim::known(64)).expect("it is as wide"));
    w.typed(Reshape, &[x], &[Type::of(DType::BF16, &[8 * 64])]);
    w
}

#[test]
fn a_place_decides_how_much_is_read_at_once() {
    for (start, read) in [(0, 8), (8, 8), (4, 4), (2, 2), (1, 1)] {
        let text = text_of(rows_at_an_odd_place(start).lowered());
        assert!(text.contains(&format!("u32, 8, {read}, 1>(")), "{start}: {text}");
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn rows_at_an_odd_place_are_copied() {
    (0..5).for_each(|start| rows_at_an_odd_place(start).check(start as u32));
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
        let x = b.reshape(x, [ir::Dim::known(3 * bytes)]).expect("as many elements");
        b.finish();
        module.add_output("x", x);
        module
    };
    let index = |bytes: u64| {
        let text = text_of(program::lower::lower(&module(bytes), &options()).expect("it has kernels"));
        assert!(text.contains("16, 16, 1>("), "{text}");
        if text.contains("u32, 16") { "u32" } else { "i64" }
    };
    assert_eq!((index(1 << 33), index(1 << 35)), ("u32", "i64"));
}
