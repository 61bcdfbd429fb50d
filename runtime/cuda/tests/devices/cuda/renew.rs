//! Casts of weights that optimizers renew: they are made from the weights that are there, whatever ran in between.

use super::host;
use crate::compare::{Microbatch, assert_agrees_on, bytes};
use cuda::device::Cuda;
use cuda::host::{Host, Order};
use ir::interp::Mode;
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Cast, Unary};
use ir::ops::optimizer::{Adam, Sgd};
use ir::ops::shape::Concat;
use ir::ops::step::Accumulate;
use ir::{At, Builder, DType, Dim, Initializer, Module, Phase, Role, StateId, Type, ValueId, testing};
use program::device::{Device, ProgramId, step};
use program::lower::{LowerOptions, lower};
use program::{Kernel, Program, Section};
use std::sync::Arc;

/// The columns of three weights: the casts of the first two lie side by side in one matrix.
const COLUMNS: [u64; 3] = [12, 8, 5];

/// How far numbers may be off: a GPU sums the gradient in f32, where the interpreter rounds it to bf16.
const TOLERANCE: f64 = 2e-2;

/// A linear layer with three weights in bf16, its gradient, and an optimizer for each weight.
fn module() -> Module {
    let mut module = Module::new("linear");
    let x = module.add_input("x", Type::of(DType::BF16, &[4, 6]), true);
    let target = module.add_input("target", Type::of(DType::BF16, &[4, 25]), true);
    let weights = COLUMNS.map(|columns| {
        let ty = Type::of(DType::F32, &[6, columns]);
        module.add_state(format!("w{columns}"), ty, Role::Parameter, Initializer::Zeros)
    });
    let states = weights.map(|id| (id, module.states[id].input));
    let mut b = Builder::new(&mut module, "test");
    b.at(At::End(Phase::Prepare));
    let half = states.map(|(_, weight)| b.one(Cast { to: DType::BF16 }, &[weight]).expect("a float"));
    let joined = b.one(Concat { dim: 1 }, &half[..2]).expect("they have as many rows");
    b.at(At::End(Phase::Forward));
    let parts = [joined, half[2]].map(|w| b.one(Contract::new("ab,bc->ac"), &[x, w]).expect("a product"));
    let y = b.one(Concat { dim: 1 }, &parts).expect("they have as many rows");
    let error = b.build(y + target).expect("the shapes are equal");
    b.tables().add_output("y", y);
    b.at(At::End(Phase::Backward));
    let gradient = b.one(Contract::new("ba,bc->ac"), &[x, error]).expect("a product");
    let gradient = b.one(Cast { to: DType::F32 }, &[gradient]).expect("a float");
    b.at(At::End(Phase::Update));
    let mut start = 0;
    for ((id, weight), columns) in states.into_iter().zip(COLUMNS) {
        b.at(At::End(Phase::Backward));
        let own = b.slice(gradient, 1, start, Dim::known(columns)).expect("it is as wide");
        start += columns;
        b.at(At::End(Phase::Update));
        let sum = b.one(Accumulate, &[own]).expect("a float");
        update(&mut b, id, weight, sum);
    }
    b.finish();
    module
}

/// Adam for even numbers of columns, momentum for odd ones.
fn update(b: &mut Builder, id: StateId, weight: ValueId, gradient: ValueId) {
    let ty = b.ty(weight).clone();
    let name = b.module().states[id].name.clone();
    let mut moment = |name: String| {
        let id = b.tables().add_state(name, ty.clone(), Role::Optimizer, Initializer::Zeros);
        (id, b.module().states[id].input)
    };
    let (m, v) = (moment(format!("m({name})")), moment(format!("v({name})")));
    let [rate, decay, count] = [0.05, 0.01, 1.0].map(|x| b.scalar(DType::F64, x).expect("a scalar"));
    let results = if name == "w5" {
        let op = Sgd { momentum: 0.9.into(), nesterov: true };
        b.push(op, &[weight, gradient, m.1, rate, decay])
    } else {
        let op = Adam { beta1: 0.9.into(), beta2: 0.99.into(), eps: 1e-6.into(), decoupled: true };
        b.push(op, &[weight, gradient, m.1, v.1, rate, decay, count])
    };
    for (id, result) in [id, m.0, v.0].into_iter().zip(results.expect("all have the weight's type")) {
        b.tables().states[id].output = Some(result);
    }
}

