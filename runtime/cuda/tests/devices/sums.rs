//! Sums over microbatches: a kernel that adds to its result makes the bits that it makes beside an instruction which adds. So does a
//! gradient that adds another gradient to its own. Offload and recomputation decide which of the two runs, and change no bit.

use crate::compare::{Make, Microbatch, bytes, cpu};
use crate::cuda::host;
use cuda::host::Order;
use ir::ops::contract::Contract;
use ir::ops::conv::ConvGradWeight;
use ir::ops::elementwise::Binary;
use ir::ops::experts::ExpertsGrad;
use ir::ops::indexing::GatherGrad;
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::ops::step::Accumulate;
use ir::samples::{Fill, Operand, Sample, Through, float, of, partial, samples};
use ir::{At, Builder, DType, Module, Op, Phase, Type, ValueId};
use program::Target;
use program::device::{ProgramId, StepOutputs, step};
use program::lower::{LowerOptions, lower};
use program::{Kernel, Microbatches, Program, Section};
use smallvec::smallvec;
use std::collections::BTreeSet;

const MICROBATCHES: u64 = 3;

fn index(dims: &[u64], below: i64) -> Operand {
    of(DType::I64, dims, Fill::Integers(0, below))
}

/// The gradient of a table of so many rows, given those of rows that were looked up.
fn look_up_gradient(looked_up: u64, rows: u64) -> Sample {
    Sample::new(GatherGrad { dim: 0 }, [index(&[looked_up], rows as i64), float(&[looked_up, 7])])
        .declared(Type::of(DType::F32, &[rows, 7]))
}

/// Samples whose sums have more terms than a kernel adds up in one block.
fn large() -> Vec<Sample> {
    let contract =
        |text: &str, lhs: &[u64], rhs: &[u64]| Sample::new(Contract::new(text), [float(lhs), float(rhs)]);
    let convolve = |x: &[u64], dy: &[u64], weight: &[u64], pad: u64| {
        let op =
            ConvGradWeight { strides: smallvec![1; 2], dilations: smallvec![1; 2], pads: smallvec![pad; 4] };
        Sample::new(op, [float(x), float(dy)]).declared(Type::of(DType::F32, weight))
    };
    let reduce = |kind, dims: &[u32], x: &[u64]| {
        Sample::new(Reduce { kind, dims: dims.iter().copied().collect(), keep: false }, [float(x)])
    };
    vec![
        contract("ab,cb->ac", &[40, 700], &[36, 700]),
        contract("abc,adb->cd", &[3, 48, 36], &[3, 40, 48]),
        contract("abcd,eacb->de", &[2, 9, 7, 33], &[34, 2, 7, 9]),
        contract("abc,acd->abd", &[64, 33, 34], &[64, 34, 35]),
        contract("ab,ab->", &[300, 70], &[300, 70]),
        contract("ab,ba->", &[300, 70], &[70, 300]),
        convolve(&[64, 3, 9, 8], &[64, 5, 9, 8], &[5, 3, 3, 3], 1),
        convolve(&[3, 8, 40, 40], &[3, 6, 40, 40], &[6, 8, 3, 3], 1),
        convolve(&[4, 6, 20, 20], &[4, 4, 20, 20], &[4, 3, 1, 1], 0),
        Sample::new(ExpertsGrad, [index(&[900], 3), float(&[900, 300]), float(&[900, 24])])
            .declared(Type::of(DType::F32, &[3, 300, 24])),
        look_up_gradient(5000, 11),
        reduce(ReduceKind::Sum, &[0, 1], &[9, 300, 33]),
        reduce(ReduceKind::Mean, &[1], &[30, 700]),
        reduce(ReduceKind::Sum, &[0, 1], &[700, 130]),
    ]
}

