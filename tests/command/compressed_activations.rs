//! `--compress-activations`: runs whose activations wait for backward in a lossless form have the same bits as runs without the flag.

use crate::TRAINYARD;
use expect_test::{Expect, expect};
use testing::workplace::Workplace;

const RESNET: &str = "compile testdata/models/resnet.legacy-trainmode.onnx --train synthetic --microbatch 4";
const MLP: &str = "compile testdata/models/mlp.dynamo.onnx --train synthetic --microbatch 8";
const LOSSLESS: &str = "--compress-activations masks,indices --compress-least 1B";

/// Models, with options that give other activations to compress or change where they are compressed.
const RUNS: [(&str, &str); 9] = [
    (MLP, ""),
    (MLP, "--bf16 --global-batch 32"),
    (RESNET, ""),
    (RESNET, "--global-batch 8 --bf16"),
    (RESNET, "--recompute selective"),
    (RESNET, "--mesh dp=2 --zero 2"),
    (RESNET, "--mesh pp=2 --global-batch 8 --schedule zb-h1"),
    (RESNET, "--mesh pp=2 --global-batch 8 --schedule zb-v"),
    (RESNET, "--offload activations --offload-least 1B"),
];

#[test]
fn ten_steps_have_the_same_bits_in_lossless_forms() {
    let place = Workplace::new(TRAINYARD);
    for (number, (model, options)) in RUNS.into_iter().enumerate() {
        let (plain, compressed) = (format!("plain{number}"), format!("compressed{number}"));
        place.succeed(&format!("{model} {options} --steps 10 -o {plain}"));
        let told = place.succeed(&format!("{model} {options} {LOSSLESS} --steps 10 -o {compressed}")).stderr;
        // A form was used: if none was, the line has no name of a form after its bytes.
        let line = told.lines().find(|line| line.starts_with("activations kept for backward: "));
        let is_used = line
            .is_some_and(|line| [" as bits", " ReLUs", " windows"].iter().any(|form| line.contains(form)));
        assert!(is_used, "{options}: {told}");
        let losses = |run: &str| {
            place.metrics(run).into_iter().map(|line| line["loss"].to_string()).collect::<Vec<_>>()
        };
        assert_eq!(losses(&plain), losses(&compressed), "{options}");
        let export = |run: &str| place.read(&format!("{run}/model.safetensors"));
        assert!(export(&plain) == export(&compressed), "{options}");
    }
}

/// The facts of a step of ResNet with these flags.
fn inspected(place: &Workplace, flags: &str) -> serde_json::Value {
    let model = "testdata/models/resnet.legacy-trainmode.onnx";
    let command = format!("inspect {model} --microbatch 16 --format json {flags}");
    let output = place.command(&command).output().expect("the binary runs");
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

#[test]
fn each_form_keeps_fewer_bytes_than_the_form_before() {
    let place = Workplace::new(TRAINYARD);
    let number = |value: &serde_json::Value| value.as_u64().expect("a number of bytes");
    let plain = number(&inspected(&place, "")["step"]["memory"]["planned"]);
    let mut before = u64::MAX;
    for forms in ["masks", "masks,indices", "masks,indices,bf16"] {
        let found = inspected(&place, &format!("--compress-activations {forms} --compress-least 1B"));
        let (kept, planned) = (&found["compressed_activations"]["kept"], &found["step"]["memory"]["planned"]);
        assert!(number(kept) < before, "{forms}: {kept} bytes are kept, {before} in the form before");
        assert!(number(planned) < plain, "{forms}: {planned} bytes are planned, {plain} without");
        before = number(kept);
    }
}

fn check_error(flags: &str, expected: Expect) {
    let ended = Workplace::new(TRAINYARD).run(&format!("{MLP} --steps 1 -o run {flags}"));
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    expected.assert_eq(&ended.errors());
}

#[test]
fn forms_that_are_none_are_refused() {
    check_error(
        "--compress-activations bf16,f16",
        expect![[r#"
        error: --compress-activations bf16,f16: an activation is kept in one type
          = bf16 has the range of f32, f16 has 3 more bits
    "#]],
    );
    check_error(
        "--compress-least 1KiB",
        expect![[r#"
        error: --compress-least does not apply without --compress-activations
          = give the forms of compressed activations: --compress-activations masks
    "#]],
    );
    check_error(
        "--compress-activations sparse",
        expect![[r#"
        error: invalid value 'sparse' for '--compress-activations <FORM,…>'
          [possible values: masks, indices, bf16, f16]

        For more information, try '--help'.
    "#]],
    );
}
