//! f16 and bf16 as storage: programs against the interpreter, which rounds every value to its type, and their memory.

use crate::compare::{Microbatch, assert_agrees_in, bytes, device, states, unit};
use crate::memory::assert_plan_is_exact;
use crate::training::{seed_with_parameters, training_program};
use ir::interp::{self, Missing, Mode};
use ir::ops::attention::{Attention, AttentionGrad};
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Binary, Cast, Unary};
use ir::ops::rotary::Rotary;
use ir::{Builder, DType, Module, Tensor, Type, ValueId, random, testing};
use program::device::{ProgramId, step};
use program::lower::{LowerOptions, lower};
use program::{Microbatches, Program, Section, Target};
use proptest::prelude::*;
use std::collections::BTreeMap;

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// The ways in which the processor multiplies bf16.
const TARGETS: [Target; 3] = [cpu::TARGET, cpu::AMX, cpu::AVX512];

fn target() -> impl Strategy<Value = Target> {
    prop::sample::select(&TARGETS[..])
}

fn half_type() -> impl Strategy<Value = DType> {
    prop::sample::select(&HALVES[..])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_random_program_rounds_where_the_interpreter_does(
        seed in any::<u64>(),
        dtype in half_type(),
        unfused in any::<bool>(),
        target in target(),
    ) {
        let module = testing::program(seed, dtype, 24);
        let microbatches = (0..2).map(|index| testing::microbatch(&module, seed, index)).collect();
        let options = LowerOptions { unfused, ..LowerOptions::of(target) };
        assert_agrees_in(Mode::Typed, &module, &options, &[microbatches], |dtype| 4.0 * unit(dtype));
    }

    /// Gradients, sums over microbatches and optimizers of half types. A number that falls between two on the way is
    /// amplified by what follows it.
    #[test]
    fn steps_round_where_the_interpreter_does(
        seed in any::<u64>(),
        dtype in half_type(),
        adam in any::<bool>(),
        target in target(),
    ) {
        let module = training_program(seed, dtype, adam);
        let steps: Vec<Vec<Microbatch>> =
            vec![(0..2).map(|index| testing::microbatch(&module, seed, index)).collect()];
        for microbatches in [Microbatches::One, Microbatches::Many] {
            let steps = match microbatches {
                Microbatches::One => vec![vec![steps[0][0].clone()]],
                Microbatches::Many => steps.clone(),
            };
            let options = LowerOptions { microbatches, ..LowerOptions::of(target) };
            assert_agrees_in(Mode::Typed, &module, &options, &steps, |dtype| 8.0 * unit(dtype));
        }
    }

    #[test]
    fn fusing_and_threads_change_no_bit(seed in any::<u64>(), dtype in half_type(), target in target()) {
        let module = training_program(seed, dtype, true);
        let initial = interp::initial_states(&module, 1, Missing::Draw).expect("states can be drawn");
        let run = |unfused: bool, threads: usize| {
            let program = lower(&module, &LowerOptions { unfused, ..LowerOptions::of(target) }).expect("it lowers");
            let inputs: Vec<_> = (0..2).map(|i| bytes(&program, &testing::microbatch(&module, seed, i))).collect();
            let mut cpu = device(program, &initial, threads);
            let outputs = step(&mut cpu, ProgramId(0), &inputs).expect("the step runs");
            (outputs, states(&cpu, &module))
        };
        let fused = run(false, 1);
        prop_assert!(fused == run(true, 1) && fused == run(false, 3));
    }

    #[test]
    fn the_plan_knows_all_scratch(seed in any::<u64>(), dtype in half_type(), target in target()) {
        let module = training_program(seed, dtype, true);
        assert_plan_is_exact(&lower(&module, &LowerOptions::of(target)).expect("it lowers"));
    }
}

/// A program of one contraction, and its operands.
fn contraction(dtype: DType, text: &str, sizes: &BTreeMap<u8, usize>) -> (Module, Microbatch) {
    let contract = Contract::new(text);
    let (mut module, mut inputs) = (Module::new("contract"), Microbatch::new());
    let mut add = |name: &str, labels: &ir::ops::Labels| {
        let sizes: Vec<usize> = labels.0.iter().map(|label| sizes[label]).collect();
        let number = |i: usize| random::normal(3, name.len() as u64, i as u64);
        let tensor = Tensor::float(dtype, sizes.clone(), (0..sizes.iter().product()).map(number).collect());
        let value = module.add_input(name, tensor.ty(), false);
        inputs.insert(name.into(), tensor.rounded());
        value
    };
    let operands = [add("lhs", &contract.lhs), add("other", &contract.rhs)];
    let mut b = Builder::new(&mut module, "test");
    let out = b.one(contract, &operands).expect(text);
    b.finish();
    module.add_output("out", out);
    (module, inputs)
}

