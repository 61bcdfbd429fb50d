//! Folders of files of one kind, and texts that a tokenizer reads.

use super::super::tokenizer::tests::byte_level;
use super::*;

/// Makes a folder in the folder of the test.
fn folder(files: &Files, name: &str, contents: &[(&str, &str)]) -> DataSource {
    fs::create_dir(files.path(name)).unwrap();
    for (file, contents) in contents {
        fs::write(files.path(name).join(file), contents).unwrap();
    }
    DataSource::Path(files.path(name))
}

/// Moves files that were written beside a folder into it.
fn moved(files: &Files, folder: &str, names: &[&str]) -> DataSource {
    fs::create_dir(files.path(folder)).unwrap();
    names.iter().for_each(|name| fs::rename(files.path(name), files.path(folder).join(name)).unwrap());
    DataSource::Path(files.path(folder))
}

fn unshuffled() -> LoaderOptions {
    LoaderOptions { shuffle: false, ..options() }
}

#[test]
fn rows_of_a_folder_of_arrays_go_on_from_file_to_file() {
    let files = Files::new();
    let write = |name: &str, labels: &[i64]| {
        let x: Vec<i64> = labels.iter().flat_map(|&label| [label * 10, label * 10 + 1]).collect();
        let rows = labels.len() as u64;
        files.arrays(name, &[("x", DType::F32, &[rows, 2], &x), ("labels", DType::I64, &[rows], labels)]);
    };
    write("b.safetensors", &[3, 4]);
    write("a.safetensors", &[0, 1, 2]);
    write("c.safetensors", &[5]);
    let data = moved(&files, "all", &["a.safetensors", "b.safetensors", "c.safetensors"]);
    let loader = Loader::new(&classifier(2, None), &data, &unshuffled()).unwrap();
    assert_eq!(loader.samples(), 6);
    for step in 0..3 {
        let batch = loader.global_batch(step);
        let labels = integers(&batch, "labels");
        assert_eq!(labels, [2 * step as i64, 2 * step as i64 + 1]);
        let x: Vec<f64> =
            labels.iter().flat_map(|&label| [label as f64 * 10.0, label as f64 * 10.0 + 1.0]).collect();
        assert_eq!(batch.tensors["x"].to_f64s(), x);
    }
}

#[test]
fn arrays_of_a_folder_that_do_not_go_together_name_their_file() {
    let files = Files::new();
    files.arrays("a.safetensors", &[("x", DType::F32, &[1, 2], &[1, 2]), ("labels", DType::I64, &[1], &[1])]);
    files.arrays(
        "b.safetensors",
        &[("x", DType::F32, &[1, 3], &[1, 2, 3]), ("labels", DType::I64, &[1], &[1])],
    );
    let data = moved(&files, "dims", &["a.safetensors", "b.safetensors"]);
    let error = refusal(&classifier(1, None), &data, &options());
    assert!(error.contains("b.safetensors:x` has dims [1, 3]"), "{error}");
    files.arrays("a.safetensors", &[("x", DType::F32, &[1, 2], &[1, 2]), ("labels", DType::I64, &[1], &[1])]);
    files.arrays("b.safetensors", &[("x", DType::F32, &[1, 2], &[1, 2])]);
    let data = moved(&files, "keys", &["a.safetensors", "b.safetensors"]);
    let error = refusal(&classifier(1, None), &data, &options());
    assert!(error.contains("b.safetensors` has no key `labels`; its keys are `x`"), "{error}");
}

#[test]
fn what_all_samples_share_is_the_same_in_all_files() {
    let files = Files::new();
    let spec = ModelSpec {
        inputs: vec![
            input("x", DType::F32, &[1, 2]),
            InputSpec { batched: false, ..input("scale", DType::F32, &[2]) },
        ],
        ..ModelSpec::default()
    };
    let write = |name: &str, scale: i64| {
        let scale = [scale, 2];
        files.arrays(name, &[("x", DType::F32, &[1, 2], &[1, 2]), ("scale", DType::F32, &[2], &scale)])
    };
    write("a.safetensors", 1);
    write("b.safetensors", 1);
    let same = moved(&files, "same", &["a.safetensors", "b.safetensors"]);
    let loader = Loader::new(&spec, &same, &options()).unwrap();
    assert_eq!((loader.samples(), loader.global_batch(0).tensors["scale"].to_f64s()), (2, vec![1.0, 2.0]));
    write("a.safetensors", 1);
    write("b.safetensors", 3);
    let error = refusal(&spec, &moved(&files, "other", &["a.safetensors", "b.safetensors"]), &options());
    assert!(error.contains("b.safetensors:scale` differs from the files before it"), "{error}");
}

