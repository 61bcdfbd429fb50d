//! The programs that a GPU runs, on its stand-in: PyTorch's losses, as near as the CPU backend's, and in half precision what
//! the interpreter computes. They need a C++ compiler.

#[path = "../models/mod.rs"]
#[allow(dead_code)] // each test file uses a part of it
mod models;
mod nvrtc;
mod planted;

use models::Fixture;
use models::half::check_half;
use models::losses::{check_losses, optimizers};
use trainyard::cli::verify::Mode;

/// Each of the 20 losses of both optimizers, within the bounds of the CPU backend.
fn check(fixture: &Fixture) {
    for (name, optimizer, bounds) in optimizers(&fixture.bounds, Mode::Cuda) {
        let subject = fixture.subject(fixture.batch, optimizer);
        check_losses(fixture, &subject, Mode::Cuda, &format!("losses_{name}_f32"), bounds);
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
    check_half(&models::GPT2_DYNAMO, Mode::Cuda);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn llama_in_half_is_what_the_interpreter_rounds() {
    check_half(&models::LLAMA_DYNAMO, Mode::Cuda);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn bert_in_half_is_what_the_interpreter_rounds() {
    check_half(&models::BERT_DYNAMO, Mode::Cuda);
}
