//! Faults that are refused before step 0, and their messages.

use super::*;

#[test]
fn a_text_too_short_says_how_much_it_has_and_needs() {
    let files = Files::new();
    let error = refusal(&language_model(1, 8, None), &files.write("t.txt", "12345678"), &options());
    assert!(error.contains("has 8 tokens, but one sample of sequence length 8 needs at least 9"), "{error}");
    let error = refusal(&language_model(1, 8, None), &files.write("empty.txt", ""), &options());
    assert!(error.contains("has 0 tokens"), "{error}");
}

#[test]
fn too_few_samples_for_a_batch_that_cannot_be_filled_up() {
    let files = Files::new();
    let error = refusal(&language_model(4, 2, None), &files.write("t.txt", "1234567"), &options());
    assert!(error.contains("has 3 samples, but a global batch takes 4"), "{error}");
    assert!(error.contains("--global-batch, so that a step takes 3 samples or fewer"), "{error}");
}

#[test]
fn a_token_outside_the_vocabulary_is_found_wherever_it_stands() {
    let files = Files::new();
    let mut spec = language_model(1, 2, None);
    spec.inputs[0].vocabulary = Some(100);
    let error = refusal(&spec, &files.write("t.txt", [1, 2, 3, 4, 100, 5]), &options());
    assert!(error.starts_with("token 100 at position 4 of"), "{error}");
    assert!(error.ends_with("outside the vocabulary of 100 (0 to 99)"), "{error}");
    let arrays = [("input_ids", DType::I64, [2, 2].as_slice(), [1, 2, -3, 4].as_slice())];
    let data = files.arrays("s.safetensors", &arrays);
    let error = refusal(&ModelSpec { label: None, ..spec }, &data, &options());
    assert!(
        error.contains("token -3 at position 2 of") && error.contains("s.safetensors:input_ids"),
        "{error}"
    );
}

#[test]
fn a_label_outside_the_classes_names_its_sample() {
    let files = Files::new();
    let x = ("x", DType::F32, [2, 2].as_slice(), [0; 4].as_slice());
    let data = files.arrays("s.safetensors", &[x, ("labels", DType::I64, &[2], &[9, 10])]);
    let error = refusal(&classifier(1, Some(-1)), &data, &options());
    assert!(error.contains("label 10 in sample 1 of"), "{error}");
    assert!(error.ends_with("outside the 10 classes (0 to 9) and is not the ignored value -1"), "{error}");
    let data = files.arrays("s.safetensors", &[x, ("labels", DType::I64, &[2], &[9, -100])]);
    let error = refusal(&classifier(1, None), &data, &options());
    assert!(error.ends_with("--ignore-index -100 ignores this label"), "{error}");
    Loader::new(&classifier(1, Some(-100)), &data, &options()).unwrap();
}

#[test]
fn missing_keys_are_listed_with_what_is_there_and_what_is_wanted() {
    let files = Files::new();
    let data =
        files.arrays("s.safetensors", &[("y", DType::F32, &[1, 2], &[0, 0]), ("z", DType::I64, &[1], &[0])]);
    let error = refusal(&classifier(1, None), &data, &options());
    assert!(error.contains("nothing feeds input `x` (f32[1, 2])"), "{error}");
    assert!(
        error.contains("s.safetensors` are `y`, `z`") && error.contains("the model's inputs are `x`"),
        "{error}"
    );
    let inputs = overrides(&[("x", Source::parse("y"))]);
    let error = refusal(&classifier(1, None), &data, &LoaderOptions { inputs, ..options() });
    assert!(error.contains("has no key `labels`; its keys are `y`, `z`"), "{error}");
    let inputs = overrides(&[("x", Source::parse("w"))]);
    let error = refusal(&classifier(1, None), &data, &LoaderOptions { inputs, ..options() });
    assert!(error.contains("has no key `w`; its keys are `y`, `z`"), "{error}");
    let inputs = overrides(&[("input_ids", Source::parse("w"))]);
    let text = files.write("t.txt", "some text");
    let mut spec = language_model(1, 2, None);
    spec.inputs.push(input("more_ids", DType::I64, &[1, 2]));
    let error = refusal(&spec, &text, &LoaderOptions { inputs, ..options() });
    assert!(error.contains("--input names the key `w`, but"), "{error}");
}

#[test]
fn wrong_types_dims_and_counts_say_both_sides() {
    let files = Files::new();
    let labels = ("labels", DType::I64, [2].as_slice(), [0, 1].as_slice());
    let of = |dtype, dims: &[u64], values: &[i64]| {
        let data = files.arrays("s.safetensors", &[("x", dtype, dims, values), labels]);
        refusal(&classifier(1, None), &data, &options())
    };
    let error = of(DType::I64, &[2, 2], &[0; 4]);
    assert!(error.contains("s.safetensors:x` holds i64, but `x` takes f32"), "{error}");
    let error = of(DType::F32, &[2, 3], &[0; 6]);
    assert!(error.contains("has dims [2, 3], but `x` takes [samples, 2]"), "{error}");
    let error = of(DType::F32, &[3, 2], &[0; 6]);
    assert!(error.ends_with("different numbers of samples: `x` 3, `labels` 2"), "{error}");
    let error = of(DType::F32, &[0, 2], &[]);
    assert!(error.contains("`x` 0, `labels` 2"), "{error}");
    let data = files.arrays("wide.safetensors", &[("ids", DType::I64, &[1, 2], &[1, 300])]);
    let spec = ModelSpec { inputs: vec![input("ids", DType::U8, &[1, 2])], ..ModelSpec::default() };
    let error = refusal(&spec, &data, &options());
    assert!(
        error.starts_with("300 at position 1 of") && error.ends_with("does not fit `ids`, which is u8"),
        "{error}"
    );
}