/// Each sample's result summed over microbatches; with `beside` the results are outputs as well, so that another instruction adds them.
fn module(samples: &[Sample], beside: bool) -> Module {
    let mut module = Module::new("sums");
    for (index, sample) in samples.iter().enumerate() {
        sample.add_to(&mut module, &mut Microbatch::new(), &prefix(index), Through::Inputs);
    }
    let results: Vec<ValueId> = module.outputs.iter().map(|output| output.value).collect();
    if !beside {
        module.outputs.clear();
    }
    let mut b = Builder::new(&mut module, "test");
    b.at(At::End(Phase::Update));
    let sums: Vec<_> =
        results.iter().map(|&x| b.one(Accumulate, &[x]).expect("numbers can be summed")).collect();
    b.finish();
    for (index, sum) in sums.into_iter().enumerate() {
        module.add_output(format!("{}sum", prefix(index)), sum);
    }
    module
}

fn prefix(sample: usize) -> String {
    format!("{sample}.")
}

/// The inputs of a microbatch.
fn microbatch(samples: &[Sample], number: u64) -> Microbatch {
    let inputs = samples.iter().enumerate().flat_map(|(index, sample)| {
        let operands = sample.fill(5 + number).into_iter().enumerate();
        operands.map(move |(operand, tensor)| (format!("{}operand.{operand}", prefix(index)), tensor))
    });
    inputs.collect()
}

fn lowered(target: Target, samples: &[Sample], beside: bool) -> Program {
    let options = LowerOptions { microbatches: Microbatches::Many, ..LowerOptions::of(target) };
    lower(&module(samples, beside), &options).unwrap_or_else(|error| panic!("{error}"))
}

/// The operators whose kernels add to their result.
fn adding(program: &Program) -> BTreeSet<&'static str> {
    let adding = program.section(Section::Microbatch).iter().filter(|instruction| instruction.accumulates);
    let operators = adding.filter_map(|instruction| match &instruction.kernel {
        Kernel::Op(op) => Some(op.name()),
        _ => None,
    });
    operators.collect()
}

/// The outputs of a device.
fn run(make: Make, target: Target, samples: &[Sample], beside: bool) -> StepOutputs {
    let program = lowered(target, samples, beside);
    assert!(!beside || adding(&program).is_empty(), "an instruction adds what is an output as well");
    let mut device = make(program);
    let inputs: Vec<Vec<Vec<u8>>> = (0..MICROBATCHES)
        .map(|number| bytes(device.program(ProgramId(0)), &microbatch(samples, number)))
        .collect();
    step(&mut *device, ProgramId(0), &inputs).unwrap_or_else(|error| panic!("{error}"))
}

/// The samples with one result that can be summed.
fn summed() -> Vec<Sample> {
    let is_summed = |sample: &Sample| {
        let types = sample.result_types().expect("samples are well-typed");
        let can_be = !matches!(sample.op, Op::Accumulate(_) | Op::Collective(_) | Op::Copy(_))
            && sample.data.is_empty();
        can_be && types.len() == 1 && types[0].dtype == DType::F32
    };
    large().into_iter().chain(partial()).chain(samples()).filter(is_summed).collect()
}

/// Compares both sums of these samples in each type.
fn compare(make: Make, target: Target, all: &[Sample]) {
    let mut different = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let typed: Vec<Sample> = all.iter().filter_map(|sample| sample.in_type(dtype)).collect();
        let [own, beside] = [false, true].map(|beside| run(make, target, &typed, beside));
        for (index, sample) in typed.iter().enumerate() {
            let name = format!("{}sum", prefix(index));
            if own[&name] != beside[&name] {
                let types: Vec<String> =
                    sample.operands.iter().map(|operand| operand.ty.to_string()).collect();
                different.push(format!("{:?} of {types:?}", sample.op));
            }
        }
    }
    assert!(different.is_empty(), "other bits:\n{}", different.join("\n"));
}

