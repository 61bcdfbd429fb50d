//! Models on stand-ins of several GPUs, one for each rank. Their losses are PyTorch's, as near as those of the CPU backend's ranks.

use ir::DType;
use passes::precision::Precision;
use program::lower::LowerOptions;
use testing::models::losses::{check_losses, optimizers};
use testing::models::{self, Fixture, adamw, split};
use trainyard::lowering::lower;
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::Mode;

/// Checks 20 losses on a mesh, such as `dp:2*tp:2`, with further options of the pass.
fn check(fixture: &Fixture, mesh: &str, more: &str) {
    let (name, optimizer, bounds) =
        optimizers(&fixture.bounds, Mode::On(cuda::TARGET)).into_iter().next().expect("two");
    let spmd = split(&format!("mesh={mesh}{more}"));
    let subject =
        fixture.compiled(fixture.batch, CompilationPlan { optimizer, spmd, ..CompilationPlan::default() });
    let devices = if mesh.contains('*') { 4 } else { 2 };
    assert_eq!(subject.compilation.training.mesh.devices(), devices, "{mesh}");
    check_losses(fixture, &subject, Mode::On(cuda::TARGET), &format!("losses_{name}_f32"), bounds);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn gpt2_trains_on_two_gpus_that_share_the_batch_as_in_pytorch() {
    check(&models::GPT2_DYNAMO, "dp:2", "");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn gpt2_trains_on_two_gpus_that_share_the_weights_as_in_pytorch() {
    check(&models::GPT2_DYNAMO, "tp:2", "");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn gpt2_trains_on_four_gpus_that_share_all_as_in_pytorch() {
    check(&models::GPT2_DYNAMO, "dp:2*tp:2", ", zero=3, sequence-parallel");
}

/// In bf16 the losses stay close to PyTorch's of f32. If the casts of weights came from an earlier step, the weights would not train.
#[test]
#[ignore = "needs a C++ compiler"]
fn gpt2_trains_in_bf16_on_one_gpu_and_on_two_that_share_states_or_weights() {
    for spmd in [None, Some("mesh=dp:2, zero=1"), Some("mesh=dp:2, zero=3")] {
        let precision = Precision { compute: DType::BF16, ..Precision::default() };
        let spmd = spmd.map(split).unwrap_or_default();
        let plan = CompilationPlan { optimizer: adamw(), precision, spmd, ..CompilationPlan::default() };
        let subject = models::GPT2_DYNAMO.compiled(models::GPT2_DYNAMO.batch, plan);
        let module = &subject.compilation.training;
        let options = LowerOptions::of(cuda::TARGET);
        assert!(
            models::done(lower(module, &options)).renewed > 10,
            "optimizers write casts on {}",
            module.mesh
        );
        check_losses(&models::GPT2_DYNAMO, &subject, Mode::On(cuda::TARGET), "losses_adamw_f32", [4e-3; 2]);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn llama_trains_on_four_gpus_that_share_the_optimizers_states_as_in_pytorch() {
    check(&models::LLAMA_DYNAMO, "dp:2*tp:2", ", zero=1");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn mixtral_trains_on_two_gpus_as_in_pytorch() {
    check(&models::MIXTRAL_DYNAMO, "tp:2", "");
    check(&models::MIXTRAL_DYNAMO, "ep:2", "");
}
