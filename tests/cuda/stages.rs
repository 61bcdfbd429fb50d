//! Pipelines on stand-ins of GPUs, one for each rank. A schedule of each kind computes the same as the model on one device, and its losses
//! are PyTorch's, while parts of microbatches are captured and replayed as graphs.

use passes::{Pass, Pipeline};
use testing::models::losses::{check_losses, optimizers};
use testing::models::{self, Fixture, path, split};
use testing::verification;
use trainyard::diagnostics::{Severity, render};
use trainyard::pipeline::{Batch, CompilationPlan};
use trainyard::verification::Mode;

/// Verifies `MODEL FLAGS` on stand-ins of GPUs.
#[track_caller]
pub(super) fn check(arguments: &str) {
    let (model, flags) = arguments.split_once(' ').expect("a model and flags");
    let flags = format!("{flags} --microbatch 2 --mode cuda");
    match verification::verify(&path(&format!("{model}.onnx")), &flags) {
        Ok(report) => assert!(report.passed && report.failed() == 0, "{arguments}:\n{report}"),
        Err(failure) => panic!("{arguments}: {}", render(Severity::Error, &failure.diagnostics(), false)),
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn schedules_of_each_kind_run_on_gpus_of_their_own() {
    for schedule in ["1f1b", "dualpipev", "2bw"] {
        check(&format!("gpt2.dynamo --mesh pp=2 --schedule {schedule} --global-batch 8"));
    }
    check("llama.dynamo --mesh pp=2 --schedule pipedream --global-batch 2");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn the_gpus_of_a_stage_exchange_among_themselves() {
    check("llama.dynamo --mesh pp=2,dp=2 --zero 3 --global-batch 16");
    check("gpt2.dynamo --mesh pp=2,tp=2 --sequence-parallel --schedule zb-v --clip 0.01 --global-batch 8");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn gpt2_trains_in_stages_on_gpus_as_in_pytorch() {
    check_training(&models::GPT2_DYNAMO, "1f1b");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn llama_trains_in_stages_on_gpus_as_in_pytorch() {
    check_training(&models::LLAMA_DYNAMO, "zb-v");
}

/// Checks 20 losses with two stages, on one GPU and on two GPUs for each stage.
fn check_training(fixture: &Fixture, schedule: &str) {
    let stages: Pipeline = format!("stage(ranks=2, schedule={schedule})").parse().expect("a pass");
    let [Pass::Stage(stage)] = &stages.passes[..] else { panic!("{stages}") };
    for (spmd, data_ranks) in [(Default::default(), 1), (split("mesh=dp:2"), 2)] {
        let (name, optimizer, bounds) =
            optimizers(&fixture.bounds, Mode::On(cuda::TARGET)).into_iter().next().expect("an optimizer");
        let batch = Batch { global: Some(fixture.batch), data_ranks };
        let plan = CompilationPlan {
            optimizer,
            stage: Some(stage.clone()),
            batch,
            spmd,
            ..CompilationPlan::default()
        };
        let subject = fixture.compiled(fixture.batch / 2 * data_ranks, plan);
        check_losses(fixture, &subject, Mode::On(cuda::TARGET), &format!("losses_{name}_f32"), bounds);
    }
}
