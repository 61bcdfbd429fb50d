//! Values in other memories than the device's: a model computes the same as with everything on the device, whichever values leave it, with
//! all other options, and in the memories of the CPU backend.

use crate::stages::{check, check_error};
use expect_test::expect;

/// Models with tied embeddings, without tied weights, with running statistics, and with experts.
const MODELS: [&str; 4] = ["gpt2.dynamo", "llama.dynamo", "resnet.legacy-trainmode", "mixtral.dynamo"];

const CLASSES: [&str; 5] = ["optimizer", "parameters", "gradients", "activations", "embeddings"];

/// All classes, without a least size, in steps of several microbatches.
const ALL: &str = "--offload optimizer,parameters,gradients,activations,embeddings --offload-least 1B";
const BATCH: &str = "--microbatch 2 --global-batch 8";

/// Options that are tested in pairs with the classes.
const OPTIONS: [&str; 12] = [
    "--mesh dp=2 --zero 1 --clip 0.01",
    "--mesh dp=2 --zero 2 --bf16",
    "--mesh dp=2 --zero 3 --recompute selective",
    "--mesh tp=2 --sequence-parallel --fp16 --clip 0.01",
    "--mesh dp=2,tp=2 --zero 1 --recompute full",
    "--mesh pp=2 --schedule 1f1b --clip 0.01",
    "--mesh pp=2,dp=2 --zero 3 --schedule zb-v",
    "--mesh pp=2,tp=2 --schedule interleaved --bf16",
    "--mesh pp=2 --schedule gpipe --fp16 --recompute full",
    "--bf16 --grad-dtype bf16 --optimizer momentum",
    "--optimizer sgd --update early",
    "--optimizer adagrad:eps=1e-8",
];

#[test]
fn every_class_leaves_the_device_of_every_model() {
    let of = |model| {
        CLASSES.map(|class| format!("{model} --offload {class} --offload-least 1B {BATCH} --tolerance 1e-9"))
    };
    check(MODELS.into_iter().flat_map(of));
}

#[test]
fn every_option_composes_with_every_class() {
    let of = |options| format!("gpt2.dynamo {options} {ALL} {BATCH} --tolerance 1e-9");
    check(OPTIONS.map(of));
    let of = |(index, options): (usize, &str)| {
        let class = CLASSES[index % CLASSES.len()];
        format!("llama.dynamo {options} --offload {class} --offload-least 1B {BATCH} --tolerance 1e-9")
    };
    check(OPTIONS.into_iter().enumerate().map(of));
}

/// Look-ups in a table that is split, rounded, or looked up again; and their gradients.
#[test]
fn every_option_composes_with_embeddings_on_the_host() {
    let of = |options| {
        format!("llama.dynamo {options} --offload embeddings --offload-least 1B {BATCH} --mode cpu")
    };
    check(OPTIONS.map(of));
}

#[test]
fn the_memories_of_the_processor_hold_what_the_plan_says() {
    let of = |model| format!("{model} {ALL} {BATCH} --mode cpu");
    check(MODELS.map(of));
    let of = |options| format!("gpt2.dynamo {options} {ALL} {BATCH} --mode cpu");
    check(OPTIONS.into_iter().filter(|options| options.contains("mesh")).map(of));
}

#[test]
fn states_rest_in_a_file_where_the_host_has_no_room() {
    let folder = std::env::temp_dir();
    let memory = format!("--memory host=1200KiB,disk={}", folder.display());
    // The embedding rests on the host in both cases.
    let more = memory.replace("1200KiB", "2000KiB");
    let budgets = format!("{memory} --offload optimizer,parameters --offload-least 1B");
    check([
        format!("gpt2.dynamo {budgets} {BATCH} --tolerance 1e-9"),
        format!("gpt2.dynamo {budgets} {BATCH} --mode cpu"),
        format!("gpt2.dynamo {budgets} {BATCH} --mode cpu --bf16 --mesh dp=2 --zero 1"),
        format!("llama.dynamo {more} --offload parameters,embeddings --offload-least 1B {BATCH} --mode cpu"),
    ]);
}

#[test]
fn versions_of_weights_stay_on_the_device() {
    check_error(
        &format!("gpt2.dynamo --offload optimizer --mesh pp=2 --schedule 2bw {BATCH}"),
        expect![[r#"
        error: --offload cannot be used with --schedule 2bw
          = stages keep earlier versions of their weights on the device; use a synchronous schedule such as 1f1b
    "#]],
    );
}

#[test]
fn budgets_that_nothing_fits_are_refused_with_the_smallest_that_was_found() {
    check_error(
        &format!("gpt2.dynamo --memory device=1KiB,host=1GiB --offload-least 1B {BATCH}"),
        expect![[r#"
            error: --memory device=1KiB,host=1GiB: no program that was found fits
              = the program with the fewest bytes on the device fits --memory device=820416B,host=8509KiB, with optimizer, parameters, gradients, activations beside the device
              = a smaller --microbatch, a mesh of more devices or --zero takes less
        "#]],
    );
}