#[test]
fn a_folder_of_columns_is_one_table() {
    let files = Files::new();
    let data =
        folder(&files, "d", &[("b.csv", "x,y,label\n5,6,1\n"), ("a.csv", "x,y,label\n1,2,0\n3,4,2\n")]);
    let loader = Loader::new(&classifier(3, None), &data, &unshuffled()).unwrap();
    assert_eq!(loader.global_batch(0).tensors["x"].to_f64s(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let data = folder(&files, "other", &[("b.csv", "x,z,label\n5,6,1\n"), ("a.csv", "x,y,label\n1,2,0\n")]);
    let error = refusal(&classifier(1, None), &data, &options());
    assert!(
        error.contains("b.csv` is damaged or not supported: its columns differ from the columns of"),
        "{error}"
    );
}

#[test]
fn a_folder_of_several_kinds_is_refused() {
    let files = Files::new();
    let data = folder(&files, "d", &[("a.csv", "1,2,3\n"), ("b.txt", "text")]);
    let error = refusal(&classifier(1, None), &data, &options());
    assert!(error.contains("has both") && error.contains("files of one kind"), "{error}");
    let error = refusal(&classifier(1, None), &folder(&files, "empty", &[]), &options());
    assert!(error.contains("has no files in it"), "{error}");
}

#[test]
fn nan_is_refused_with_its_sample_and_infinity_is_not() {
    let files = Files::new();
    let write = |values: [f32; 4]| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2, 2], &bytes).unwrap();
        files.write("s.safetensors", safetensors::serialize([("x", view)], None).unwrap())
    };
    let spec = ModelSpec { label: None, ..classifier(1, None) };
    let error = refusal(&spec, &write([1.0, 2.0, 3.0, f32::NAN]), &options());
    assert!(
        error.contains("sample 1 of") && error.contains("s.safetensors:x`") && error.contains("contains NaN"),
        "{error}"
    );
    Loader::new(&spec, &write([1.0, 2.0, 3.0, f32::NEG_INFINITY]), &options()).unwrap();
}

#[test]
fn a_tokenizer_turns_texts_into_tokens_that_are_shifted_as_all_are() {
    let files = Files::new();
    let DataSource::Path(path) = files.write("tokenizer.json", byte_level("null")) else { unreachable!() };
    let tokenizer = Some(Tokenizer::File(path));
    let mut spec = language_model(1, 3, None);
    spec.inputs[0].vocabulary = Some(1000);
    spec.label = Some(label(DType::I64, &[1, 3], 1000, None));
    let options = LoaderOptions { tokenizer, ..unshuffled() };
    let data = folder(&files, "texts", &[("b.txt", "then<end>"), ("a.txt", "the cat\n")]);
    let loader = Loader::new(&spec, &data, &options).unwrap();
    let (tokens, labels): (Vec<i64>, Vec<i64>) = (0..loader.samples())
        .flat_map(|step| {
            let batch = loader.global_batch(step);
            integers(&batch, "input_ids").into_iter().zip(integers(&batch, "labels")).collect::<Vec<_>>()
        })
        .unzip();
    assert_eq!(tokens, [257, 32, 99, 97, 116, 10]);
    assert_eq!(labels, [32, 99, 97, 116, 10, 257]);
    // A text that needs a tokenizer is refused with that hint, and so is another model's tokenizer.
    let error = refusal(&spec, &data, &unshuffled());
    assert!(error.contains("--tokenizer tokenizer.json"), "{error}");
    spec.inputs[0].vocabulary = Some(258);
    let error = refusal(&spec, &data, &options);
    assert!(
        error.contains("tokenizer.json` gives ids up to 258") && error.contains("vocabulary of 258"),
        "{error}"
    );
    let missing = LoaderOptions { tokenizer: Some(Tokenizer::File(files.path("no.json"))), ..unshuffled() };
    assert!(refusal(&spec, &data, &missing).contains("no.json"));
}
