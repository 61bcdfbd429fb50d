//! Tests of the sources of inputs and labels.

use super::*;

#[test]
fn arrays_feed_inputs_by_name_and_labels_are_not_shifted() {
    let files = Files::new();
    let data = files.arrays(
        "samples.safetensors",
        &[
            ("input.x", DType::F32, &[3, 2], &[0, 1, 10, 11, 20, 21]),
            ("labels", DType::I64, &[3], &[0, 1, 2]),
        ],
    );
    let loader =
        Loader::new(&classifier(3, None), &data, &LoaderOptions { shuffle: false, ..options() }).unwrap();
    let batch = loader.global_batch(0);
    assert_eq!(batch.tensors["x"].to_f64s(), [0.0, 1.0, 10.0, 11.0, 20.0, 21.0]);
    assert_eq!(batch.tensors["x"].dims, [3, 2]);
    assert_eq!(integers(&batch, "labels"), [0, 1, 2]);
    assert_eq!(loader.tokens_per_step(), None);
    assert_eq!(loader.eval_samples(), 0);
}

#[test]
fn inputs_and_labels_of_a_sample_stay_together_when_shuffled() {
    let files = Files::new();
    let x: Vec<i64> = (0..40).map(|element| element / 2).collect();
    let labels: Vec<i64> = (0..20).map(|sample| sample % 10).collect();
    let data = files
        .arrays("s.safetensors", &[("x", DType::F32, &[20, 2], &x), ("labels", DType::I64, &[20], &labels)]);
    let loader = Loader::new(&classifier(4, None), &data, &options()).unwrap();
    for step in 0..10 {
        let batch = loader.global_batch(step);
        let samples = batch.tensors["x"].to_f64s();
        let expected: Vec<i64> = samples.chunks(2).map(|row| row[0] as i64 % 10).collect();
        assert_eq!(integers(&batch, "labels"), expected);
    }
}

#[test]
fn integers_and_bools_become_the_inputs_type() {
    let files = Files::new();
    let data = files.arrays(
        "s.safetensors",
        &[("ids", DType::U8, &[1, 2], &[7, 200]), ("mask", DType::Bool, &[1, 2], &[1, 0])],
    );
    let inputs = vec![input("ids", DType::I32, &[1, 2]), input("mask", DType::F32, &[1, 2])];
    let loader = Loader::new(&ModelSpec { inputs, ..ModelSpec::default() }, &data, &options()).unwrap();
    let batch = loader.global_batch(0);
    assert_eq!((batch.tensors["ids"].dtype, integers(&batch, "ids")), (DType::I32, vec![7, 200]));
    assert_eq!(batch.tensors["mask"].to_f64s(), [1.0, 0.0]);
}

#[test]
fn a_masks_positions_and_token_types_are_filled_in() {
    let files = Files::new();
    let mut spec = language_model(2, 3, None);
    spec.inputs.push(input("attention_mask", DType::Bool, &[2, 3]));
    spec.inputs.push(input("token_type_ids", DType::I64, &[2, 3]));
    spec.inputs.push(InputSpec { batched: false, ..input("position_ids", DType::I64, &[1, 3]) });
    let loader = Loader::new(&spec, &files.write("t.txt", [b'a'; 20]), &options()).unwrap();
    let batch = loader.global_batch(0);
    assert_eq!(integers(&batch, "attention_mask"), [1; 6]);
    assert_eq!(integers(&batch, "token_type_ids"), [0; 6]);
    assert_eq!(integers(&batch, "position_ids"), [0, 1, 2]);
    assert_eq!(batch.microbatch(0, 2).tensors["position_ids"].dims, [1, 3]);
}

#[test]
fn an_input_can_have_a_file_a_key_or_a_constant_of_its_own() {
    let files = Files::new();
    let DataSource::Path(table) =
        files.arrays("table.safetensors", &[("anything", DType::F32, &[2], &[5, 6])])
    else {
        unreachable!()
    };
    let data = files.arrays(
        "s.safetensors",
        &[("pixels", DType::F32, &[1, 2], &[1, 2]), ("labels", DType::I64, &[1], &[3])],
    );
    let mut spec = classifier(1, None);
    spec.inputs.push(InputSpec { batched: false, ..input("scale", DType::F32, &[2]) });
    spec.inputs.push(input("bias", DType::F32, &[1, 2]));
    let inputs = overrides(&[
        ("x", Source::parse("pixels")),
        ("scale", Source::File(table)),
        ("bias", Source::parse("ones")),
    ]);
    let loader = Loader::new(&spec, &data, &LoaderOptions { inputs, ..options() }).unwrap();
    let batch = loader.global_batch(0);
    assert_eq!(batch.tensors["x"].to_f64s(), [1.0, 2.0]);
    assert_eq!(batch.tensors["scale"].to_f64s(), [5.0, 6.0]);
    assert_eq!(batch.tensors["bias"].to_f64s(), [1.0, 1.0]);
    assert_eq!(Source::parse("corpus.bin"), Source::File("corpus.bin".into()));
    assert_eq!(Source::parse("h.0.mask"), Source::Key("h.0.mask".to_owned()));
}

