//! `--format onnx`: a program as an ONNX file.

use onnx::proto::ModelProto;
use onnx::{ImportOptions, Model, import};

use super::{inspect, read};

fn model(arguments: &[&str]) -> ModelProto {
    let output = inspect(&[arguments, &["--format", "onnx"]].concat()).output().expect("a program");
    *output.model.expect("a model")
}

fn domains(model: &ModelProto) -> Vec<&str> {
    model.opset_import.iter().map(|opset| opset.domain()).collect()
}

#[test]
fn a_forward_program_is_a_model_of_standard_operators() {
    let written = model(&["models/mlp-loss.dynamo.onnx", "--after", "canonicalize"]);
    assert_eq!(domains(&written), [""]);
    assert!(written.configuration.is_empty());
    let read = Model::from_bytes(onnx::program::bytes(&written).into(), None).expect("the file is read");
    let imported = import(&read, &ImportOptions::default()).expect("the file is imported");
    assert!(!imported.module.outputs.is_empty());
}

#[test]
fn a_step_on_devices_has_its_mesh_and_its_own_operators() {
    let written = model(&["models/mlp-loss.dynamo.onnx", "--mesh", "dp=2"]);
    assert_eq!(domains(&written), ["", "trainyard"]);
    assert_eq!(written.configuration[0].num_devices(), 2);
    let graph = written.graph.expect("a graph");
    let is_own =
        |name: &str| graph.node.iter().any(|node| node.op_type() == name && node.domain() == "trainyard");
    assert!(is_own("all_reduce") && is_own("adam"));
    assert!(graph.output.iter().any(|output| output.name().ends_with(".next")));
}

#[test]
fn the_file_is_written_where_the_user_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mlp.written.onnx");
    let target = path.display().to_string();
    let flags = ["models/mlp.dynamo.onnx", "--after", "import", "--format", "onnx", "-o", &target];
    inspect(&flags).run().expect("the file is written");
    let written = Model::load(&path).expect("the file is read");
    assert_eq!(written.graph.outputs.len(), 1);
    let text = folder.path().join("mlp.ir");
    inspect(&["models/mlp.dynamo.onnx", "--after", "import", "-o", &text.display().to_string()])
        .run()
        .expect("the text is written");
    assert!(std::fs::read_to_string(text).expect("a text").starts_with("trainyard-ir"));
}

#[test]
fn answers_in_words_are_no_program() {
    let told = read(&["models/mlp.dynamo.onnx", "--why", "x", "--format", "onnx"]);
    assert!(told.contains("--format onnx writes a program"), "{told}");
}

#[test]
fn a_model_that_cannot_be_imported_leaves_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("none.onnx");
    let flags = ["odd/unknown-op.onnx", "--format", "onnx", "-o", &path.display().to_string()];
    inspect(&flags).run().expect_err("the reasons");
    assert!(!path.exists());
}
