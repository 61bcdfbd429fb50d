//! `inspect DIR`: a folder that `compile` wrote, whole or damaged.

use expect_test::expect;
use trainyard::cli::{Cli, Command};

use super::{json, read, testdata};

#[test]
fn a_folder_that_compile_wrote_is_summed_up() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("run");
    let words = ["--train", "synthetic", "--steps", "3", "--save-every", "2", "-o"];
    let model = testdata().join("models/mlp.dynamo.onnx").display().to_string();
    let dir_text = dir.display().to_string();
    let words = ["trainyard", "compile", &model].into_iter().chain(words).chain([dir_text.as_str()]);
    let Ok(Cli { command: Command::Compile(compile), .. }) = Cli::parse_with_config(words) else {
        panic!("not a compile")
    };
    compile.run().expect("the model is trained");
    let text = read(&[&dir_text]);
    for line in
        ["6 parameters, 17,226 elements", "  run          3 steps; loss ", "result       model.onnx: "]
    {
        assert!(text.contains(line), "no `{line}` in\n{text}");
    }
    let found = json(&[&dir_text]);
    let steps: Vec<u64> = found["checkpoints"]
        .as_array()
        .expect("they are a list")
        .iter()
        .map(|checkpoint| checkpoint["step"].as_u64().expect("it is a number"))
        .collect();
    assert!(steps.ends_with(&[3]), "{steps:?}");
    assert_eq!((&found["run"]["steps"], &found["problems"]), (&3.into(), &serde_json::json!([])));
    std::fs::write(dir.join("program.ir"), "trainyard-ir 1\nmodule @").expect("it is written");
    std::fs::remove_file(dir.join("checkpoints/step-3/state.safetensors")).expect("it was there");
    let broken = json(&[&dir_text]);
    assert!(
        broken["problems"][0].as_str().is_some_and(|problem| problem.starts_with("program.ir: ")),
        "{broken:#}"
    );
    let last = broken["checkpoints"].as_array().and_then(|all| all.last()).expect("there is one");
    assert!(last["damaged"].is_string(), "{broken:#}");
}

#[test]
fn a_folder_of_something_else_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().display().to_string();
    let hidden = |arguments: &[&str]| read(arguments).replace(&path, "FOLDER");
    expect![[r#"
        error: FOLDER was not written by `compile`
          = the folder has no program.ir, config.toml, metrics.jsonl or checkpoints
    "#]]
    .assert_eq(&hidden(&[&path]));
    expect![[r#"
        error: --why needs a model, and FOLDER is a folder
          = give the model that was compiled into this folder
    "#]]
    .assert_eq(&hidden(&[&path, "--why", "x"]));
}
