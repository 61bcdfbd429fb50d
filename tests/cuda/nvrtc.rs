//! The kernels of the models' programs compile for devices: with NVRTC, which needs no GPU.

use crate::models::{self, Fixture, adamw, done};
use ir::DType;
use passes::precision::Precision;
use runtime::cuda::libraries::Folders;
use runtime::cuda::lower::lower;
use runtime::cuda::nvrtc::Nvrtc;
use runtime::cuda::program::Kernel;
use runtime::lower::LowerOptions;
use runtime::program::Target;
use std::collections::BTreeMap;
use std::sync::Arc;
use trainyard::pipeline::Plan;

const MODELS: [&Fixture; 6] = [
    &models::MLP_DYNAMO,
    &models::GPT2_DYNAMO,
    &models::LLAMA_DYNAMO,
    &models::BERT_DYNAMO,
    &models::RESNET_TRAINMODE,
    &models::MIXTRAL_DYNAMO,
];

/// The kernels of a step of a model, by their names.
fn kernels(fixture: &Fixture, compute: DType) -> BTreeMap<String, Kernel> {
    let precision = Precision { compute, ..Precision::default() };
    let plan = Plan { optimizer: adamw(), precision, ..Plan::default() };
    let subject = fixture.compiled(fixture.batch, plan);
    let options = LowerOptions { target: Target::Cuda, ..LowerOptions::default() };
    let program = done(runtime::lower::lower(&subject.compilation.training, &options));
    let cuda = done(lower(Arc::new(program)));
    cuda.kernels.into_iter().map(|kernel| (kernel.name.clone(), kernel)).collect()
}

#[test]
#[ignore = "needs NVRTC"]
fn the_kernels_of_every_model_compile_without_spilling() {
    let nvrtc =
        Nvrtc::open(&Folders::of_process()).unwrap_or_else(|error| panic!("this test needs NVRTC: {error}"));
    let types = [DType::F32, DType::BF16, DType::F16];
    let all: BTreeMap<String, Kernel> = MODELS
        .into_iter()
        .flat_map(|fixture| types.into_iter().flat_map(|compute| kernels(fixture, compute)))
        .collect();
    assert!(all.len() > 200, "{} kernels", all.len());
    let mut faults = Vec::new();
    let mut most = 0;
    for kernel in all.values() {
        for architecture in ["sm_80", "sm_90a"] {
            match nvrtc.compile(kernel, architecture) {
                Err(error) => faults.push(error.to_string()),
                Ok(cubin) => {
                    let resources = cubin.resources;
                    most = most.max(resources.registers);
                    if resources.spill_stores + resources.spill_loads > 0 {
                        faults.push(format!(
                            "{} for {architecture}: {resources:?}\n{}",
                            kernel.name, kernel.text
                        ));
                    }
                }
            }
        }
    }
    println!("{} kernels, at most {most} registers", all.len());
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}
