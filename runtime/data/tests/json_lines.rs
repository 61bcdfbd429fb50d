//! JSON lines: records of numbers, and of text.

use super::*;

fn regression() -> ModelSpec {
    let inputs = vec![input("x", DType::F32, &[1, 2, 2]), input("y", DType::F32, &[1, 1])];
    ModelSpec { inputs, ..ModelSpec::default() }
}

fn in_order() -> LoaderOptions {
    LoaderOptions { shuffle: false, ..options() }
}

#[test]
fn fields_feed_inputs_nested_flat_or_alone() {
    let files = Files::new();
    let text =
        "{\"x\": [[1, 2.5], [3, 4]], \"y\": 1, \"name\": \"a\"}\r\n\n{\"y\": [2], \"x\": [5, 6, 7, 8]}";
    let loader = Loader::new(&regression(), &files.write("data.jsonl", text), &in_order()).unwrap();
    assert_eq!(loader.samples(), 2);
    assert_eq!(loader.global_batch(0).tensors["x"].to_f64s(), [1.0, 2.5, 3.0, 4.0]);
    assert_eq!(loader.global_batch(1).tensors["x"].to_f64s(), [5.0, 6.0, 7.0, 8.0]);
    assert_eq!(loader.global_batch(1).tensors["y"].to_f64s(), [2.0]);
}

#[test]
fn labels_are_a_field_with_a_usual_name_or_the_users() {
    let files = Files::new();
    let usual =
        files.write("usual.jsonl", "{\"x\": [1, 2], \"label\": 3}\n{\"x\": [1, 2], \"label\": 4.0}\n");
    let loader = Loader::new(&classifier(2, None), &usual, &in_order()).unwrap();
    assert_eq!(integers(&loader.global_batch(0), "labels"), [3, 4]);
    let other = files.write("other.jsonl", "{\"in\": [1, 2], \"out\": 3}\n");
    let inputs = [("x", Source::Key("in".into())), ("labels", Source::Key("out".into()))];
    let options = LoaderOptions { inputs: overrides(&inputs), ..in_order() };
    let loader = Loader::new(&classifier(1, None), &other, &options).unwrap();
    assert_eq!(integers(&loader.global_batch(0), "labels"), [3]);
    let error = refusal(&classifier(1, None), &other, &in_order());
    assert!(error.contains("nothing feeds input `x`") && error.contains("the fields of"), "{error}");
    let inputs = [("x", Source::Key("in".into()))];
    let error =
        refusal(&classifier(1, None), &other, &LoaderOptions { inputs: overrides(&inputs), ..in_order() });
    assert!(
        error.contains("its fields are `in`, `out`; choose a field with --input labels=FIELD"),
        "{error}"
    );
}

#[test]
fn the_texts_of_records_are_one_stream_of_tokens() {
    let files = Files::new();
    let data = files.write("data.jsonl", "{\"text\": \"ab\", \"id\": \"x\"}\n{\"text\": \"c\\u0064\"}\n");
    let loader = Loader::new(&language_model(1, 2, None), &data, &in_order()).unwrap();
    assert_eq!(loader.samples(), 2);
    let tokens: Vec<i64> =
        (0..2).flat_map(|step| integers(&loader.global_batch(step), "input_ids")).collect();
    assert_eq!(tokens, b"ab\nc".map(i64::from));
    assert_eq!(integers(&loader.global_batch(1), "labels"), b"cd".map(i64::from));
    let long: String = (0..100).map(|_| "{\"content\": \"0123456789\"}\n").collect();
    let held = LoaderOptions::default();
    let loader = Loader::new(&language_model(1, 2, None), &files.write("long.jsonl", long), &held).unwrap();
    assert_eq!(loader.eval_samples(), (1100 - 1) / 2 / 20);
}

#[test]
fn a_record_that_does_not_fit_is_told_with_its_line_and_field() {
    let files = Files::new();
    let refused = |text: &str| refusal(&regression(), &files.write("data.jsonl", text), &in_order());
    let good = "{\"x\": [1, 2, 3, 4], \"y\": 1}\n";
    for (line, expected) in [
        (
            "{\"x\": [1, 2, 3], \"y\": 1}",
            "line 2: field `x`, which feeds `x`, has a list of 3, where a sample takes 2",
        ),
        ("{\"x\": [[1, 2], 3], \"y\": 1}", "has a number, where a sample takes a list of 2"),
        ("{\"x\": [1, 2, 3, null], \"y\": 1}", "has null, which is not a number"),
        ("{\"x\": 1, \"y\": 1}", "is a number, and a sample takes [2, 2]"),
        ("{\"y\": 1}", "line 2: field `x`, which feeds `x`, is missing"),
        ("[1, 2]", "line 2 is a list; a record is an object such as {\"x\": 1, …}"),
        ("{\"x\": NaN}", "line 2 is not JSON (column 7): expected value"),
    ] {
        let error = refused(&format!("{good}{line}\n"));
        assert!(error.contains(expected), "{line}: {error}");
    }
    assert!(refused("\n \n").contains("it is empty"));
    let deep = format!("{good}{}", "[".repeat(100_000));
    assert!(refused(&deep).contains("line 2 is not JSON"), "{}", refused(&deep));
    let error =
        refusal(&classifier(1, None), &files.write("l.jsonl", "{\"x\": [1, 2], \"y\": 0.5}"), &in_order());
    assert!(error.contains("field `y`, which feeds `labels`, has 0.5, which is not an integer"), "{error}");
}
