//! Mixtures of experts in place of feed-forward blocks. The compiled step equals the reference's on every mesh, and a mixture of copies
//! begins as the dense model.

use expect_test::{Expect, expect};
use testing::models::path;
use testing::verification;
use trainyard::diagnostics::{Severity, render};
use trainyard::failure::Failure;
use trainyard::verification::report::Report;

fn verify(arguments: &str) -> Result<Report, Failure> {
    let (model, flags) = arguments.split_once(' ').unwrap_or((arguments, ""));
    verification::verify(&path(&format!("{model}.onnx")), flags)
}

#[track_caller]
fn check(arguments: impl IntoIterator<Item = String>) {
    let fault = |arguments: String| match verify(&arguments) {
        Ok(report) if report.passed && report.failed() == 0 => None,
        Ok(report) => Some(format!("{arguments}:\n{report}")),
        Err(failure) => {
            Some(format!("{arguments}:\n{}", render(Severity::Error, &failure.diagnostics(), false)))
        }
    };
    let faults: Vec<String> = arguments.into_iter().filter_map(fault).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A mixture of each form: without a capacity, with dropped tokens and biases, with random numbers, with experts that choose.
const MIXTURES: [&str; 5] = [
    "experts=4,z=0.01",
    "experts=8,groups=2/4,top=3,capacity=0.5,renormalize=off,sigmoid,bias=0.01,balance=0.1",
    "switch,experts=4,capacity=1",
    "gshard,experts=4,every=2,noise=0.01",
    "expert-choice,experts=4,shared,hidden=16,fresh",
];

#[test]
fn mixtures_of_every_form_are_those_of_the_reference() {
    for model in ["gpt2.dynamo", "llama.dynamo", "bert.dynamo", "t5.dynamo", "gpt2.legacy-mask"] {
        check(MIXTURES.map(|moe| format!("{model} --moe {moe} --tolerance 1e-9")));
    }
}

/// Options that are tested in pairs.
const OPTIONS: [&str; 9] = [
    "--mesh dp=2 --zero 1 --clip 0.01",
    "--mesh ep=2 --zero 2",
    "--mesh ep=4 --recompute full",
    "--mesh dp=2,ep=2 --zero 3 --bf16",
    "--mesh ep=2,tp=2 --recompute selective",
    "--mesh tp=2 --sequence-parallel --fp16 --clip 0.1",
    "--mesh pp=2,ep=2 --global-batch 16 --zero 1",
    "--mesh pp=2,dp=2 --global-batch 16 --schedule zb-v",
    "--bf16 --optimizer adagrad:eps=1e-8",
];

#[test]
fn mixtures_compose_with_every_option() {
    for (i, options) in OPTIONS.iter().enumerate() {
        let mixtures = [MIXTURES[i % 5], MIXTURES[(i + 2) % 5]];
        check(
            mixtures.map(|moe| format!("gpt2.dynamo --moe {moe} {options} --microbatch 4 --tolerance 1e-9")),
        );
    }
}

#[test]
fn mixtures_run_on_the_processor() {
    check(MIXTURES.map(|moe| format!("llama.dynamo --moe {moe} --mesh ep=2 --mode cpu")));
}

/// No token is dropped, no noise is added, and the gates add up to one. So each token gets the result of the dense model.
#[test]
fn a_mixture_of_copies_begins_as_the_dense_model() {
    let loss =
        |flags: &str| verify(&format!("gpt2.dynamo{flags}")).expect("it runs").loss.expect("it has a loss");
    let dense = loss("");
    for moe in ["experts=4", "experts=4,capacity=4", "experts=8,top=3,capacity=3"] {
        let mixture = loss(&format!(" --moe {moe}"));
        assert!((mixture - dense).abs() < 1e-12, "{moe}: {mixture}, and not {dense}");
    }
}

#[track_caller]
fn check_error(arguments: &str, expected: Expect) {
    let failure = verify(arguments).map(|report| report.passed).expect_err("it is refused");
    expected.assert_eq(&render(Severity::Error, &failure.diagnostics(), false));
}

#[test]
fn mixtures_that_cannot_be_are_refused() {
    check_error(
        "resnet.dynamo --moe experts=4",
        expect![[r#"
        error: --moe found no feed-forward block in the model
          = a block is a multiplication with a parameter, an activation, and a second multiplication, of sequences
    "#]],
    );
    check_error(
        "mixtral.dynamo --moe experts=4",
        expect![[r#"
        error: the model has experts already, and --moe would add more
          = remove --moe: exported experts are trained, and --mesh ep=N spreads them
    "#]],
    );
    check_error(
        "gpt2.dynamo --moe experts=4,bias=0.01 --mesh pp=2 --schedule 2bw --global-batch 8 --microbatch 2",
        expect![[r#"
            error: --moe …,bias=X cannot be used with --schedule 2bw
              = forward of the next step begins before the bias has moved; remove bias=X, which leaves the balance loss, or use a synchronous schedule such as 1f1b
        "#]],
    );
    check_error(
        "gpt2.dynamo --moe experts=4,every=3",
        expect![[r#"
        error: every=3 is more than the 2 feed-forward blocks
          = give a smaller distance, such as every=1
    "#]],
    );
    check_error(
        "gpt2.dynamo --moe experts=3,hidden=256",
        expect![[r#"
        error: 3 experts of 256 hidden numbers cannot begin as copies of a block of 512
          = copies need a divisor of the block's hidden numbers, and experts for each part; with `fresh` any size will do
    "#]],
    );
    check_error(
        "gpt2.dynamo --moe experts=4 --mesh ep=3",
        expect![[r#"
        error: the 4 experts of `m.transformer.h.0.mlp.experts.c_fc.weight` cannot be divided equally over ep=3
          = the experts can be divided by ep=2, ep=4
    "#]],
    );
    check_error(
        "mlp.dynamo --moe experts=4",
        expect![[r#"
        error: --moe found no feed-forward block in the model
          = a block is a multiplication with a parameter, an activation, and a second multiplication, of sequences
          = node "node_linear_1" (Gemm, opset 20) is not such a block: its rows are samples (f32[8, 64]), and routing compares the tokens of a sequence
          = node "node_linear_2" (Gemm, opset 20) is not such a block: its rows are samples (f32[8, 128]), and routing compares the tokens of a sequence
    "#]],
    );
}
