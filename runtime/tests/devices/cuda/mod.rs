//! Kernels for CUDA on the stand-in, against the interpreter. They need a C++ compiler, and take long to compile.

mod attention;
mod batch_norm;
mod det;
mod dropout;
mod experts;
mod gpu;
mod indexing;
mod join;
mod loss;
mod norm;
mod optimizer;
mod pool;
mod reduce;
mod rotary;
mod scatter;
mod shape;
mod softmax;
mod writer;

use crate::compare::{Make, Microbatch, assert_agrees_on, unit};
use ir::interp::Mode;
use ir::ops::samples::{Sample, Through, samples};
use ir::{DType, Module, Op};
use runtime::cuda::device::Cuda;
use runtime::cuda::host::{Host, Order};
use runtime::device::Device;
use runtime::lower::{LowerOptions, Target, lower};
use runtime::program::Program;
use std::collections::BTreeSet;
use std::sync::Arc;

pub(crate) fn host(program: Program, order: Order) -> Box<dyn Device> {
    Box::new(Cuda::new(Host::new(order), vec![Arc::new(program)]).unwrap_or_else(|error| panic!("{error}")))
}

/// Whether every kernel that a sample needs is there.
fn is_covered(sample: &Sample) -> bool {
    let (module, _) = sample.program(Through::Inputs);
    let program = lower(&module, &LowerOptions { target: Target::Cuda, ..LowerOptions::default() })
        .unwrap_or_else(|error| panic!("{error}"));
    runtime::cuda::lower::lower(Arc::new(program)).is_ok()
}

/// The samples of a type, as one program: compiling is what takes long.
fn all(samples: &[Sample], through: Through) -> (Module, Microbatch) {
    let (mut module, mut inputs) = (Module::new("samples"), Microbatch::new());
    for (index, sample) in samples.iter().enumerate() {
        let prefix = format!("{index} {} ", sample.op.name());
        sample.add_to(&mut module, &mut inputs, &prefix, through);
    }
    (module, inputs)
}

/// The samples that the kernels take, but for those that bring constants: `Constant` alone, which has no kernel.
fn covered() -> Vec<Sample> {
    samples()
        .into_iter()
        .filter(|sample| !matches!(sample.op, Op::Constant(_)) && is_covered(sample))
        .collect()
}

/// The samples in a type, and how the interpreter computes them.
fn in_type(samples: &[Sample], dtype: DType) -> (Vec<Sample>, Mode) {
    if dtype == DType::F32 {
        return (samples.to_vec(), Mode::Exact);
    }
    (samples.iter().filter_map(|sample| sample.in_type(dtype)).collect(), Mode::Typed)
}

pub(crate) fn check(through: Through, unfused: bool, order: Order) {
    let options = LowerOptions { target: Target::Cuda, unfused, ..LowerOptions::default() };
    check_on(&|program| host(program, order), &covered(), through, &options);
}

/// Samples in single and half precision, on a device.
fn check_on(make: Make, samples: &[Sample], through: Through, options: &LowerOptions) {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let (kept, mode) = in_type(samples, dtype);
        let (module, inputs) = all(&kept, through);
        assert_agrees_on(make, mode, &module, options, &[vec![inputs]], unit);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn kernels_agree_with_the_interpreter() {
    check(Through::Inputs, false, Order::default());
}

#[test]
#[ignore = "needs a C++ compiler"]
fn kernels_read_transposed_operands_in_any_order_of_threads() {
    check(Through::Transposes, false, Order { threads: 1, first: None });
}

#[test]
#[ignore = "needs a C++ compiler"]
fn kernels_take_the_place_of_dying_operands() {
    check(Through::Negations, true, Order { threads: 2, first: None });
    check(Through::Negations, false, Order { threads: 3, first: None });
}

/// What is still to be written. An operator that gets its kernels goes from this list.
#[test]
fn operators_without_kernels_are_these() {
    let missing: BTreeSet<&str> =
        samples().iter().filter(|sample| !is_covered(sample)).map(|sample| sample.op.name()).collect();
    expect_test::expect![""].assert_eq(&missing.into_iter().collect::<Vec<_>>().join("\n"));
}