fn scratch(program: &Program) -> u64 {
    let instructions = program.section(Section::Microbatch).iter();
    instructions
        .filter_map(|instruction| instruction.scratch.as_ref())
        .map(|view| view.layout.len() as u64)
        .sum()
}

/// In one tile, in several along every dim, many small ones at once; with both operands and the result lying either
/// way, with labels in between, with no term at all.
#[test]
fn contractions_in_tiles_agree_with_the_interpreter() {
    let cases: [(&str, &[(u8, usize)]); 9] = [
        ("mk,kn->mn", &[(b'm', 30), (b'k', 40), (b'n', 50)]),
        ("mk,nk->nm", &[(b'm', 70), (b'k', 2200), (b'n', 700)]),
        ("km,kn->mn", &[(b'm', 1300), (b'k', 70), (b'n', 900)]),
        ("bmk,bkn->bmn", &[(b'b', 40), (b'm', 20), (b'k', 30), (b'n', 25)]),
        ("bhsd,bhtd->bhst", &[(b'b', 3), (b'h', 5), (b's', 60), (b't', 50), (b'd', 16)]),
        ("bsh,hk->bsk", &[(b'b', 4), (b's', 33), (b'h', 64), (b'k', 129)]),
        ("asbt,asct->bc", &[(b'a', 7), (b's', 6), (b'b', 20), (b't', 30), (b'c', 11)]),
        ("ij,ij->", &[(b'i', 300), (b'j', 90)]),
        ("mk,kn->mn", &[(b'm', 3), (b'k', 0), (b'n', 4)]),
    ];
    for (dtype, target) in HALVES.into_iter().flat_map(|dtype| TARGETS.map(|target| (dtype, target))) {
        for (text, sizes) in cases {
            let (module, inputs) = contraction(dtype, text, &sizes.iter().copied().collect());
            let program = lower(&module, &LowerOptions::of(target)).expect("it lowers");
            assert!((3..=1 << 20).contains(&scratch(&program)), "{text}");
            assert_plan_is_exact(&program);
            let run = |threads| {
                let inputs = [bytes(&program, &inputs)];
                step(&mut device(program.clone(), &Default::default(), threads), ProgramId(0), &inputs)
                    .unwrap()
            };
            assert!(run(1) == run(3), "{text}: the number of threads shows");
            assert_agrees_in(Mode::Typed, &module, &LowerOptions::of(target), &[vec![inputs]], unit);
        }
    }
}

/// Between all float types, one after the other: each rounds once, also from f64 to a half type.
#[test]
fn casts_between_all_float_types_round_once() {
    let floats = [DType::F64, DType::F32, DType::F16, DType::BF16];
    // Just above and just below the middle of two numbers of bf16 and of f16, which f32 cannot tell.
    let near = |unit: f64| [-1e-9, 0.0, 1e-9].map(|off| 1.0 + 1.5 * unit + off);
    let numbers: Vec<f64> = [near(unit(DType::BF16)), near(unit(DType::F16))]
        .concat()
        .into_iter()
        .chain([1e-40, 7e4, -3e38, 1e39])
        .collect();
    for from in floats {
        let mut module = Module::new("casts");
        let x = module.add_input("x", Type::of(from, &[numbers.len() as u64]), false);
        let integers = module.add_input("integers", Type::of(DType::I64, &[4]), false);
        let mut b = Builder::new(&mut module, "test");
        let mut made: Vec<ValueId> = Vec::new();
        for through in floats {
            let first = b.one(Cast { to: through }, &[x]).unwrap();
            made.push(b.one(Cast { to: through }, &[integers]).unwrap());
            made.extend(floats.map(|to| b.one(Cast { to }, &[first]).unwrap()));
            made.push(b.one(Cast { to: DType::I32 }, &[first]).unwrap());
        }
        b.finish();
        for (i, value) in made.into_iter().enumerate() {
            module.add_output(format!("cast.{i}"), value);
        }
        let x = Tensor::float(from, vec![numbers.len()], numbers.clone()).rounded();
        let integers = Tensor::int(DType::I64, vec![4], vec![257, 2049, (1 << 40) + (1 << 32) + 1, -65519]);
        let inputs = Microbatch::from([("x".into(), x), ("integers".into(), integers)]);
        for unfused in [false, true] {
            let options = LowerOptions { unfused, ..LowerOptions::of(cpu::TARGET) };
            assert_agrees_in(Mode::Typed, &module, &options, &[vec![inputs.clone()]], |_| 0.0);
        }
    }
}

