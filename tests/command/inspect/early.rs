//! `--update early`: the bytes that it saves, and the flags that it cannot be used with.

use expect_test::expect;

use super::{json, read};

const SMALL: &str = "models/gpt2.dynamo.onnx";

#[test]
fn the_bytes_that_early_updates_save_are_told() {
    let arguments = [SMALL, "--microbatch", "2", "--recompute", "full", "--update", "early"];
    let memory = &json(&arguments)["step"]["memory"];
    let bytes = |key: &str| memory[key].as_u64().expect("it is a number");
    assert!(bytes("planned") < bytes("planned_with_late_updates"), "{memory}");
    let text = read(&arguments);
    let told = text.lines().filter(|line| line.starts_with("memory: ") || line.starts_with("update: "));
    expect![[r#"
        memory: 6.53 MiB planned; parameters 1.78 MiB, optimizer 3.56 MiB, gradients 1.78 MiB
        update: early; 892 KiB less than the 7.40 MiB of late updates"#]]
    .assert_eq(&told.collect::<Vec<_>>().join("\n"));
    assert!(!read(&arguments[..5]).contains("update: early"));
}

#[test]
fn early_updates_are_refused_with_clipping_and_fp16() {
    let text = read(&[SMALL, "--update", "early", "--clip", "1", "--fp16"]);
    let told = &text[text.find("error").unwrap_or(text.len())..];
    expect![[r#"
        error: --update early cannot be used with --clip
          = clipping multiplies each gradient by a factor that depends on all gradients; the norm that is reported needs no --clip

        error: --update early cannot be used with fp16
          = fp16 scales the loss, and skips the update if any gradient is not finite; --bf16 needs no loss scale
    "#]].assert_eq(told);
}
