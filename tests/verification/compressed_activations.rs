//! Compressed activations: a model computes the same as with uncompressed ones, with all other options, and on the CPU backend.

use crate::stages::check;

/// Models with ReLUs before products and before sums, max pooling, and masks of attention.
const MODELS: [&str; 4] = ["mlp.dynamo", "resnet.legacy-trainmode", "gpt2.dynamo", "bert.dynamo"];

const LOSSLESS: &str = "--compress-activations masks,indices --compress-least 1B";
const ROUNDED: &str = "--compress-activations masks,indices,bf16 --compress-least 1B";

/// Options, tested with the model that has convolutions.
const OPTIONS: [&str; 9] = [
    "--mesh dp=2 --zero 1 --microbatch 2 --global-batch 8",
    "--mesh tp=2",
    "--mesh dp=2,tp=2 --zero 3 --bf16 --microbatch 2",
    "--mesh pp=2 --schedule 1f1b --microbatch 2 --global-batch 8",
    "--mesh pp=2 --schedule zb-v --microbatch 2 --global-batch 8",
    "--recompute selective",
    "--recompute full --fp16",
    "--offload activations --offload-least 1B",
    "--memory device=3200KiB,host=16MiB --offload-least 1B",
];

#[test]
fn lossless_forms_change_no_number() {
    check(MODELS.map(|model| format!("{model} {LOSSLESS} --tolerance 1e-9")));
    check(MODELS.map(|model| format!("{model} {LOSSLESS} --mode cpu")));
}

#[test]
fn every_option_composes_with_lossless_forms() {
    check(OPTIONS.map(|options| format!("resnet.legacy-trainmode {LOSSLESS} {options} --tolerance 1e-9")));
    check(
        [
            "--mesh dp=2 --microbatch 2",
            "--mesh tp=2",
            "--mesh pp=2 --schedule zb-v --microbatch 4 --global-batch 8",
        ]
        .map(|options| format!("resnet.legacy-trainmode {LOSSLESS} {options} --mode cpu")),
    );
}

#[test]
fn rounded_activations_give_gradients_within_the_rounding_of_their_type() {
    check(MODELS.map(|model| format!("{model} {ROUNDED} --mode cpu")));
    // A max pooling with a rounded operand would find other largest elements.
    let alone = ["bf16", "f16", "masks,f16"].into_iter().flat_map(|form| {
        let of = move |model| format!("{model} --compress-activations {form} --compress-least 1B --mode cpu");
        ["mlp.dynamo", "resnet.legacy-trainmode"].map(of)
    });
    check(alone);
}
