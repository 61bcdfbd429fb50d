//! Users' data, in whole runs of the binary: columns of numbers, texts with a tokenizer, llm.c's tokens, folders; and the answers to data
//! that do not fit.

use crate::TRAINYARD;
use std::path::Path;

use data::{DataSource, InputSpec, LabelSpec, Loader, LoaderOptions, ModelSpec, Tokenizer};
use expect_test::expect;
use testing::workplace::Workplace;

const DIGITS: &str = "compile testdata/models/mlp.dynamo.onnx --init kaiming --lr 3e-3 --seed 1";

fn losses(place: &Workplace, run: &str) -> Vec<f64> {
    place.metrics(run).iter().map(|line| line["loss"].as_f64().expect("a loss")).collect()
}

#[test]
fn the_digits_are_learned_from_their_columns() {
    let place = Workplace::new(TRAINYARD);
    let flags = "--train testdata/digits.csv.gz --eval testdata/digits.csv.gz --microbatch 64 --steps 120";
    let ended = place.succeed(&format!("{DIGITS} {flags} -o run"));
    let note = "the columns of `testdata/digits.csv.gz` have no names: the labels are taken from the last column, 65";
    assert!(ended.stderr.contains(note), "{}", ended.stderr);
    let (losses, metrics) = (losses(&place, "run"), place.metrics("run"));
    let eval = metrics.last().expect("a line")["eval_loss"].as_f64().expect("an evaluation");
    assert!(losses[0] > 2.0 && eval < 0.2, "{} at first, {eval} in the end", losses[0]);
}

