//! Labels in the data: the labels that the loader shifts, and the choice that a run keeps.

use crate::TRAINYARD;
use ir::interp::{self, Missing, Mode};
use ir::{Module, Tensor};
use passes::Manager;
use passes::loss::{Loss, LossKind};
use std::collections::BTreeMap;
use testing::models::done;
use testing::workplace::Workplace;
use trainyard::compilation::Source;
use trainyard::feed;
use trainyard::pipeline::CompilationPlan;

/// A model of testdata, compiled up to the cross-entropy that the compiler adds.
fn forward(file: &str) -> Module {
    let sizes = [("batch".to_owned(), 2)].into();
    let source = done(Source::load(&testing::testdata(file), &sizes));
    let loss = Loss { kind: LossKind::CrossEntropy, ..Loss::default() };
    let plan = CompilationPlan { loss, ..CompilationPlan::default() };
    done(source.forward(&plan, &Manager::default(), |_, _, _| {})).module
}

/// Whether a later token changes the logits of an earlier position. The interpreter runs the program.
fn looks_ahead(module: &Module, tokens: &str) -> bool {
    let mut microbatch: BTreeMap<String, Tensor> = module
        .inputs
        .iter()
        .map(|input| {
            let ty = module.ty(input.value);
            let sizes: Vec<usize> =
                ty.sizes().expect("bound").into_iter().map(|size| size as usize).collect();
            let count = sizes.iter().product::<usize>();
            let numbers = |i: usize| (i * 7 % 11) as i64;
            let tensor = match ty.dtype {
                ir::DType::Bool => Tensor::bool(sizes, vec![true; count]),
                dtype if dtype.is_float() => Tensor::float(dtype, sizes, vec![1.0; count]),
                dtype if input.name == tokens || input.name == "labels" => {
                    Tensor::int(dtype, sizes, (0..count).map(numbers).collect())
                }
                dtype => Tensor::int(dtype, sizes, vec![1; count]),
            };
            (input.name.clone(), tensor)
        })
        .collect();
    let mut states = interp::initial_states(module, 0, Missing::Draw).expect("they can be made");
    let mut logits = |microbatch: &BTreeMap<String, Tensor>| {
        let outputs = interp::step(module, Mode::Exact, &mut states, std::slice::from_ref(microbatch))
            .expect("it runs");
        let output = outputs.iter().find(|(name, _)| name.contains("logits") || name.contains("out"));
        output.unwrap_or_else(|| panic!("{:?}", outputs.keys())).1[0].numbers()
    };
    let before = logits(&microbatch);
    let [batch, sequence] = microbatch[tokens].sizes[..] else { panic!("tokens have two dims") };
    let place = sequence / 2;
    let mut changed = microbatch[tokens].ints().to_vec();
    (place..sequence).for_each(|i| changed[i] = (changed[i] + 3) % 11);
    let dtype = microbatch[tokens].dtype;
    microbatch.insert(tokens.into(), Tensor::int(dtype, vec![batch, sequence], changed));
    let after = logits(&microbatch);
    let early = before.len() / batch / sequence * place;
    before[..early].iter().zip(&after).any(|(before, after)| (before - after).abs() > 1e-9)
}

#[test]
fn a_program_predicts_the_next_token_where_the_interpreter_finds_that_it_does_not_look_ahead() {
    let models = [
        ("models/gpt2.dynamo.onnx", true),
        ("models/gpt2.dynamo-noopt.onnx", true),
        ("models/gpt2.dynamo-op23.onnx", true),
        ("models/gpt2.legacy-mask.onnx", true),
        ("models/llama.dynamo.onnx", true),
        ("models/llama.dynamo-op23.onnx", true),
        ("models/llama.legacy-mask.onnx", true),
        ("models/mixtral.dynamo.onnx", true),
        ("models/bert.dynamo.onnx", false),
        ("gpt2-fresh.onnx", true),
    ];
    for (file, is_causal) in models {
        let module = forward(file);
        assert_eq!(looks_ahead(&module, "input_ids"), !is_causal, "{file}, by the interpreter");
        assert_eq!(feed::predicts_next(&module, "input_ids"), is_causal, "{file}");
    }
}

/// The command of the runs below, which train on labels in the data.
const RUN: &str = "compile testdata/gpt2-fresh.onnx --microbatch 2 --steps 2 --lr 1e-3 --threads 1 --train";

/// Records with the tokens of `text.txt`, and labels made of them; the labels of the first 3 tokens do not count.
fn records(place: &Workplace, label: impl Fn(&[u8], usize) -> i64) -> Vec<u8> {
    let (text, sequence) = (place.read("text.txt"), 16);
    let rows = text.chunks_exact(sequence + 1).take(20).map(|row| {
        let labels: Vec<i64> = (0..sequence).map(|i| if i < 3 { -100 } else { label(row, i) }).collect();
        format!("{{\"input_ids\": {:?}, \"labels\": {labels:?}}}\n", &row[..sequence])
    });
    rows.collect::<String>().into_bytes()
}

