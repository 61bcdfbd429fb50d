//! Data that does not fit the model.

use crate::TRAINYARD;
use std::path::Path;

use expect_test::{Expect, expect};

use super::{failed, npz, place, refused};
use testing::workplace::Workplace;

#[test]
fn labels_out_of_range_are_refused_with_their_place() {
    let place = Workplace::new(TRAINYARD);
    let x = npz::array("<f4", &[8, 64], &vec![0u8; 8 * 64 * 4]);
    let labels = |labels: [i64; 8]| {
        let bytes: Vec<u8> = labels.iter().flat_map(|label| label.to_le_bytes()).collect();
        npz::file(&[("x", x.clone()), ("labels", npz::array("<i8", &[8], &bytes))])
    };
    let flags = "compile testdata/models/mlp.dynamo.onnx --train data.npz --steps 1 -o run";
    place.write("data.npz", &labels([0, 1, 2, 3, 4, 10, 6, 7]));
    refused(
        &place,
        flags,
        expect![[r#"
        error: label 10 in sample 5 of `data.npz:labels` is outside the 10 classes (0 to 9) and is not the ignored value -100
    "#]],
    );
    place.write("data.npz", &labels([0, 1, -1, 3, 4, 5, 6, 7]));
    refused(
        &place,
        flags,
        expect![[r#"
        error: label -1 in sample 2 of `data.npz:labels` is outside the 10 classes (0 to 9) and is not the ignored value -100
    "#]],
    );
    place.succeed(&format!("{flags} --ignore-index -1"));
}

#[test]
fn arrays_that_do_not_fit_the_model_are_refused() {
    let place = Workplace::new(TRAINYARD);
    let labels = npz::array("<i8", &[8], &[0; 64]);
    let flags = "compile testdata/models/mlp.dynamo.onnx --train data.npz --steps 1 -o run";
    let check = |x: Vec<u8>, labels: Vec<u8>, expected: Expect| {
        place.write("data.npz", &npz::file(&[("x", x), ("labels", labels)]));
        refused(&place, flags, expected);
    };
    let x = |rows: usize, columns: usize| npz::array("<f4", &[rows, columns], &vec![0; rows * columns * 4]);
    check(
        x(8, 63),
        labels.clone(),
        expect![[r#"
        error: `data.npz:x` has dims [8, 63], but `x` takes [samples, 64]
    "#]],
    );
    check(
        x(9, 64),
        labels.clone(),
        expect![[r#"
        error: the inputs have different numbers of samples: `x` 9, `labels` 8
    "#]],
    );
    check(
        npz::array("<i4", &[8, 64], &[0; 2048]),
        labels.clone(),
        expect![[r#"
        error: `data.npz:x` holds i32, but `x` takes f32: convert the data (integers feed integers, floats feed floats)
    "#]],
    );
    check(
        npz::array("<f4", &[8, 64], &[0; 2047]),
        labels.clone(),
        expect![[r#"
        error: `data.npz` is damaged or not supported: `x` is f32[8, 64], which does not fit its 2047 bytes
    "#]],
    );
    place.write("data.npz", &npz::file(&[("pixels", x(8, 64)), ("labels", labels)]));
    refused(
        &place,
        flags,
        expect![[r#"
            error: nothing feeds input `x` (f32[8, 64]): the keys of `data.npz` are `labels`, `pixels`; give it with --input x=KEY, COLUMNS, FILE, positions, ones or zeros (the model's inputs are `x`)
        "#]],
    );
    refused(
        &place,
        &format!("{flags} --input x=pixel"),
        expect![[r#"
            error: `data.npz` has no key `pixel`; its keys are `labels`, `pixels`
        "#]],
    );
    place.succeed(&format!("{flags} --input x=pixels"));
}

#[test]
fn data_that_cannot_be_trained_on_is_refused() {
    let place = place();
    let flags = "compile testdata/gpt2-fresh.onnx --steps 1 -o run --train";
    place.write("short.txt", b"In the beginning");
    refused(
        &place,
        &format!("{flags} short.txt"),
        expect![[r#"
        error: `short.txt` has 16 tokens, but one sample of sequence length 16 needs at least 17 (the last token's label included)
    "#]],
    );
    place.write("accents.txt", "Au commencement Dieu créa les cieux et la terre.".as_bytes());
    refused(
        &place,
        &format!("{flags} accents.txt"),
        expect![[r#"
        error: token 195 at position 23 of `accents.txt` is outside the vocabulary of 128 (0 to 127)
    "#]],
    );
    refused(
        &place,
        &format!("{flags} nothing.txt"),
        expect![[r#"
        error: cannot read `nothing.txt`: No such file or directory (os error 2)
    "#]],
    );
    place.write("odd.bin", b"abc");
    refused(
        &place,
        &format!("{flags} odd.bin"),
        expect![[r#"
        error: `odd.bin` has 3 bytes, which is not a multiple of 2: tokens of a vocabulary of 128 are read as u16, little endian
    "#]],
    );
    place.write("words.docx", b"PK\x03\x04\xff\xfe");
    refused(
        &place,
        &format!("{flags} words.docx"),
        expect![[r#"
            error: `words.docx` has 6 tokens, but one sample of sequence length 16 needs at least 17 (the last token's label included)
        "#]],
    );
    place.write("cut.npz", b"PK\x03\x04 and no more");
    refused(
        &place,
        &format!("{flags} cut.npz"),
        expect![[r#"
        error: `cut.npz` is damaged or not supported: invalid Zip archive: Could not find EOCD
    "#]],
    );
    refused(
        &place,
        &format!("{flags} text.txt --eval short.txt"),
        expect![[r#"
        error: `short.txt` has 16 tokens, but one sample of sequence length 16 needs at least 17 (the last token's label included)
    "#]],
    );
    refused(
        &place,
        "compile testdata/models/gpt3-175b-noweights.onnx --train text.txt --steps 1 -o run",
        expect![[r#"
            error: `text.txt` is text, and the model's vocabulary of 51200 is not bytes: give the model's tokenizer (`--tokenizer tokenizer.json`), token ids (.bin), or `--tokenizer bytes` if the model's tokens are bytes
        "#]],
    );
    refused(
        &place,
        "compile testdata/models/mlp.dynamo.onnx --train text.txt --steps 1 -o run",
        expect![[r#"
            error: `text.txt` is a stream of tokens, but no input has integers of [batch, sequence]; the model's inputs are `x`
        "#]],
    );
}

#[test]
fn an_array_whose_bytes_are_not_those_that_were_written_is_refused() {
    let place = Workplace::new(TRAINYARD);
    let x = npz::array("<f4", &[8, 64], &[1; 8 * 64 * 4]);
    let labels = npz::array("<i8", &[8], &[0; 64]);
    let mut file = npz::file(&[("x", x), ("labels", labels)]);
    let flags = "compile testdata/models/mlp.dynamo.onnx --train data.npz --steps 1 -o run";
    file[1000] ^= 1;
    place.write("data.npz", &file);
    refused(
        &place,
        flags,
        expect![[r#"
            error: `data.npz` is damaged or not supported: `x` has the checksum 1e14b8f0, and the archive records 9574477c: its bytes are damaged; write or copy the file again
        "#]],
    );
    file[1000] ^= 1;
    place.write("data.npz", &file);
    place.succeed(flags);
}

#[test]
fn a_pipe_or_a_device_is_refused_and_not_waited_for() {
    let place = place();
    let mut mkfifo = place.command_of(Path::new("mkfifo"), "pipe.txt pipe.safetensors tokenizer.json");
    assert!(mkfifo.status().expect("mkfifo can be started").success());
    let flags = "compile testdata/gpt2-fresh.onnx --microbatch 8 --steps 1 -o run";
    let check =
        |arguments: &str, expected: Expect| failed(&place.run(&format!("{flags} {arguments}")), expected);
    check(
        "--train pipe.txt",
        expect![[r#"
            error: cannot read `pipe.txt`: it is a pipe, and a regular file is needed; write the contents to a regular file
        "#]],
    );
    check(
        "--train /dev/zero",
        expect![[r#"
            error: cannot read `/dev/zero`: it is a device, and a regular file is needed; write the contents to a regular file
        "#]],
    );
    check(
        "--train text.txt --eval pipe.txt",
        expect![[r#"
            error: cannot read `pipe.txt`: it is a pipe, and a regular file is needed; write the contents to a regular file
        "#]],
    );
    check(
        "--train text.txt --tokenizer tokenizer.json",
        expect![[r#"
            error: cannot read `tokenizer.json`: it is a pipe, and a regular file is needed; write the contents to a regular file
        "#]],
    );
    check(
        "--train text.txt --weights pipe.safetensors",
        expect![[r#"
            error: cannot read `pipe.safetensors`: it is a pipe, and a regular file is needed; write the contents to a regular file
        "#]],
    );
}

#[test]
fn a_tokenizer_that_its_library_panics_at_is_an_error_without_a_backtrace() {
    let place = place();
    let file = String::from_utf8(place.read("testdata/tokenizer.json")).expect("it is text");
    let mut file: serde_json::Value = serde_json::from_str(&file).expect("it is JSON");
    // A character map whose table ends before the offset that its first entry names.
    file["normalizer"] =
        serde_json::json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAP////95AA=="});
    place.write("tokenizer.json", file.to_string().as_bytes());
    let flags = "compile testdata/gpt2-fresh.onnx --microbatch 8 --steps 1 -o run";
    refused(
        &place,
        &format!("{flags} --train text.txt --tokenizer tokenizer.json"),
        expect![[r#"
            error: `tokenizer.json` cannot be used as a tokenizer: it cannot tokenize `text.txt`: the tokenizers library failed: index out of bounds: the len is 1 but the index is 1073741578
        "#]],
    );
}
