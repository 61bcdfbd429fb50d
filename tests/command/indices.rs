//! Indices outside of the dim that they index. The compiler refuses a constant index. The run finds an index that is computed from data.

use crate::TRAINYARD;
use crate::hostile::models::{File, integers, node, value, weight};
use onnx::proto::ValueInfoProto;
use testing::workplace::Workplace;

const I64: i32 = 7;

/// The mean of rows of a table of 10 rows, and logits of 3 classes. The indices of the rows are the ids plus a constant.
fn classifier(moved_by: i64) -> File {
    let nodes = vec![
        node("Add", &["x", "by"], "ids"),
        node("Gather", &["table", "ids"], "rows"),
        node("ReduceMean", &["rows", "axis"], "mean"),
        node("MatMul", &["mean", "w"], "logits"),
    ];
    let tensors = vec![
        weight("table", &[10, 6]),
        weight("w", &[6, 3]),
        integers("by", &[moved_by]),
        integers("axis", &[1]),
    ];
    File { nodes, tensors, input: ids("x", &["4", "5"]), output: value("logits", &["4", "1", "3"]) }
}

/// An input of integers.
fn ids(name: &str, dims: &[&str]) -> ValueInfoProto {
    let mut input = value(name, dims);
    let ty = input.r#type.as_mut().and_then(|ty| ty.value.as_mut());
    let Some(onnx::proto::TypeProtoValue::TensorType(tensor)) = ty else { panic!("it is a tensor") };
    tensor.elem_type = Some(I64);
    input
}

/// Samples of five ids. Sample `sample` has `id` in its middle.
fn place(file: File, sample: usize, id: i64) -> Workplace {
    let place = Workplace::new(TRAINYARD);
    let ids = |at: usize| if at == sample { [0, 1, id, 3, 4] } else { [0, 1, 2, 3, 4] };
    let line = |at: usize| format!("{{\"x\": {:?}, \"labels\": [{}]}}\n", ids(at), at % 3);
    place.write("model.onnx", &file.bytes());
    place.write("data.jsonl", (0..12).map(line).collect::<String>().as_bytes());
    place
}

const TRAIN: &str =
    "compile model.onnx --train data.jsonl --loss cross-entropy --optimizer sgd --steps 3 -o run --force";

#[test]
fn a_computed_index_outside_of_its_table_ends_the_run_with_its_sample() {
    for flags in [
        "",
        "--microbatch 2 --global-batch 4",
        "--mesh dp=2",
        "--mesh tp=2",
        "--mesh pp=2 --microbatch 2 --global-batch 4",
    ] {
        let ended = place(classifier(2), 9, 9).run(&format!("{TRAIN} {flags}"));
        assert_eq!(ended.status.code(), Some(2), "{flags}: {}", ended.stderr);
        let text = ended.errors();
        assert!(text.contains("index 11 is outside of a dim of 10 of `table` f32[10, 6]"), "{flags}: {text}");
        assert!(text.contains("in sample 9 of `data.jsonl`, counted from 0"), "{flags}: {text}");
    }
}

/// Negative indices count from the end.
#[test]
fn computed_indices_inside_of_their_table_are_trained() {
    place(classifier(2), 9, 7).succeed(TRAIN);
    place(classifier(-8), 9, 9).succeed(TRAIN);
}

#[test]
fn an_evaluation_names_its_sample_too() {
    let place = place(classifier(2), 12, 0);
    let line =
        |at: usize| format!("{{\"x\": [0, 1, {}, 3, 4], \"labels\": [0]}}\n", if at == 5 { -14 } else { 0 });
    place.write("eval.jsonl", (0..8).map(line).collect::<String>().as_bytes());
    let ended = place.run(&format!("{TRAIN} --eval eval.jsonl"));
    let text = ended.errors();
    assert_eq!(ended.status.code(), Some(2), "{text}");
    assert!(text.contains("index -12 is outside of a dim of 10 of `table`"), "{text}");
    assert!(text.contains("in sample 5 of `eval.jsonl`"), "{text}");
}

#[test]
fn constant_positions_beyond_their_table_are_refused_by_every_command() {
    let positions: Vec<i64> = (0..5).collect();
    let nodes = vec![
        node("Gather", &["table", "x"], "rows"),
        node("Gather", &["places", "positions"], "at"),
        node("Add", &["rows", "at"], "sum"),
        node("MatMul", &["sum", "w"], "logits"),
    ];
    let tensors = vec![
        weight("table", &[10, 6]),
        weight("places", &[4, 6]),
        weight("w", &[6, 3]),
        integers("positions", &positions),
    ];
    let file =
        File { nodes, tensors, input: ids("x", &["4", "5"]), output: value("logits", &["4", "5", "3"]) };
    let place = place(file, 12, 0);
    for command in ["inspect model.onnx", "verify model.onnx", "compile model.onnx --train data.jsonl -o run"]
    {
        let ended = place.run(command);
        assert_eq!(ended.status.code(), Some(2), "{command}: {}", ended.stderr);
        let output = place.command(command).output().expect("the binary runs");
        let text = ended.stderr + &String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("index 4 is outside of a dim of 4 of `places` f32[4, 6]"), "{command}: {text}");
    }
}
