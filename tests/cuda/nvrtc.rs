//! The kernels of the models' programs, and those of single operators, compile for devices, within their budgets: with NVRTC,
//! which needs no GPU.
//!
//! `TRAINYARD_CUDA_LIBS=FOLDER cargo test --test cuda nvrtc -- --ignored`

mod attention;
mod budget;
mod copies;
mod occupancy;
mod operators;

use crate::programs;
use budget::faults;
use ir::{DType, Module};
use passes::precision::Precision;
use runtime::cuda::libraries::Folders;
use runtime::cuda::lower::lower;
use runtime::cuda::nvrtc::Nvrtc;
use runtime::cuda::program::Kernel;
use runtime::lower::{LowerOptions, Target};
use std::collections::BTreeMap;
use std::sync::Arc;
use testing::models::bench::{self, Bench};
use testing::models::{self, Fixture, adamw, done, split};
use trainyard::lowering;
use trainyard::pipeline::CompilationPlan;

const MODELS: [&Fixture; 6] = [
    &models::MLP_DYNAMO,
    &models::GPT2_DYNAMO,
    &models::LLAMA_DYNAMO,
    &models::BERT_DYNAMO,
    &models::RESNET_TRAINMODE,
    &models::MIXTRAL_DYNAMO,
];

const BENCHES: [Bench; 2] = [bench::MLP, bench::GPT2];

const TYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// What a GPU runs for a step of a model.
fn training(fixture: &Fixture, compute: DType) -> Module {
    let precision = Precision { compute, ..Precision::default() };
    let plan = CompilationPlan { optimizer: adamw(), precision, ..CompilationPlan::default() };
    fixture.compiled(fixture.batch, plan).compilation.training
}

fn kernels(module: &Module) -> Vec<Kernel> {
    let options = LowerOptions { target: Target::Cuda, ..LowerOptions::default() };
    done(lower(Arc::new(done(lowering::lower(module, &options))))).kernels
}

/// The architectures that the kernels of small models are compiled for. Kernels of large models are compiled for sm_100a too.
const MOST_USED: [&str; 2] = ["sm_80", "sm_90a"];

/// The kernels of programs, each once, compile.
fn check(programs: impl Iterator<Item = Module>, least: usize, architectures: &[&str]) {
    let faults = faults_of(programs.flat_map(|module| kernels(&module)), least, architectures);
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n\n"));
}

/// The faults of kernels, of which there are so many at least; each kernel is compiled once.
fn faults_of(kernels: impl Iterator<Item = Kernel>, least: usize, architectures: &[&str]) -> Vec<String> {
    let nvrtc =
        Nvrtc::open(&Folders::of_process()).unwrap_or_else(|error| panic!("this test needs NVRTC: {error}"));
    let named = |kernel: Kernel| (kernel.name.clone(), kernel);
    let all: BTreeMap<String, Kernel> = kernels.map(named).collect();
    let all: Vec<Kernel> = all.into_values().collect();
    assert!(all.len() >= least, "{} kernels", all.len());
    faults(&nvrtc, &all, architectures)
}

#[test]
#[ignore = "needs NVRTC"]
fn the_kernels_of_every_model_compile_within_their_budgets() {
    let fixtures = MODELS.into_iter().flat_map(|fixture| TYPES.map(|compute| training(fixture, compute)));
    let benches = BENCHES.into_iter().flat_map(|bench| TYPES.map(|compute| bench.training(compute)));
    check(fixtures.chain(benches), 200, &MOST_USED);
}

/// Those that ask which part of a tensor a rank has, and those that lay tensors out for an exchange.
#[test]
#[ignore = "needs NVRTC"]
fn the_kernels_of_a_rank_compile_within_their_budgets() {
    let of_rank = |fixture: &Fixture, compute| {
        let precision = Precision { compute, ..Precision::default() };
        let spmd = split("mesh=dp:2*tp:2, zero=3, sequence-parallel");
        let plan = CompilationPlan { optimizer: adamw(), precision, spmd, ..CompilationPlan::default() };
        fixture.compiled(fixture.batch, plan).compilation.training
    };
    let models = [&models::GPT2_DYNAMO, &models::LLAMA_DYNAMO, &models::MIXTRAL_DYNAMO];
    check(
        models.into_iter().flat_map(|fixture| TYPES.map(|compute| of_rank(fixture, compute))),
        100,
        &MOST_USED,
    );
}

/// In the type in which they are timed. A multiprocessor holds as many threads as their files promise.
#[test]
#[ignore = "needs NVRTC"]
fn the_kernels_of_large_models_compile_within_their_budgets() {
    let faults = faults_of(programs::kernels(), 50, &["sm_80", "sm_90a", "sm_100a"]);
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n\n"));
}