/// The operators whose kernels add to their result, on both devices.
const ADDING: [&str; 6] =
    ["contract", "experts_grad", "gather_elements_grad", "gather_grad", "gather_nd_grad", "reduce"];

#[test]
fn kernels_that_add_are_those_of_these_operators() {
    for target in [cpu::TARGET, cuda::TARGET] {
        assert_eq!(Vec::from_iter(adding(&lowered(target, &summed(), false))), ADDING, "for {target:?}");
    }
}

#[test]
fn a_kernel_adds_as_another_instruction_would() {
    compare(&cpu, cpu::TARGET, &summed());
}

/// The operators of [`ADDING`] alone: the stand-in compiles every sample.
pub(crate) fn check_gpu(make: Make) {
    let adding = summed().into_iter().filter(|sample| ADDING.contains(&sample.op.name()));
    compare(make, cuda::TARGET, &adding.collect::<Vec<_>>());
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_kernel_of_a_gpu_adds_as_another_instruction_would() {
    check_gpu(&|program| host(program, Order::default()));
}

/// Samples of gradients to which their kernels add an operand; each has an operand of the result's type, which is added.
fn adding_an_operand() -> Vec<Sample> {
    let is_norm = |sample: &Sample| matches!(sample.op, Op::LayerNormGrad(_) | Op::RmsNormGrad(_));
    samples().into_iter().filter(is_norm).chain([look_up_gradient(110, 110)]).collect()
}

/// Each sample's first result plus the operand of its type; with `beside` the first results are outputs as well, so that another
/// instruction adds.
fn with_operands(samples: &[Sample], inputs: &mut Microbatch, beside: bool) -> Module {
    let mut module = Module::new("sums");
    for (index, sample) in samples.iter().enumerate() {
        sample.add_to(&mut module, inputs, &prefix(index), Through::Inputs);
        let name = format!("{}result.0", prefix(index));
        let made = module.outputs.iter().find(|output| output.name == name).expect("it has a result").value;
        if !beside {
            module.outputs.retain(|output| output.name != name);
        }
        let alike = sample.operands.iter().position(|operand| &operand.ty == module.ty(made));
        let name = format!("{}operand.{}", prefix(index), alike.expect("one is of the result's type"));
        let addend = module.inputs.iter().find(|input| input.name == name).expect("it is an input").value;
        let mut b = Builder::new(&mut module, "test");
        let sum = b.one(Binary::Add, &[made, addend]).expect("they are of one type");
        b.finish();
        module.add_output(format!("{}sum", prefix(index)), sum);
    }
    module
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_gradient_adds_an_operand_as_another_instruction_would() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let samples: Vec<Sample> =
            adding_an_operand().iter().filter_map(|sample| sample.in_type(dtype)).collect();
        assert!(samples.len() > 2, "{} samples in {dtype}", samples.len());
        let [own, beside] = [false, true].map(|beside| {
            let mut inputs = Microbatch::new();
            let module = with_operands(&samples, &mut inputs, beside);
            let options = LowerOptions::of(cuda::TARGET);
            let program = lower(&module, &options).unwrap_or_else(|error| panic!("{error}"));
            let with_operand = program.section(Section::Microbatch).iter().filter(|instruction| {
                let of = |sample: &Sample| {
                    matches!(&instruction.kernel, Kernel::Op(op) if *op == sample.op)
                        && instruction.operands.len() > sample.operands.len()
                };
                samples.iter().any(of)
            });
            assert_eq!(with_operand.count(), if beside { 0 } else { samples.len() });
            let mut device = host(program, Order::default());
            let inputs = bytes(device.program(ProgramId(0)), &inputs);
            step(&mut *device, ProgramId(0), &[inputs]).unwrap_or_else(|error| panic!("{error}"))
        });
        for (index, sample) in samples.iter().enumerate() {
            let name = format!("{}sum", prefix(index));
            assert_eq!(own[&name], beside[&name], "{:?} in {dtype}", sample.op);
        }
    }
}
