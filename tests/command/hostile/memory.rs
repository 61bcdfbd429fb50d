//! Models of a few hundred bytes that ask for more memory than any machine has.

use crate::TRAINYARD;
use onnx::proto::{AttributeProto, NodeProto, TensorProto};
use std::io::Write;

use super::models::{File, integers, node, value, weight};
use super::refused;
use testing::workplace::Workplace;

/// `y = mean over dim 0 of tanh(x · w stretched to [2^43, 2, 3])`: 422 TB in f64.
fn stretched() -> File {
    let nodes = vec![
        node("MatMul", &["x", "w"], "product"),
        node("Expand", &["product", "shape"], "wide"),
        node("Add", &["wide", "steps"], "moved"),
        node("Tanh", &["moved"], "bent"),
        node("ReduceMean", &["bent", "axis"], "y"),
    ];
    let tensors = vec![
        weight("w", &[4, 3]),
        weight("steps", &[1, 2, 3]),
        integers("shape", &[1 << 43, 2, 3]),
        integers("axis", &[0]),
    ];
    File { nodes, tensors, input: value("x", &["2", "4"]), output: value("y", &["1", "2", "3"]) }
}

/// `y = x · w`, whose x has 2^44 rows: 563 TB in f64.
fn tall() -> File {
    let tensors = vec![weight("w", &[4, 3])];
    let nodes = vec![node("MatMul", &["x", "w"], "y")];
    File {
        nodes,
        tensors,
        input: value("x", &["17592186044416", "4"]),
        output: value("y", &["17592186044416", "3"]),
    }
}

#[test]
fn verify_refuses_a_step_that_no_machine_holds_and_names_the_value() {
    let place = Workplace::new(TRAINYARD);
    place.write("stretched.onnx", &stretched().bytes());
    for mode in ["exact", "typed"] {
        let text = refused(&place.run(&format!("verify stretched.onnx --mode {mode}")));
        assert!(text.starts_with("error: a step of the program needs "), "{mode}: {text}");
        assert!(text.contains("iB of memory in the interpreter; this machine has "), "{mode}: {text}");
        assert!(text.contains("f32[8796093022208, 2, 3], which needs 384 TiB\n"), "{mode}: {text}");
        assert!(text.contains("  --> node \"/"), "{mode}: {text}");
    }
}

/// Numbers of another framework replace the reference, which would be interpreted. So only the device needs memory.
#[test]
fn verify_refuses_a_program_that_no_device_holds() {
    let place = Workplace::new(TRAINYARD);
    place.write("stretched.onnx", &stretched().bytes());
    place.write("numbers.npz", &npz(&[("input.x", "2, 4", 8), ("output.y", "1, 2, 3", 6)]));
    for (mode, device) in [("cpu", "this machine"), ("cuda", "the stand-in of a GPU")] {
        let text = refused(&place.run(&format!("verify stretched.onnx --against numbers.npz --mode {mode}")));
        assert!(text.starts_with("error: the program `g` needs "), "{mode}: {text}");
        assert!(text.contains(&format!("; {device} has ")), "{mode}: {text}");
        assert!(text.contains("the largest results of a microbatch: 192.0 TiB by `"), "{mode}: {text}");
    }
}

/// A file of f32 arrays of zeros, each with its name, its dims and its length.
fn npz(arrays: &[(&str, &str, usize)]) -> Vec<u8> {
    let mut file = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, dims, length) in arrays {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({dims}), }}\n");
        let mut array = b"\x93NUMPY\x01\x00".to_vec();
        array.extend((header.len() as u16).to_le_bytes());
        array.extend(header.bytes());
        array.resize(array.len() + 4 * length, 0);
        let stored =
            zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        file.start_file(format!("{name}.npy"), stored).expect("the name is new");
        file.write_all(&array).expect("it is in memory");
    }
    file.finish().expect("it is in memory").into_inner()
}

