//! The launches of a step of each model, run by their PTX and compared with the stand-in.
//!
//! `TRAINYARD_CUDA_LIBS=FOLDER cargo test --test cuda ptx -- --ignored`

use crate::nvrtc::families::{self, stem};
use crate::nvrtc::operators::kernels_of;
use crate::nvrtc::steps::{MODELS, TYPES};
use cuda::check::samples;
use cuda::device::Cuda;
use cuda::host::{Host, Order};
use cuda::lower::lower;
use cuda::program::Kernel;
use ir::DType;
use ir::samples::Sample;
use passes::precision::Precision;
use program::StagePrograms;
use ptx::Ptx;
use ranks::Ranks;
use std::collections::BTreeSet;
use std::sync::Arc;
use testing::models::{self, Fixture, adamw, done};
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::execute::Machine;
use trainyard::verification::inputs;

/// Runs a training step in which each launch also runs by its PTX.
fn check(fixture: &Fixture, compute: DType, ptx: &Ptx) {
    let precision = Precision { compute, ..Precision::default() };
    let plan = CompilationPlan { optimizer: adamw(), precision, ..CompilationPlan::default() };
    let subject = fixture.compiled(fixture.batch, plan);
    let module = &subject.compilation.training;
    let microbatches = done(inputs::draw(module, 5, 1));
    let host = Host::new(Order::default()).checked_by(Arc::new(ptx.clone()));
    let make = |programs: StagePrograms| {
        let cuda = done(lower(programs.first().clone()));
        Cuda::with(host, vec![cuda]).map(|cuda| Ranks::alone(Box::new(cuda)))
    };
    let mut machine = done(Machine::on(module, cuda::TARGET, microbatches.len(), &subject.start, make));
    let loss = done(machine.step(&microbatches)).loss().expect("a step has a loss");
    println!("{} in {compute}: {loss}", fixture.file);
}

/// Families that no sample of an operator has. At night, a step of a model runs them by their PTX. Their launches combine several.
const OF_MODELS: [&str; 4] = ["adam_many", "chain_many", "dot_many", "dot_total_many"];

/// Families that no PTX test runs. They pack tensors that ranks of a mesh exchange (`sum`, `unpack`), or look for a number that is not
/// finite in a step of half precision (`watch`). Their kernels run only on the stand-in.
const NOT_RUN: [&str; 3] = ["sum", "unpack", "watch"];

/// A new family of a model needs a sample, or a line in one of these lists.
#[test]
#[ignore = "longer"]
fn every_family_of_kernels_is_in_a_sample_or_listed() {
    let stems = |kernels: &[Kernel]| -> BTreeSet<String> {
        kernels.iter().map(|kernel| stem(kernel).to_owned()).collect()
    };
    let in_types = |sample: Sample| {
        let halves = [DType::F16, DType::BF16].into_iter().filter_map(|half| sample.in_type(half));
        halves.chain([sample.clone()]).collect::<Vec<_>>()
    };
    let samples = samples::all().into_iter().flat_map(in_types);
    let of_samples = stems(&samples.flat_map(|sample| kernels_of(&sample)).collect::<Vec<_>>());
    let others: Vec<String> = stems(&families::ALL).difference(&of_samples).cloned().collect();
    let listed: BTreeSet<&str> = OF_MODELS.into_iter().chain(NOT_RUN).collect();
    assert_eq!(others, listed.into_iter().collect::<Vec<_>>());
}

/// Runs at night.
#[test]
#[ignore = "night: ptx"]
fn the_launches_of_every_model_agree_with_their_ptx() {
    let ptx = Ptx::open().unwrap_or_else(|error| panic!("this test needs NVRTC: {error}"));
    for fixture in MODELS.into_iter().chain([&models::T5_DYNAMIC]) {
        for compute in TYPES {
            check(fixture, compute, &ptx);
        }
    }
    let table = ptx.table();
    println!("{table}");
    let silent: Vec<&str> = OF_MODELS.into_iter().filter(|family| !table.0.contains_key(*family)).collect();
    assert_eq!(silent, [""; 0], "no model ran a launch of these");
}