#[test]
fn columns_that_are_chosen_and_columns_that_are_left_train_alike() {
    let place = Workplace::new(TRAINYARD);
    let flags = "--train testdata/digits.csv.gz --microbatch 32 --steps 3";
    place.succeed(&format!("{DIGITS} {flags} -o left"));
    place.succeed(&format!("{DIGITS} {flags} --input x=1-64 --input labels=65 -o chosen"));
    assert_eq!(losses(&place, "left"), losses(&place, "chosen"));
    let ended = place.run(&format!("{DIGITS} {flags} --input x=1-63 -o wrong"));
    expect![[r#"
        error: `testdata/digits.csv.gz` has 65 columns: `x` needs 64 columns, and 63 columns are chosen for it; choose with --input x=COLUMNS: numbers from 1 or names, such as 2-65
    "#]]
    .assert_eq(&ended.errors());
    assert_eq!(ended.status.code(), Some(2));
}

/// A loader of sequences of 16 tokens from a vocabulary of 128, in their order.
fn tokens(train: &Path, tokenizer: Option<Tokenizer>) -> Loader {
    let input = InputSpec {
        name: "input_ids".into(),
        dtype: ir::DType::I64,
        dims: vec![1, 16],
        batched: true,
        vocabulary: Some(128),
    };
    let label = LabelSpec {
        name: "labels".into(),
        dtype: ir::DType::I64,
        dims: vec![1, 16],
        classes: Some(128),
        ignore_index: None,
    };
    let spec = ModelSpec { inputs: vec![input], label: Some(label), ..ModelSpec::default() };
    let options = LoaderOptions { tokenizer, held_out: 0.0, shuffle: false, ..LoaderOptions::default() };
    Loader::new(&spec, &DataSource::Path(train.to_owned()), &options).expect("the data can be read")
}

#[test]
fn a_text_has_the_tokens_that_hugging_face_gives_it() {
    let place = Workplace::new(TRAINYARD);
    let reference: serde_json::Value =
        serde_json::from_slice(&place.read("testdata/tokenizer.ids.json")).expect("it is JSON");
    let place_of = |key: &str| reference[key].as_u64().expect("a number") as usize;
    place.write("text.txt", &place.read("testdata/kjv.txt")[place_of("start")..place_of("stop")]);
    let ids = reference["ids"].as_array().expect("a list").iter();
    let ids: Vec<i64> = ids.map(|id| id.as_i64().expect("an id")).collect();
    let tokenizer = Some(Tokenizer::File(place.path("testdata/tokenizer.json")));
    let loader = tokens(&place.path("text.txt"), tokenizer);
    assert_eq!(loader.samples(), (ids.len() as u64 - 1) / 16);
    let read = (0..loader.samples()).flat_map(|step| {
        loader.global_batch(step).tensors["input_ids"].to_i64s().expect("they are integers")
    });
    let read: Vec<i64> = read.collect();
    assert_eq!(read, ids[..read.len()]);
}

const TOKENS: &str = "compile testdata/gpt2-fresh.onnx --microbatch 8 --steps 4 --lr 2e-3 --seed 3";

#[test]
fn a_text_by_its_tokenizer_trains_as_its_tokens_in_llm_cs_file_do() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    place.succeed(&format!("{TOKENS} --train text.txt --tokenizer testdata/tokenizer.json -o text"));
    let loader =
        tokens(&place.path("text.txt"), Some(Tokenizer::File(place.path("testdata/tokenizer.json"))));
    let mut ids: Vec<i64> = Vec::new();
    for step in 0..loader.samples() {
        let batch = loader.global_batch(step);
        ids.extend(batch.tensors["input_ids"].to_i64s().expect("integers"));
        if step + 1 == loader.samples() {
            ids.extend(batch.tensors["labels"].to_i64s().expect("integers").last());
        }
    }
    let mut file: Vec<u8> =
        [20_240_520, 1, ids.len() as u32].iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    file.resize(1024, 0);
    file.extend(ids.iter().flat_map(|&id| (id as u16).to_le_bytes()));
    place.write("text.bin", &file);
    place.succeed(&format!("{TOKENS} --train text.bin -o bin"));
    assert_eq!(losses(&place, "text"), losses(&place, "bin"));
    assert!(losses(&place, "text")[3] < losses(&place, "text")[0]);
    // A run resumes with its tokenizer, and is refused with other tokens.
    let more = TOKENS.replace("--steps 4", "--steps 5");
    place.succeed(&format!("{more} --train text.txt --tokenizer testdata/tokenizer.json -o text --resume"));
    let ended = place.run(&format!("{more} --train text.txt -o text --resume"));
    assert!(ended.errors().contains("belongs to a run with other data"), "{}", ended.stderr);
    assert_eq!(ended.status.code(), Some(2));
}

#[test]
fn a_tokenizer_that_cannot_be_used_is_refused_before_anything_is_written() {
    let place = Workplace::with_text(TRAINYARD, 2_000);
    let tokenizer = String::from_utf8(place.read("testdata/tokenizer.json")).expect("it is text");
    place.write("larger.json", tokenizer.replace(":127", ":4000").as_bytes());
    place.write("broken.json", &tokenizer.as_bytes()[..tokenizer.len() / 2]);
    let before = place.contents();
    let refused = |name: &str| {
        let ended = place.run(&format!("{TOKENS} --train text.txt --tokenizer {name}"));
        assert_eq!(ended.status.code(), Some(2), "{name}: {}", ended.stderr);
        ended.errors()
    };
    expect![[r#"
        error: `larger.json` gives ids up to 4000, but the model has a vocabulary of 128: is it this model's tokenizer?
    "#]]
    .assert_eq(&refused("larger.json"));
    assert!(refused("broken.json").starts_with("error: `broken.json` cannot be used as a tokenizer: "));
    assert!(refused("gpt2").starts_with("error: cannot read `gpt2`: "));
    assert!(before == place.contents());
}

#[test]
fn a_folder_of_columns_trains_as_one_file_does() {
    let place = Workplace::new(TRAINYARD);
    let mut text = String::new();
    let packed = place.read("testdata/digits.csv.gz");
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&packed[..]), &mut text)
        .expect("it is text");
    let lines: Vec<&str> = text.lines().collect();
    std::fs::create_dir(place.path("folder")).expect("a folder can be made");
    for (name, lines) in [("a.csv", &lines[..700]), ("b.csv", &lines[700..701]), ("c.csv", &lines[701..])] {
        place.write(&format!("folder/{name}"), lines.join("\n").as_bytes());
    }
    for (train, run) in [("testdata/digits.csv.gz", "file"), ("folder", "folder-run")] {
        place.succeed(&format!("{DIGITS} --train {train} --microbatch 32 --steps 4 -o {run}"));
    }
    assert_eq!(losses(&place, "file"), losses(&place, "folder-run"));
    place.write("folder/d.csv", b"1,2,3\n");
    let ended = place.run(&format!("{DIGITS} --train folder --steps 1 -o wrong"));
    expect![[r#"
        error: `folder/d.csv` is damaged or not supported: its columns differ from the columns of `folder/a.csv`
    "#]]
    .assert_eq(&ended.errors());
    place.write("folder/d.csv", format!("{}\nx{}\n", lines[0], lines[1]).as_bytes());
    let ended = place.run(&format!("{DIGITS} --train folder --steps 1 -o wrong"));
    expect![[r#"
        error: `folder/d.csv`, line 2: column 1, which feeds `x`, is `x0`, which is not a number
    "#]]
    .assert_eq(&ended.errors());
}

#[test]
fn labels_that_a_model_of_its_own_loss_does_not_count_are_data() {
    let place = Workplace::new(TRAINYARD);
    // Some of its labels are -100, and the weights of the classes are looked up by the labels.
    let model = "compile testdata/models/weighted-loss.dynamo.onnx --microbatch 8 --steps 1 --decay all";
    place.succeed(&format!(
        "{model} --train testdata/models/weighted-loss.train.npz --input x=input.x -o run"
    ));
    let reference: serde_json::Value =
        serde_json::from_slice(&place.read("testdata/models/weighted-loss.train.json")).expect("it is JSON");
    let expected = reference["loss_f32"].as_f64().expect("a number");
    assert!(
        (losses(&place, "run")[0] - expected).abs() < 1e-6,
        "{:?}, not {expected}",
        losses(&place, "run")
    );
}

#[test]
fn a_run_goes_on_with_all_of_its_data_and_with_no_other() {
    let place = Workplace::with_text(TRAINYARD, 100_000);
    let flags = "compile testdata/gpt2-fresh.onnx --microbatch 8 --lr 2e-3";
    place.succeed(&format!("{flags} --train text.txt --steps 2 -o run"));
    // The first and the last 3 % of the text stay. The letters keep an order that the model can learn.
    let mut other = place.read("text.txt");
    other[3_000..97_000].reverse();
    place.write("other.txt", &other);
    let ended = place.run(&format!("{flags} --train other.txt --steps 3 -o run --resume"));
    assert!(ended.errors().contains("belongs to a run with other data: 100000 bytes"), "{}", ended.stderr);
    assert_eq!(ended.status.code(), Some(2));
    place.write("copy.txt", &place.read("text.txt"));
    let copy = std::fs::File::options().write(true).open(place.path("copy.txt")).expect("it is there");
    copy.set_modified(std::time::UNIX_EPOCH).expect("it is ours");
    place.succeed(&format!("{flags} --train copy.txt --steps 3 -o run --resume"));
    place.succeed(&format!("{flags} --train text.txt --steps 4 -o run --resume"));
    assert_eq!(place.metrics("run").len(), 4);
}

#[test]
fn a_file_that_feeds_one_input_is_data_that_a_run_goes_on_with() {
    let place = Workplace::new(TRAINYARD);
    let packed = place.read("testdata/digits.csv.gz");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&packed[..]), &mut text)
        .expect("it is text");
    let labels: Vec<&str> = text.lines().map(|line| line.rsplit(',').next().expect("a label")).collect();
    place.write("labels.csv", labels.join("\n").as_bytes());
    let flags = "--train testdata/digits.csv.gz --input x=1-64 --input labels=labels.csv --microbatch 32";
    place.succeed(&format!("{DIGITS} {flags} --steps 2 -o run"));
    place.succeed(&format!("{DIGITS} {flags} --steps 3 -o run --resume"));
    let reversed: Vec<&str> = labels.into_iter().rev().collect();
    place.write("labels.csv", reversed.join("\n").as_bytes());
    let ended = place.run(&format!("{DIGITS} {flags} --steps 4 -o run --resume"));
    assert!(ended.errors().contains("belongs to a run with other data"), "{}", ended.stderr);
    assert_eq!(ended.status.code(), Some(2));
}
