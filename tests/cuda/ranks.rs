//! Models on stand-ins of several GPUs, a rank each: PyTorch's losses, as near as those of the CPU backend's ranks.

use crate::models::losses::{check_losses, optimizers};
use crate::models::{self, Fixture, split};
use trainyard::cli::verify::Mode;
use trainyard::pipeline::Plan;

/// 20 losses on a mesh, `dp:2*tp:2`, with more of the pass's options.
fn check(fixture: &Fixture, mesh: &str, more: &str) {
    let (name, optimizer, bounds) = optimizers(&fixture.bounds, Mode::Cuda).into_iter().next().expect("two");
    let spmd = split(&format!("mesh={mesh}{more}"));
    let subject = fixture.compiled(fixture.batch, Plan { optimizer, spmd, ..Plan::default() });
    let devices = if mesh.contains('*') { 4 } else { 2 };
    assert_eq!(subject.compilation.training.mesh.devices(), devices, "{mesh}");
    check_losses(fixture, &subject, Mode::Cuda, &format!("losses_{name}_f32"), bounds);
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

#[test]
#[ignore = "needs a C++ compiler"]
fn llama_trains_on_four_gpus_that_share_the_optimizers_states_as_in_pytorch() {
    check(&models::LLAMA_DYNAMO, "dp:2*tp:2", ", zero=1");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn mixtral_trains_on_two_gpus_as_in_pytorch() {
    check(&models::MIXTRAL_DYNAMO, "tp:2", "");
}
