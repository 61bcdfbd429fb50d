//! A `tokenizer.json` that makes the tokenizer library panic.

use super::refused;
use crate::TRAINYARD;
use testing::workplace::Workplace;

/// A character map whose table ends before the offset that its first entry names.
const FILE: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////95AA=="},
    "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1}}}"#;

#[test]
fn a_panic_of_the_library_is_an_error_without_a_backtrace() {
    let place = Workplace::with_text(TRAINYARD, 10_000);
    place.write("tokenizer.json", FILE.as_bytes());
    let run = "compile testdata/gpt2-fresh.onnx --microbatch 2 --train text.txt --tokenizer tokenizer.json --steps 1 -o run";
    let ended = place.run(run);
    let error = refused(&ended);
    assert!(error.contains("the tokenizers library failed: index out of bounds"), "{error}");
    assert!(
        !ended.stderr.contains("panicked") && !ended.stderr.contains("stack backtrace"),
        "{}",
        ended.stderr
    );
}