fn options() -> LowerOptions<'static> {
    LowerOptions::of(cuda::TARGET)
}

fn microbatches(module: &Module, step: u64) -> Vec<Microbatch> {
    (0..2).map(|index| testing::microbatch(module, 7, 2 * step + index)).collect()
}

#[test]
fn the_optimizer_writes_every_cast_of_a_weight() {
    let program = lower(&module(), &options()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((program.renewed, program.section(Section::Prepare).len()), (3, 3));
    let copies = program.section(Section::Update).iter().filter_map(|update| match update.kernel {
        Kernel::Op(ir::Op::Adam(_)) => update.results.get(3),
        Kernel::Op(ir::Op::Sgd(_)) => update.results.get(2),
        _ => None,
    });
    assert_eq!(copies.filter(|copy| copy.dtype == DType::BF16).count(), 3);
    let cpu = lower(&module(), &LowerOptions::of(cpu::TARGET)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(cpu.renewed, 0);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn steps_agree_with_the_interpreter() {
    let module = module();
    let steps: Vec<_> = (0..4).map(|step| microbatches(&module, step)).collect();
    for threads in 0..3 {
        let make = |program| host(program, Order { threads, first: None });
        assert_agrees_on(&make, Mode::Typed, &module, &options(), &steps, |_| TOLERANCE);
    }
}

/// What a step reports.
fn outputs(device: &mut dyn Device, program: &Program, microbatches: &[Microbatch]) -> Vec<Vec<u8>> {
    let inputs: Vec<_> = microbatches.iter().map(|microbatch| bytes(program, microbatch)).collect();
    let outputs = step(device, ProgramId(0), &inputs).unwrap_or_else(|error| panic!("{error}"));
    outputs.into_values().flatten().collect()
}

/// The elements of what another program reads: more than all casts have.
const ELEMENTS: u64 = 1024;

/// A program that writes all of the arena but the states.
fn negation() -> Module {
    let mut module = Module::new("negation");
    let x = module.add_input("x", Type::of(DType::F32, &[ELEMENTS]), true);
    let mut b = Builder::new(&mut module, "test");
    b.at(At::End(Phase::Forward));
    let y = b.one(Unary::Neg, &[x]).expect("a float");
    b.tables().add_output("y", y);
    b.finish();
    module
}

/// A weight that is written from outside is cast again, and so is each weight after a program whose tensors lie where the casts
/// were.
#[test]
#[ignore = "needs a C++ compiler"]
fn casts_are_made_again_after_a_state_is_written_and_after_another_program() {
    let module = module();
    let lowered = |module: &Module, options: &LowerOptions| {
        Arc::new(lower(module, options).unwrap_or_else(|error| panic!("{error}")))
    };
    let program = lowered(&module, &options());
    let other = lowered(&negation(), &LowerOptions { states_of: Some(&program), ..options() });
    let programs = vec![program.clone(), other];
    let new =
        || Cuda::new(Host::new(Order::default()), programs.clone()).unwrap_or_else(|error| panic!("{error}"));
    let (mut plain, mut disturbed) = (new(), new());
    let inputs = |step| microbatches(&module, step);
    let first = outputs(&mut plain, &program, &inputs(0));
    assert_eq!(outputs(&mut disturbed, &program, &inputs(0)), first);
    disturbed.run(ProgramId(1), Section::Prepare).unwrap();
    disturbed.write_input(ProgramId(1), 0, &vec![0x3f; 4 * ELEMENTS as usize]).unwrap();
    disturbed.run(ProgramId(1), Section::Microbatch).unwrap();
    let second = outputs(&mut plain, &program, &inputs(1));
    assert_eq!(outputs(&mut disturbed, &program, &inputs(1)), second);
    // All states are what they were in the beginning.
    for index in 0..program.states.len() {
        let zeros = vec![0; program.states[index].ty.bytes().unwrap() as usize];
        disturbed.write_state(ProgramId(0), index, &zeros).unwrap();
    }
    assert_eq!(outputs(&mut disturbed, &program, &inputs(0)), first);
}