#[test]
fn a_stream_gives_no_labels_but_one_a_token() {
    let files = Files::new();
    let mut spec = language_model(1, 2, None);
    spec.label = Some(label(DType::I64, &[1], 10, None));
    let error = refusal(&spec, &files.write("t.txt", "some text"), &options());
    assert!(error.contains("no labels for `labels` [1]") && error.contains("[batch, 2]"), "{error}");
}

#[test]
fn inputs_that_disagree_on_the_batch_are_refused() {
    let files = Files::new();
    let mut spec = language_model(2, 2, None);
    spec.inputs.push(input("attention_mask", DType::I64, &[3, 2]));
    let error = refusal(&spec, &files.write("t.txt", "some text"), &options());
    assert!(error.contains("it is 2 in `input_ids` and 3 in `attention_mask`"), "{error}");
    spec.inputs[1].dims = vec![u64::MAX, 2];
    assert!(
        refusal(&spec, &files.write("t.txt", "some text"), &options()).contains("have no common batch dim")
    );
    spec.inputs.clear();
    spec.label = None;
    assert!(refusal(&spec, &DataSource::Synthetic, &options()).contains("no input has a batch dim"));
}

#[test]
fn files_that_are_missing_or_of_another_kind_are_named() {
    let files = Files::new();
    let spec = language_model(1, 2, None);
    let error = refusal(&spec, &DataSource::Path(files.path("nowhere.txt")), &options());
    assert!(error.contains("cannot read") && error.contains("nowhere.txt"), "{error}");
    let error = refusal(&spec, &files.write("data.parquet", "1,2"), &options());
    assert!(error.contains(".parquet files cannot be read"), "{error}");
    let data =
        files.arrays("s.safetensors", &[("x", DType::F32, &[0, 2], &[]), ("labels", DType::I64, &[0], &[])]);
    let error = refusal(&classifier(1, Some(-1)), &data, &options());
    assert!(error.ends_with("has no samples to train on"), "{error}");
}

#[test]
fn a_number_that_would_become_infinite_is_told_with_its_place() {
    let files = Files::new();
    let labels = ("labels", DType::I64, [2].as_slice(), [0, 1].as_slice());
    let data = files.arrays("s.safetensors", &[("x", DType::F32, &[2, 2], &[0, 65_519, -65_520, 1]), labels]);
    let mut spec = classifier(1, None);
    spec.inputs[0].dtype = DType::F16;
    let error = refusal(&spec, &data, &options());
    assert!(
        error.starts_with("-6.552e4 at position 2 of")
            && error.ends_with("s.safetensors:x` does not fit `x`, which is f16"),
        "{error}"
    );
    let text = |number: &str| files.write("d.jsonl", format!("{{\"x\": [1, {number}], \"labels\": 1}}\n"));
    let error = refusal(&spec, &text("65520"), &options());
    assert!(error.ends_with("field `x`, which feeds `x`, has 65520, which does not fit f16"), "{error}");
    Loader::new(&spec, &text("65519"), &options()).unwrap();
}

/// Returns a compressed array of this number of zero bytes, as NumPy's savez_compressed writes it.
fn packed_zeros(shape: &str, bytes: usize) -> Vec<u8> {
    use std::io::{Cursor, Write};
    let array = crate::npy::tests::npy("<f4", "False", shape, &vec![0; bytes]);
    let labels = crate::npy::tests::npy("<i8", "False", "(2,)", &[0; 16]);
    let options = zip::write::SimpleFileOptions::default();
    let options = options.compression_method(zip::CompressionMethod::Deflated);
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, contents) in [("x.npy", array), ("labels.npy", labels)] {
        zip.start_file(name, options).unwrap();
        zip.write_all(&contents).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[test]
fn an_array_of_wrong_dims_is_refused_before_its_bytes_are_looked_at() {
    let files = Files::new();
    let mut file = packed_zeros("(20000, 3)", 240_000);
    // Damages the end of x's compressed bytes, so that reading them fails.
    let labels = file.windows(10).position(|window| window == b"labels.npy").unwrap();
    file[labels - 34] ^= 0xff;
    let data = files.write("d.npz", &file);
    let error = refusal(&classifier(1, None), &data, &options());
    assert!(error.contains("d.npz:x` has dims [20000, 3], but `x` takes [samples, 2]"), "{error}");
    let mut spec = classifier(1, None);
    spec.inputs[0].dims = vec![1, 3];
    let error = refusal(&spec, &data, &options());
    assert!(error.contains("d.npz` is damaged or not supported: `x` cannot be unpacked"), "{error}");
}
