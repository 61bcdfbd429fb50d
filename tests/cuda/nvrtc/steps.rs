//! The kernels of models' steps: of small models in every type, of their ranks on a mesh, and of models with options that need kernels of
//! their own.

use cuda::lower::lower;
use cuda::program::Kernel;
use ir::{DType, Module};
use passes::precision::Precision;
use program::lower::LowerOptions;
use std::sync::Arc;
use testing::models::bench::{self, Bench};
use testing::models::{self, Fixture, adamw, done, split};
use trainyard::lowering;
use trainyard::pipeline::CompilationPlan;

/// The small models.
pub(crate) const MODELS: [&Fixture; 6] = [
    &models::MLP_DYNAMO,
    &models::GPT2_DYNAMO,
    &models::LLAMA_DYNAMO,
    &models::BERT_DYNAMO,
    &models::RESNET_TRAINMODE,
    &models::MIXTRAL_DYNAMO,
];

const BENCHES: [Bench; 2] = [bench::MLP, bench::GPT2];

pub(crate) const TYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// The program of a step that computes in this type, with a plan.
fn training(fixture: &Fixture, compute: DType, plan: CompilationPlan) -> Module {
    let precision = Precision { compute, ..Precision::default() };
    fixture.compiled(fixture.batch, CompilationPlan { precision, ..plan }).compilation.training
}

fn kernels(module: &Module) -> Vec<Kernel> {
    let options = LowerOptions::of(cuda::TARGET);
    done(lower(Arc::new(done(lowering::lower(module, &options))))).kernels
}

fn with_adamw() -> CompilationPlan {
    CompilationPlan { optimizer: adamw(), ..CompilationPlan::default() }
}

/// The kernels of small models, in every type.
pub(super) fn of_models() -> impl Iterator<Item = Kernel> {
    let fixtures = MODELS.into_iter().flat_map(|fixture| TYPES.map(|ty| training(fixture, ty, with_adamw())));
    let benches = BENCHES.into_iter().flat_map(|bench| TYPES.map(|compute| bench.training(compute)));
    fixtures.chain(benches).flat_map(|module| kernels(&module))
}

/// The kernels of a rank on a mesh: kernels that compute which part of a tensor a rank has, and kernels that pack tensors for an exchange.
pub(super) fn of_ranks() -> impl Iterator<Item = Kernel> {
    let of_rank = |fixture: &Fixture, compute| {
        let spmd = split("mesh=dp:2*tp:2, zero=3, sequence-parallel");
        training(fixture, compute, CompilationPlan { spmd, ..with_adamw() })
    };
    let models = [&models::GPT2_DYNAMO, &models::LLAMA_DYNAMO, &models::MIXTRAL_DYNAMO];
    let modules = models.into_iter().flat_map(move |fixture| TYPES.map(|compute| of_rank(fixture, compute)));
    modules.flat_map(|module| kernels(&module))
}
