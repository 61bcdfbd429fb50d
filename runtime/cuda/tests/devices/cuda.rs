//! Kernels for CUDA on the stand-in, against the interpreter. They need a C++ compiler, and take long to compile.

mod attention;
mod batch_norm;
mod check;
mod compression;
mod contract;
mod copy;
mod det;
mod dropout;
mod epilogue;
mod experts;
mod gpu;
mod grids;
mod guards;
mod indexing;
mod loss;
mod norm;
mod optimizer;
mod packing;
mod pad;
mod partial;
mod pool;
mod programs;
mod ptx;
mod ranking;
mod recurrent;
mod reduce;
mod renew;
mod rotary;
mod scatter;
mod sectors;
mod shape;
mod softmax;
mod sparse;
mod threads;
mod timeline;
mod writer;

use ::ptx::Ptx;
use cuda::check::samples::{self, SampleVariant};
use cuda::check::{StandIn, Subject};
use cuda::device::Cuda;
use cuda::host::{Host, Order};
use ir::samples::{Sample, Through};
use program::Program;
use program::device::Device;
use program::lower::{LowerOptions, lower};
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

/// The interpreter of PTX for all tests, if `TRAINYARD_PTX` is set: at night each launch of the stand-in runs by its PTX, too.
static PTX: LazyLock<Option<Ptx>> = LazyLock::new(|| {
    let open = || Ptx::open().unwrap_or_else(|error| panic!("TRAINYARD_PTX needs NVRTC: {error}"));
    std::env::var_os("TRAINYARD_PTX").map(|_| open())
});

pub(crate) fn host(program: Program, order: Order) -> Box<dyn Device> {
    by_ptx(program, order, PTX.as_ref())
}

/// A stand-in for a GPU, which refuses a command that touches memory which the command does not declare.
fn stand_in(program: Program, order: Order) -> Box<dyn Device> {
    by_ptx(program, order, None)
}

/// A stand-in that holds commands to what they declare, and launches to their PTX.
fn by_ptx(program: Program, order: Order, ptx: Option<&Ptx>) -> Box<dyn Device> {
    let host = Host::new(order);
    let host = match ptx {
        Some(ptx) => host.checked_by(Arc::new(ptx.clone())),
        None => host.checked(),
    };
    Box::new(Cuda::new(host, vec![Arc::new(program)]).unwrap_or_else(|error| panic!("{error}")))
}

/// Whether every kernel that a sample needs is there.
fn is_covered(sample: &Sample) -> bool {
    let (module, _) = sample.program(Through::Inputs);
    let program = lower(&module, &LowerOptions::of(cuda::TARGET)).unwrap_or_else(|error| panic!("{error}"));
    cuda::lower::lower(Arc::new(program)).is_ok()
}

/// These samples in single and half precision agree with the interpreter.
fn check_on(subject: &impl Subject, samples: &[Sample], way: SampleVariant) {
    let report = samples::check(subject, samples, &[way], true);
    assert!(report.failures.is_empty(), "{:#?}", report.failures);
}

/// Large samples, those with a partial last block, are not run unfused: that would take the time of all others together. The other
/// ways of samples are in [`self::ptx`], where launches also run by their PTX.
#[test]
#[ignore = "needs a C++ compiler"]
fn kernels_take_the_place_of_dying_operands() {
    let mut samples = samples::all();
    samples.truncate(samples.len() - ir::samples::partial().len());
    let order = Order { threads: 2, first: None };
    check_on(&StandIn::sound(order), &samples, SampleVariant { through: Through::Negations, unfused: true });
}

/// What is still to be written. An operator that gets its kernels goes from this list.
#[test]
fn operators_without_kernels_are_these() {
    let missing: BTreeSet<&str> =
        samples::all().iter().filter(|sample| !is_covered(sample)).map(|sample| sample.op.name()).collect();
    expect_test::expect![""].assert_eq(&missing.into_iter().collect::<Vec<_>>().join("\n"));
}