/// What a chain passes on is rounded as if it were stored: 1 + 2⁻⁹ is 1 in bf16.
#[test]
fn a_chain_rounds_what_it_passes_on() {
    let mut module = Module::new("chain");
    let x = module.add_input("x", Type::of(DType::BF16, &[3, 700]), false);
    let mut b = Builder::new(&mut module, "test");
    let small = b.scalar(DType::BF16, 2f64.powi(-9)).unwrap();
    let sum = b.one(Binary::Add, &[x, small]).unwrap();
    let wide = b.one(Cast { to: DType::F32 }, &[sum]).unwrap();
    let doubled = b.build(wide + wide).unwrap();
    let narrow = b.one(Cast { to: DType::BF16 }, &[doubled]).unwrap();
    let root = b.one(Unary::Sqrt, &[narrow]).unwrap();
    b.finish();
    module.add_output("doubled", doubled);
    module.add_output("root", root);
    let ones = Microbatch::from([("x".into(), Tensor::splat(DType::BF16, vec![3, 700], 1.0))]);
    let program = lower(&module, &LowerOptions::of(cpu::TARGET)).unwrap();
    assert_eq!(program.section(Section::Microbatch).len(), 1);
    let outputs =
        step(&mut device(program.clone(), &Default::default(), 1), ProgramId(0), &[bytes(&program, &ones)])
            .unwrap();
    assert_eq!(outputs["doubled"][0], Tensor::splat(DType::F32, vec![3, 700], 2.0).to_bytes());
    assert_agrees_in(Mode::Typed, &module, &LowerOptions::of(cpu::TARGET), &[vec![ones]], |_| 0.0);
}

/// States take half the bytes, and an infinity of f16 is found where it was made.
#[test]
fn states_are_stored_narrow_and_overflow_is_found() {
    use program::device::Device;
    let seed = seed_with_parameters(4);
    let bytes_of = |dtype| {
        lower(&training_program(seed, dtype, true), &LowerOptions::of(cpu::TARGET))
            .unwrap()
            .states
            .iter()
            .map(|s| s.ty.bytes().unwrap())
            .sum::<u64>()
    };
    assert_eq!(2 * bytes_of(DType::F16), bytes_of(DType::F32));
    let mut module = Module::new("overflow");
    let x = module.add_input("x", Type::of(DType::F16, &[2]), false);
    let mut b = Builder::new(&mut module, "test");
    b.origin("/square");
    let square = b.build(x * x).unwrap();
    b.finish();
    module.add_output("square", square);
    let program = lower(&module, &LowerOptions::of(cpu::TARGET)).unwrap();
    let mut cpu = device(program, &Default::default(), 1);
    let x = Tensor::float(DType::F16, vec![2], vec![2.0, 300.0]);
    cpu.write_input(ProgramId(0), 0, &x.to_bytes()).unwrap();
    let found = cpu.first_non_finite(ProgramId(0)).unwrap().expect("90000 is beyond f16");
    assert_eq!(found.to_string(), "`mul` of /square made inf");
}

/// Tables and masks may be of another float type than what they are applied to.
#[test]
fn operands_of_several_float_types_meet() {
    for (dtype, other) in [(DType::BF16, DType::F32), (DType::F16, DType::F64), (DType::F32, DType::BF16)] {
        let (mut module, mut inputs) = (Module::new("mixed"), Microbatch::new());
        let mut add = |name: &str, dtype: DType, sizes: &[usize]| {
            let number = |i: usize| random::normal(8, random::stream(name), i as u64);
            let elements = (0..sizes.iter().product()).map(number).collect();
            let tensor = Tensor::float(dtype, sizes.to_vec(), elements).rounded();
            let value = module.add_input(name, tensor.ty(), false);
            inputs.insert(name.into(), tensor);
            value
        };
        let [x, k, v, dout] = ["x", "k", "v", "dout"].map(|name| add(name, dtype, &[2, 3, 70, 8]));
        let [cos, sin] = ["cos", "sin"].map(|name| add(name, other, &[70, 4]));
        let mask = add("mask", other, &[1, 3, 70, 70]);
        let mut b = Builder::new(&mut module, "test");
        let rotated = b.one(Rotary { interleaved: false }, &[x, cos, sin]).unwrap();
        let (scale, causal) = (0.3.into(), false);
        let attended = b.push(Attention { scale, causal }, &[x, k, v, mask]).unwrap();
        let operands = [x, k, v, mask, attended[0], attended[1], dout];
        let gradients = b.push(AttentionGrad { scale, causal }, &operands).unwrap();
        b.finish();
        for (i, value) in [rotated].into_iter().chain(attended).chain(gradients).enumerate() {
            module.add_output(format!("result.{i}"), value);
        }
        assert_agrees_in(Mode::Typed, &module, &LowerOptions::of(cpu::TARGET), &[vec![inputs]], unit);
    }
}