#[test]
fn labels_from_shift_moves_a_files_tokens_and_ignores_the_last_place() {
    let files = Files::new();
    let data = files.arrays("s.safetensors", &[("input_ids", DType::I64, &[1, 3], &[5, 6, 7])]);
    let shift = LoaderOptions { labels_from: Some(LabelsFrom::Shift), ..options() };
    let loader = Loader::new(&language_model(1, 3, Some(-100)), &data, &shift).unwrap();
    assert_eq!(integers(&loader.global_batch(0), "labels"), [6, 7, -100]);
    let error = refusal(&language_model(1, 3, None), &data, &shift);
    assert!(error.contains("--ignore-index -100"), "{error}");
    let error = refusal(&language_model(1, 3, Some(-100)), &data, &options());
    assert!(error.contains("no key `labels` (--labels-from shift makes labels from `input_ids`)"), "{error}");
}

#[test]
fn labels_from_given_leaves_a_streams_tokens_unshifted() {
    let files = Files::new();
    let given = LoaderOptions { labels_from: Some(LabelsFrom::Given), shuffle: false, ..options() };
    let loader = Loader::new(&language_model(1, 3, None), &files.write("t.txt", "abcd"), &given).unwrap();
    let batch = loader.global_batch(0);
    assert_eq!(batch.tensors["labels"], batch.tensors["input_ids"]);
    assert!(loader.notes()[0].contains("the model itself must shift"), "{:?}", loader.notes());
}

#[test]
fn synthetic_data_is_a_pure_function_of_the_seed() {
    let build = |seed| {
        let options = LoaderOptions { seed, ..options() };
        Loader::new(&language_model(4, 8, Some(-100)), &DataSource::Synthetic, &options).unwrap()
    };
    let batch = build(3).global_batch(5);
    assert_eq!(batch, build(3).global_batch(5));
    assert_ne!(batch, build(4).global_batch(5));
    let (tokens, labels) = (integers(&batch, "input_ids"), integers(&batch, "labels"));
    assert_eq!(tokens[1..8], labels[..7]);
    assert!(tokens.iter().all(|token| (0..256).contains(token)));

    let classes =
        Loader::new(&classifier(64, None), &DataSource::Synthetic, &options()).unwrap().global_batch(0);
    assert!(integers(&classes, "labels").iter().all(|label| (0..10).contains(label)));
    assert!(classes.tensors["x"].to_f64s().iter().any(|value| *value < 0.0));
}

#[test]
fn an_input_with_the_labels_name_is_the_label() {
    let files = Files::new();
    let mut spec = language_model(1, 3, None);
    spec.inputs.push(input("labels", DType::I64, &[1, 3]));
    let loader = Loader::new(&spec, &files.write("t.txt", "abcd"), &options()).unwrap();
    assert_eq!(integers(&loader.global_batch(0), "labels"), b"bcd".map(i64::from));
    assert_eq!(loader.decisions().len(), 1);
}

#[test]
fn little_of_a_long_stream_is_held_out_and_a_run_of_an_older_version_keeps_its_share() {
    let files = Files::new();
    let data = files.write("t.txt", vec![b'a'; 8_000_001]);
    let open = |samples| {
        let options = LoaderOptions { samples, ..LoaderOptions::default() };
        Loader::new(&language_model(1, 8, None), &data, &options).unwrap()
    };
    let bounded = open(None);
    assert_eq!((bounded.eval_samples(), bounded.samples()), (32_768, 967_232));
    let note = "the last 32768 samples of";
    assert!(bounded.notes().iter().any(|told| told.starts_with(note)), "{:?}", bounded.notes());
    let older = open(Some(950_000));
    assert_eq!((older.eval_samples(), older.samples()), (50_000, 950_000));
    assert!(older.notes().is_empty(), "{:?}", older.notes());
    assert_eq!(open(Some(967_232)).eval_samples(), 32_768);
}
