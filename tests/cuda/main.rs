//! The programs that a GPU runs, on its stand-in. Their losses are PyTorch's, as near as those of the CPU backend, and in half precision
//! those of the interpreter. Each command accesses only the memory that it declares. The tests need a C++ compiler.

mod calls;
mod join;
mod nvrtc;
mod offload;
mod order;
mod planted;
mod programs;
mod ptx;
mod random;
mod ranks;
mod rewritten;
mod snapshots;
mod stages;

use ir::DType;
use testing::models::bench::Bench;
use testing::models::half::{check_half, check_half_loss, check_half_mean_loss};
use testing::models::losses::{check_losses, optimizers};
use testing::models::{self, Fixture};
use trainyard::verification::Mode;
use trainyard::verification::execute::Machine;
use trainyard::verification::inputs;

/// Checks each of the 20 losses of both optimizers, within the bounds of the CPU backend.
fn check(fixture: &Fixture) {
    for (name, optimizer, bounds) in optimizers(&fixture.bounds, Mode::On(cuda::TARGET)) {
        let subject = fixture.subject(fixture.batch, optimizer);
        check_losses(fixture, &subject, Mode::On(cuda::TARGET), &format!("losses_{name}_f32"), bounds);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn mlp_trains_as_in_pytorch() {
    check(&models::MLP_DYNAMO);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn gpt2_trains_as_in_pytorch() {
    check(&models::GPT2_DYNAMO);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn llama_trains_as_in_pytorch() {
    check(&models::LLAMA_DYNAMO);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn bert_trains_as_in_pytorch() {
    check(&models::BERT_DYNAMO);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn resnet_with_batch_norms_trains_as_in_pytorch() {
    check(&models::RESNET_TRAINMODE);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn mixtral_trains_as_in_pytorch() {
    check(&models::MIXTRAL_DYNAMO);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn t5_trains_as_in_pytorch() {
    check(&models::T5_DYNAMIC);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn gpt2_in_half_is_what_the_interpreter_rounds() {
    check_half(&models::GPT2_DYNAMO, Mode::On(cuda::TARGET));
}

#[test]
#[ignore = "night: half"]
fn llama_in_half_is_what_the_interpreter_rounds() {
    check_half(&models::LLAMA_DYNAMO, Mode::On(cuda::TARGET));
}

#[test]
#[ignore = "night: half"]
fn bert_in_half_is_what_the_interpreter_rounds() {
    check_half(&models::BERT_DYNAMO, Mode::On(cuda::TARGET));
}

#[test]
#[ignore = "night: half"]
fn mixtral_in_half_is_what_the_interpreter_rounds() {
    check_half(&models::MIXTRAL_DYNAMO, Mode::On(cuda::TARGET));
}

#[test]
#[ignore = "night: half"]
fn t5_in_half_is_what_the_interpreter_rounds() {
    check_half(&models::T5_DYNAMIC, Mode::On(cuda::TARGET));
}

/// The model has few parameters, too few to compare their gradients one by one.
#[test]
#[ignore = "needs a C++ compiler"]
fn the_mlps_loss_in_half_is_what_the_interpreter_rounds() {
    check_half_loss(&models::MLP_DYNAMO, Mode::On(cuda::TARGET), DType::BF16);
    check_half_loss(&models::MLP_DYNAMO, Mode::On(cuda::TARGET), DType::F16);
}

/// The errors of bf16 cancel out over many microbatches. An f32 sum of a convolution that lies just beside a tie may be rounded the other
/// way. Six of the first convolution's 65,536 results are, and batch norms over a few samples amplify them in twenty layers to 2e-3 of a
/// microbatch's loss, of either sign.
#[test]
#[ignore = "night: half"]
fn resnets_loss_in_half_is_what_the_interpreter_rounds() {
    check_half_mean_loss(&models::RESNET_TRAINMODE, Mode::On(cuda::TARGET), DType::BF16, 64);
    check_half_loss(&models::RESNET_TRAINMODE, Mode::On(cuda::TARGET), DType::F16);
}

/// Compares the losses of some steps with the CPU backend's, within the bounds of the other models. Memory accesses are not checked,
/// because the memory is too large to be copied for each command.
fn check_bench(bench: &Bench, steps: usize) {
    let subject = bench.subject();
    let module = &subject.compilation.training;
    let microbatches = models::done(inputs::draw(module, 5, 1));
    let losses = |mode| {
        let mut machine = models::done(Machine::new(module, mode, microbatches.len(), &subject.start));
        let mut step = |_| models::done(machine.step(&microbatches)).loss().expect("a step has a loss");
        (0..steps).map(&mut step).collect::<Vec<f64>>()
    };
    let [expected, given] = [Mode::On(cpu::TARGET), Mode::On(cuda::TARGET)].map(losses);
    let [bound, _] = models::GPT2_DYNAMO.bounds.adamw;
    let apart: Vec<f64> =
        expected.iter().zip(&given).map(|(expected, given)| (expected - given).abs()).collect();
    println!("{}: {expected:?} but for {apart:?}", bench.file);
    assert!(apart.iter().all(|apart| *apart <= bound), "{}: {given:?}, on the CPU {expected:?}", bench.file);
    assert!(expected[steps - 1] < expected[0], "it trains: {expected:?}");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn the_mlp_of_the_benchmarks_trains_as_on_the_cpu() {
    check_bench(&models::bench::MLP, 10);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn gpt2_of_the_benchmarks_trains_as_on_the_cpu() {
    check_bench(&models::bench::GPT2, 3);
}