fn place() -> Workplace {
    let place = Workplace::with_text(TRAINYARD, 4000);
    place.write("same.jsonl", &records(&place, |row, i| row[i].into()));
    place.write("next.jsonl", &records(&place, |row, i| if i < 15 { row[i + 1].into() } else { -100 }));
    place
}

fn losses(place: &Workplace, run: &str) -> Vec<f64> {
    place.metrics(run).iter().map(|line| line["loss"].as_f64().expect("a loss")).collect()
}

const SHIFTED: &str =
    "note: all labels that count equal `input_ids` at the same place, so the loader shifts them";

#[test]
fn labels_that_equal_the_tokens_are_shifted_and_the_run_keeps_that() {
    let place = place();
    let ended = place.succeed(&format!("{RUN} same.jsonl --eval same.jsonl -o run"));
    assert!(ended.stderr.contains(SHIFTED), "{}", ended.stderr);
    let config = String::from_utf8(place.read("run/config.toml")).expect("it is text");
    assert!(config.contains("labels-from = \"shift\""), "{config}");
    let checkpoint =
        String::from_utf8(place.read("run/checkpoints/step-2/checkpoint.json")).expect("it is text");
    assert!(checkpoint.contains("\"labels_from\": \"shift\""), "{checkpoint}");
    let asked = place.succeed(&format!("{RUN} same.jsonl --eval same.jsonl --labels-from shift -o asked"));
    assert!(!asked.stderr.contains("equal `input_ids`"), "{}", asked.stderr);
    assert_eq!(losses(&place, "run"), losses(&place, "asked"));
    // The numbers are those of labels that were shifted in the data: the first label that counts is lost.
    let next = place.succeed(&format!("{RUN} next.jsonl --eval next.jsonl -o next"));
    assert!(!next.stderr.contains("equal `input_ids`"), "{}", next.stderr);
    let given = place.succeed(&format!("{RUN} same.jsonl --labels-from given -o given"));
    assert!(!given.stderr.contains("equal `input_ids`"), "{}", given.stderr);
    let (run, given) = (losses(&place, "run"), losses(&place, "given"));
    assert!(run[0] != given[0], "{run:?} and {given:?}");
    // Evaluation data in the other convention change nothing in a resumed run.
    let more = RUN.replace("--steps 2", "--steps 4");
    let resumed = place.succeed(&format!("{more} same.jsonl --eval next.jsonl --resume -o run"));
    assert!(!resumed.stderr.contains("labels-from"), "{}", resumed.stderr);
    place.succeed(&format!("{more} same.jsonl --labels-from shift -o whole"));
    assert_eq!(losses(&place, "run"), losses(&place, "whole"));
}

#[test]
fn a_run_that_began_with_labels_as_they_are_goes_on_with_them() {
    let place = place();
    place.succeed(&format!("{RUN} same.jsonl --labels-from given -o run"));
    let more = RUN.replace("--steps 2", "--steps 4");
    let ended = place.succeed(&format!("{more} same.jsonl --resume -o run"));
    assert!(ended.stderr.contains("this run began to train on them as they are"), "{}", ended.stderr);
    place.succeed(&format!("{more} same.jsonl --labels-from given -o whole"));
    assert_eq!(losses(&place, "run"), losses(&place, "whole"));
}

#[test]
fn labels_of_an_encoder_and_of_a_file_with_its_own_loss_are_not_shifted() {
    let place = place();
    let small = |name: &str, sequence: usize| {
        let row: Vec<usize> = (0..sequence).map(|i| i % 7).collect();
        let more = "\"token_type_ids\": ".to_owned() + &format!("{:?}", vec![0; sequence]);
        let record = format!("{{\"input_ids\": {row:?}, \"labels\": {row:?}, {more}}}\n");
        place.write(name, record.repeat(4).as_bytes());
    };
    small("rows.jsonl", 32);
    let bert = "compile testdata/models/bert.dynamo.onnx --microbatch 2 --steps 1 --loss cross-entropy --train rows.jsonl";
    let ended = place.succeed(&format!("{bert} -o bert"));
    assert!(
        ended.stderr.contains("the loader does not shift them, since the outputs depend on later positions"),
        "{}",
        ended.stderr
    );
    place.succeed(&format!("{bert} --labels-from given -o given"));
    assert_eq!(losses(&place, "bert"), losses(&place, "given"));
    let own = "compile testdata/models/gpt2-loss.dynamo.onnx --microbatch 2 --steps 1 --train rows.jsonl";
    let ended = place.succeed(&format!("{own} -o own"));
    assert!(!ended.stderr.contains("equal `"), "{}", ended.stderr);
    place.succeed(&format!("{own} --labels-from given -o own-given"));
    assert_eq!(losses(&place, "own"), losses(&place, "own-given"));
}