#[test]
fn verify_refuses_inputs_that_no_machine_holds() {
    let place = Workplace::new(TRAINYARD);
    place.write("tall.onnx", &tall().bytes());
    let text = refused(&place.run("verify tall.onnx"));
    assert!(text.contains("of which `x` is f32[17592186044416, 4], need 640 TiB"), "{text}");
}

#[test]
fn compile_refuses_a_program_that_no_machine_holds_and_names_the_value() {
    let place = Workplace::new(TRAINYARD);
    place.write("stretched.onnx", &stretched().bytes());
    let before = place.contents();
    let text = refused(&place.run("compile stretched.onnx --train synthetic --steps 1 -o run"));
    assert!(before == place.contents(), "it left {:?}", place.contents().keys());
    assert!(text.starts_with("error: the program `g` needs "), "{text}");
    assert!(text.contains("; this machine has "), "{text}");
    assert!(text.contains("the largest results of a microbatch: 192.0 TiB by `"), "{text}");
    // Commands that do not run the program need little memory.
    place.succeed("compile stretched.onnx -o plan");
    place.succeed("inspect stretched.onnx");
}

#[test]
fn a_program_in_text_that_no_machine_holds_is_not_interpreted() {
    let place = Workplace::new(TRAINYARD);
    place.write("stretched.onnx", &stretched().bytes());
    place.succeed("compile stretched.onnx -o plan");
    let ended = place.command("opt plan/program.ir --run").args(["--pipeline", ""]).output();
    let text = refused(&super::Ended::of(ended.expect("the binary can be started")));
    assert!(text.starts_with("error: a step of the program needs "), "{text}");
    assert!(text.contains("which needs 384 TiB\n"), "{text}");
}

/// A scalar of integers.
fn scalar(name: &str, number: i64) -> TensorProto {
    TensorProto { dims: vec![], ..integers(name, &[number]) }
}

#[test]
fn numbers_that_no_memory_holds_are_refused() {
    let nodes = vec![
        node("Range", &["first", "last", "step"], "range"),
        NodeProto {
            attribute: vec![AttributeProto {
                name: Some("to".into()),
                i: Some(1),
                r#type: Some(2),
                ..AttributeProto::default()
            }],
            ..node("Cast", &["range"], "floats")
        },
        node("ReduceMax", &["floats"], "largest"),
        node("MatMul", &["x", "w"], "product"),
        node("Mul", &["product", "largest"], "y"),
    ];
    let tensors =
        vec![weight("w", &[4, 3]), scalar("first", 0), scalar("last", 1_000_000_000_000), scalar("step", 1)];
    let place = Workplace::new(TRAINYARD);
    let file = File { nodes, tensors, input: value("x", &["2", "4"]), output: value("y", &["2", "3"]) };
    place.write("range.onnx", &file.bytes());
    for command in ["inspect range.onnx", "compile range.onnx --loss mse --train synthetic --steps 1 -o run"]
    {
        let ended = place.run(command);
        assert!(matches!(ended.status.code(), Some(0 | 2)), "{command}: {}", ended.stderr);
    }
    let text = refused(&place.run("compile range.onnx --loss mse --train synthetic --steps 1 -o run"));
    assert!(text.contains("of memory; this machine has "), "{text}");
}

#[test]
fn a_type_of_more_bytes_than_numbers_count_is_refused_where_it_is_made() {
    let nodes = vec![node("MatMul", &["x", "w"], "product"), node("Expand", &["product", "shape"], "y")];
    let tensors = vec![weight("w", &[4, 3]), integers("shape", &[1 << 43, 1 << 43, 2, 3])];
    let place = Workplace::new(TRAINYARD);
    let file = File { nodes, tensors, input: value("x", &["2", "4"]), output: value("y", &["2", "3"]) };
    place.write("wide.onnx", &file.bytes());
    for command in ["inspect wide.onnx", "verify wide.onnx", "compile wide.onnx"] {
        let text = refused(&place.run(command));
        assert!(text.contains("is larger than any memory"), "{command}: {text}");
    }
}
