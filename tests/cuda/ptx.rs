//! The launches of a step of each model by their PTX, beside the stand-in.
//!
//! `TRAINYARD_CUDA_LIBS=FOLDER cargo test --test cuda ptx -- --ignored`

use crate::nvrtc::families::{self, stem};
use crate::nvrtc::operators::kernels_of;
use ir::DType;
use ir::ops::samples::Sample;
use passes::precision::Precision;
use runtime::cuda::check::samples;
use runtime::cuda::device::Cuda;
use runtime::cuda::host::{Host, Order, Ptx};
use runtime::cuda::lower::lower;
use runtime::cuda::program::Kernel;
use runtime::lower::Target;
use runtime::program::Program;
use runtime::ranks::Ranks;
use std::collections::BTreeSet;
use std::sync::Arc;
use testing::models::{self, Fixture, adamw, done};
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::execute::Machine;
use trainyard::verification::inputs;

const MODELS: [&Fixture; 7] = [
    &models::MLP_DYNAMO,
    &models::GPT2_DYNAMO,
    &models::LLAMA_DYNAMO,
    &models::BERT_DYNAMO,
    &models::RESNET_TRAINMODE,
    &models::MIXTRAL_DYNAMO,
    &models::T5_DYNAMIC,
];

/// A training step, each of whose launches runs by its PTX, too.
fn check(fixture: &Fixture, compute: DType, ptx: &Ptx) {
    let precision = Precision { compute, ..Precision::default() };
    let plan = CompilationPlan { optimizer: adamw(), precision, ..CompilationPlan::default() };
    let subject = fixture.compiled(fixture.batch, plan);
    let module = &subject.compilation.training;
    let microbatches = done(inputs::draw(module, 5, 1));
    let host = Host::new(Order::default()).checked_by_ptx(ptx.clone());
    let make = |program: Arc<Program>| {
        let cuda = done(lower(program));
        Cuda::with(host, vec![cuda]).map(|cuda| Ranks::alone(Box::new(cuda)))
    };
    let mut machine = done(Machine::on(module, Target::Cuda, microbatches.len(), &subject.start, make));
    let loss = done(machine.step(&microbatches)).loss().expect("a step has a loss");
    println!("{} in {compute}: {loss}", fixture.file);
}

/// Families that no sample of an operator has: launches that are several in one, and kernels that lowering makes for models. Their
/// launches run by their PTX at night, in the models.
const OF_MODELS: [&str; 7] =
    ["adam_many", "chain_many", "dot_many", "dot_total_many", "sum", "unpack", "watch"];

/// A family that is new in a model needs a sample, or a line in this list.
#[test]
#[ignore = "lists the kernels of every model"]
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
    assert_eq!(others, OF_MODELS);
}

/// At night.
#[test]
#[ignore = "needs NVRTC and a C++ compiler"]
fn the_launches_of_every_model_agree_with_their_ptx() {
    let ptx = Ptx::open().unwrap_or_else(|error| panic!("this test needs NVRTC: {error}"));
    for fixture in MODELS {
        for compute in [DType::F32, DType::BF16, DType::F16] {
            check(fixture, compute, &ptx);
        }
    }
    let table = ptx.table();
    println!("{table}");
    // Kernels of ranks run on a mesh, and those of large models are too large.
    let ran = OF_MODELS.iter().filter(|family| table.0.contains_key(**family)).count();
    assert!(2 * ran >= OF_MODELS.len(), "{ran} of {} families", OF_MODELS.len());
}
