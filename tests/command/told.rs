//! The messages of a compilation, and the dumped programs.

use crate::TRAINYARD;
use expect_test::expect;
use onnx::proto::ModelProto;
use prost::Message;
use std::fs;
use testing::workplace::Workplace;

const MODEL: &str = "testdata/models/mlp.legacy.onnx";

#[test]
fn programs_that_are_dumped_stand_in_the_order_of_all_passes() {
    let place = Workplace::new(TRAINYARD);
    place.succeed(&format!("compile {MODEL} -o out --dump passes"));
    let mut names: Vec<String> = fs::read_dir(place.path("passes"))
        .expect("there are programs")
        .map(|entry| entry.expect("it can be read").file_name().into_string().expect("plain text"))
        .collect();
    names.sort();
    let plan: serde_json::Value = serde_json::from_slice(&place.read("out/plan.json")).expect("JSON");
    let pipeline = plan["pipeline"].as_str().expect("it has a pipeline");
    // The options of a pass stand in brackets, and may have spaces.
    let mut depth = 0;
    let names_alone: String = pipeline
        .chars()
        .filter(|&c| {
            depth += i32::from(c == '(');
            let inside = depth > 0;
            depth -= i32::from(c == ')');
            !inside
        })
        .collect();
    // The evaluation is made from the step, and the step is lowered with the outputs that are read.
    let passes = names_alone.split_whitespace().chain(["evaluation", "keep"]);
    let expected: Vec<String> =
        passes.enumerate().map(|(number, pass)| format!("{number:02}-{pass}.ir")).collect();
    assert!(expected.len() > 8, "{pipeline}");
    assert_eq!(names, expected);
}

#[test]
fn small_memory_is_told_in_a_small_unit() {
    let place = Workplace::new(TRAINYARD);
    let ended = place.succeed(&format!("compile {MODEL} -o out"));
    let line = ended.stderr.lines().find(|line| line.starts_with("memory: ")).expect("a line of memory");
    assert!(line.contains(" KiB planned (") && !line.contains("0.0"), "{line}");
}

#[test]
fn nobody_is_told_of_a_driver_who_has_not_asked_for_a_gpu() {
    let place = Workplace::new(TRAINYARD);
    let ended = place.succeed(&format!("compile {MODEL} --train synthetic --steps 1 -o out"));
    let line = ended.stderr.lines().find(|line| line.starts_with("device: ")).expect("a line of the device");
    assert!(line == "device: cpu" || line.starts_with("device: cpu; --device cuda trains on the "), "{line}");
}

#[test]
fn where_the_set_of_trained_tensors_comes_from_is_told() {
    let place = Workplace::new(TRAINYARD);
    let line = |model: &str| {
        let ended = place.succeed(&format!("compile {model} -o out --force"));
        let line = ended.stderr.lines().find(|line| line.starts_with("trained: ")).map(str::to_owned);
        line.expect("a line of the trained tensors")
    };
    let by_names = "trained: 6 of the 6 float tensors that the model reads; 6 by their names and how the \
                    graph reads them; the file does not list its parameters: a buffer that is used as a parameter is trained too";
    assert_eq!(line(MODEL), by_names);
    let listed = line("testdata/models/mlp.dynamo.onnx");
    assert_eq!(
        listed,
        "trained: 6 of the 6 float tensors that the model reads; 6 by the exporter's list of parameters"
    );
}

#[test]
fn a_constant_is_trained_if_it_is_asked_for_and_may_be_frozen() {
    let place = Workplace::new(TRAINYARD);
    let compile = |flags: &str| {
        place.run(&format!(
            "compile testdata/models/recorded-loss.dynamo.onnx --loss model -o out --force {flags}"
        ))
    };
    let asked = compile("--train-also val_14");
    assert!(asked.status.success() && asked.stderr.contains("1 by --train-also"), "{}", asked.stderr);
    assert!(compile("--freeze val_14").status.success());
    let refused = |flags: &str| compile(flags).errors();
    expect![[r#"
        error: --train-also: no float tensor of the file fits `val_99`
          = `trainyard inspect` lists all tensors, trained and not trained
    "#]]
    .assert_eq(&refused("--train-also val_99"));
    expect![[r#"
        error: no parameter matches `val_14`
          = `val_14` is not trained: not among the parameters that the exporter lists
    "#]]
    .assert_eq(&refused("--train-only val_14"));
}

/// The errors of a command that is refused.
#[track_caller]
fn refused(place: &Workplace, arguments: &str) -> String {
    let ended = place.run(arguments);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    ended.stderr
}

#[test]
fn dims_without_a_size_are_told_with_the_flags_that_bind_them() {
    let place = Workplace::new(TRAINYARD);
    let compile = refused(&place, "compile testdata/models/gpt2.dynamo-dyn.onnx -o out");
    expect![[r#"
        error: the model's inputs have dims without a size: `batch`, `seq`
          --> testdata/models/gpt2.dynamo-dyn.onnx
          = give each dim a size: --bind batch=SIZE,seq=SIZE
          = or --microbatch SIZE for `batch`, --seq SIZE for `seq`
    "#]]
    .assert_eq(&compile);
    let seq = refused(&place, "compile testdata/models/gpt2.dynamo-dyn.onnx -o out --microbatch 2");
    expect![[r#"
        error: the model's inputs have a dim without a size: `seq`
          --> testdata/models/gpt2.dynamo-dyn.onnx
          = give each dim a size: --bind seq=SIZE
          = or --seq SIZE for `seq`
    "#]]
    .assert_eq(&seq);
    let verify = refused(&place, "verify testdata/models/mlp.dynamo-dyn.onnx");
    expect![[r#"
        error: the model's inputs have a dim without a size: `batch`
          --> testdata/models/mlp.dynamo-dyn.onnx
          = give each dim a size: --bind batch=SIZE
          = or --microbatch SIZE for `batch`
    "#]]
    .assert_eq(&verify);
}

#[test]
fn a_graph_that_another_program_changed_is_told_by_every_command() {
    let place = Workplace::new(TRAINYARD);
    place.succeed(&format!("compile {MODEL} --train synthetic --steps 1 -o run"));
    let mut model = ModelProto::decode(&place.read("run/model.onnx")[..]).expect("a model");
    let graph = model.graph.as_mut().expect("a graph");
    graph.node[0].doc_string = Some("changed".into());
    place.write("changed.onnx", &model.encode_to_vec());
    let warning = "the graph has changed since the file was written";
    for command in ["compile changed.onnx -o out", "verify changed.onnx", "inspect changed.onnx"] {
        let ended = place.succeed(command);
        let told = format!("{}{}", ended.stdout, ended.stderr);
        assert_eq!(told.matches(warning).count(), 1, "{command}: {told}");
    }
}
