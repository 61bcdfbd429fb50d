//! Names in files that control a terminal, forge a line, or reorder the text beside them.

use crate::TRAINYARD;
use std::process::Output;

use ir::visible::is_hidden;

use super::models::{File, node, value, weight};
use testing::workplace::Workplace;

/// A name that clears the screen, begins a line of its own, and reverses the text after it. Its letters must stay readable.
fn hostile(name: &str) -> String {
    format!("{name}\x1b[2J\nerror: injected {name}\r\u{202e}ö重\u{2066}\u{2028}\u{9b}")
}

/// A model all of whose names are hostile.
fn model() -> File {
    let [x, w, b, made, y, batch] = ["x", "w", "b", "made", "y", "batch"].map(hostile);
    let mut nodes = vec![node("MatMul", &[&x, &w], &made), node("Add", &[&made, &b], &y)];
    nodes.iter_mut().for_each(|node| node.name = Some(hostile("node")));
    File {
        nodes,
        tensors: vec![weight(&w, &[4, 3]), weight(&b, &[3])],
        input: value(&x, &[&batch, "4"]),
        output: value(&y, &[&batch, "3"]),
    }
}

/// Asserts that a stream has no hidden character except line breaks, and that no name begins a line.
#[track_caller]
fn harmless(what: &str, stream: &[u8]) {
    let text = std::str::from_utf8(stream).expect("what the binary says is UTF-8");
    let hidden = text.chars().find(|&c| c != '\n' && is_hidden(c));
    assert_eq!(hidden, None, "{what}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("error: injected")), "{what}: {text}");
}

#[track_caller]
fn run(place: &Workplace, arguments: &str, code: i32) -> Output {
    let output = place.command(arguments).output().expect("the binary can be started");
    harmless(arguments, &output.stdout);
    harmless(arguments, &output.stderr);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments}: {told}");
    output
}

#[test]
fn hostile_names_of_a_model_are_escaped_wherever_they_are_printed() {
    let place = Workplace::new(TRAINYARD);
    place.write("model.onnx", &model().bytes());
    let output = run(&place, "inspect model.onnx", 0);
    let text = String::from_utf8(output.stdout).expect("it is UTF-8");
    assert!(text.contains(r"w\u{1b}[2J\nerror: injected w\r\u{202e}ö重\u{2066}\u{2028}\u{9b}"), "{text}");
    run(&place, "inspect model.onnx --microbatch 2 --mesh dp=2", 0);
    run(&place, "inspect model.onnx --microbatch 2 --format json", 0);
    run(&place, "inspect model.onnx --microbatch 2 --format dot", 0);
    run(&place, "inspect model.onnx --microbatch 2 --target h200", 0);
    run(&place, "inspect model.onnx --microbatch 2 --after simplify", 0);
    run(&place, "inspect model.onnx --why nothing", 2);
    run(&place, "verify model.onnx --microbatch 2", 0);
    run(&place, "verify model.onnx --microbatch 2 --tolerance 1e-300 --mode cpu --bisect", 3);
    run(&place, "compile model.onnx", 2);
    run(&place, "compile model.onnx --microbatch 2 --print-after simplify -o plan", 0);
    run(&place, "compile model.onnx --microbatch 2 --train synthetic --steps 1 -o run", 0);
    run(&place, "compile model.onnx --microbatch 2 --train synthetic --lr 1e38 --steps 9 -o diverged", 2);
    run(&place, "inspect run", 0);
}

#[test]
fn hostile_names_leave_the_text_of_a_program_exact() {
    let place = Workplace::new(TRAINYARD);
    place.write("model.onnx", &model().bytes());
    run(&place, "compile model.onnx --microbatch 2 -o plan", 0);
    let text = place.read("plan/program.ir");
    harmless("program.ir", &text);
    let text = String::from_utf8(text).expect("a program is UTF-8");
    let module = ir::text::parse(&text).expect("what was printed can be parsed");
    assert!(module.input(&hostile("x")).is_some(), "{text}");
    assert_eq!(ir::text::print(&module), text);
}

#[test]
fn hostile_names_in_an_operator_that_is_not_known_are_escaped() {
    let place = Workplace::new(TRAINYARD);
    let mut file = model();
    file.nodes[1].op_type = Some(hostile("Op"));
    file.nodes[1].domain = Some(hostile("domain"));
    place.write("model.onnx", &file.bytes());
    run(&place, "inspect model.onnx", 2);
    run(&place, "compile model.onnx --microbatch 2", 2);
}

#[test]
fn hostile_names_of_columns_and_tensors_are_escaped() {
    let place = Workplace::new(TRAINYARD);
    place.write("model.onnx", &model().bytes());
    let column = hostile("column").replace(['\n', '\r'], "");
    place.write("table.csv", format!("{column},\"a\nerror: injected\u{1b}\"\n1,2\n3,4\n").as_bytes());
    run(&place, "compile model.onnx --microbatch 2 --train table.csv --steps 1 -o run", 2);
    let object = serde_json::json!({ hostile("field"): [1, 2], "x": hostile("value") });
    place.write("rows.jsonl", format!("{object}\n{object}\n").as_bytes());
    run(&place, "compile model.onnx --microbatch 2 --train rows.jsonl --steps 1 -o run", 2);
    let bytes = 0.5f32.to_le_bytes().repeat(12);
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![4, 3], &bytes);
    let tensors = [(hostile("w"), view.expect("the sizes fit"))];
    let file = safetensors::serialize(tensors, None).expect("it can be written");
    place.write("weights.safetensors", &file);
    run(&place, "verify model.onnx --microbatch 2 --weights weights.safetensors", 0);
    let bytes = 0.5f32.to_le_bytes().repeat(2);
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2], &bytes);
    let tensors = [(hostile("w"), view.expect("the sizes fit"))];
    let file = safetensors::serialize(tensors, None).expect("it can be written");
    place.write("weights.safetensors", &file);
    run(&place, "verify model.onnx --microbatch 2 --weights weights.safetensors", 2);
}

#[test]
fn hostile_keys_of_a_config_file_are_escaped() {
    let place = Workplace::new(TRAINYARD);
    place.write(
        "trainyard.toml",
        "\"steps\\u001b[2J\\nerror: injected\\u202e\" = 1\nlr = \"\\u001b\\u202e\"\n".as_bytes(),
    );
    run(&place, "compile testdata/gpt2-fresh.onnx --config trainyard.toml", 2);
}
