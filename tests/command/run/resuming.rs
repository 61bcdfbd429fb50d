//! The step at which a run resumes: a chosen checkpoint, or step 0 if there is none yet. The flags may have changed.

use expect_test::expect;

use super::{RUN, assert_same, place, refused, whole};
use testing::running::Running;
use testing::workplace::Ended;

/// The notes of a resumed run on its flags and its checkpoint.
fn notes(ended: &Ended) -> Vec<&str> {
    let about = ["note: the run in ", "note: the learning-rate schedule of the run in "];
    ended.stderr.lines().filter(|line| about.iter().any(|start| line.starts_with(start))).collect()
}

#[test]
fn a_run_goes_on_from_a_chosen_checkpoint() {
    let place = whole();
    let flags = format!("{RUN} --microbatch 64 --steps 20");
    place.succeed(&format!("{flags} --save-every 6 -o run"));
    assert_eq!(place.checkpoints("run"), [6, 12, 18, 20]);
    let before = place.contents();
    refused(
        &place.run(&format!("{flags} -o run --resume=run@7")),
        expect![[r#"
        error: `run/checkpoints` has no checkpoint of step 7; it has the checkpoints of the steps 6, 12, 18 and 20
    "#]],
    );
    refused(
        &place.run(&format!("{flags} -o other --resume=nothing@7")),
        expect![[r#"
        error: `nothing/checkpoints` has no checkpoint of step 7, and no other checkpoint
    "#]],
    );
    refused(
        &place.run(&format!("{flags} -o run --resume=@12")),
        expect![[r#"
        error: the run in run has later checkpoints than the one to resume from: steps 18, 20
          = to delete the later checkpoints: --force
          = to keep them: -o ANOTHER_DIR
    "#]],
    );
    assert!(before == place.contents(), "a refused run changes nothing");

    // In another folder, the resumed run leaves the files of the first run as they are. In its own folder, it removes later checkpoints.
    place.succeed(&format!("{flags} -o other --resume=run@12"));
    assert_eq!((place.checkpoints("other"), place.metrics("other").len()), (vec![20], 8));
    assert_eq!(place.read("other/model.onnx"), place.read("whole/model.onnx"));
    assert_eq!(place.checkpoints("run"), [6, 12, 18, 20]);
    place.succeed(&format!("{flags} -o run --resume=@12 --force"));
    assert_eq!(place.checkpoints("run"), [6, 12, 20]);
    assert_same(&place, "run", "whole");

    // A length that is refused removes no checkpoint.
    let before = place.contents();
    let ended =
        place.run(&format!("{flags} -o run --resume=@12 --force").replace("--steps 20", "--steps 10"));
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(before == place.contents(), "a refused run changes nothing");
}

#[test]
fn a_folder_whose_name_looks_like_a_step_is_meant_itself() {
    let place = place();
    let flags = format!("{RUN} --microbatch 64");
    place.succeed(&format!("{flags} --steps 3 --save-every 2 -o run@2"));
    place.succeed(&format!("{flags} --steps 4 -o last --resume=run@2"));
    assert_eq!(place.metrics("last")[0]["step"], 4);
    place.succeed(&format!("{flags} --steps 4 -o second --resume=run@2@2"));
    assert_eq!(place.metrics("second")[0]["step"], 3);
    place.succeed(&format!("{flags} --steps 4 -o run@2 --resume"));
    assert_eq!(place.checkpoints("run@2"), [2, 3, 4]);
}

/// A job scheduler repeats its command, also after a failure.
#[test]
fn a_repeated_command_begins_where_there_is_no_checkpoint_yet() {
    let place = whole();
    let flags = format!("{RUN} --microbatch 64 --steps 20 -o run --resume");
    // The run is so long that it is killed before its end. The repeated command may have another length.
    let mut running = Running::start(place.command(&flags.replace("--steps 20", "--steps 2000")));
    running.wait_for_steps(&place.path("run/metrics.jsonl"), 3);
    running.kill();
    assert_eq!(place.checkpoints("run"), Vec::<u64>::new());
    // A killed run leaves its lock file, and the next command removes it.
    std::fs::remove_file(place.path("run/.lock")).expect("the killed run had the folder");
    let begun = place.contents();

    // Another command or another model is refused.
    refused(
        &place.run(&flags.replace("--lr 2e-3", "--lr 1e-3").replace("--clip 1", "--freeze wte*")),
        expect![[r#"
            error: run has no checkpoint to resume from, and its run was started with other flags
              = the earlier run had --lr 0.002, and this command has --lr 0.001
              = the earlier run had --clip 1.0, and this command has no --clip
              = the earlier run had no --freeze, and this command has --freeze wte*
              = give the flags of the earlier run; to start from step 0: --force instead of --resume, or another folder with -o ANOTHER_DIR
        "#]],
    );
    refused(
        &place.run(&flags.replace("gpt2-fresh", "gpt2-bytes")),
        expect![[r#"
            error: run has no checkpoint to resume from, and its run was started with another model
              = to start from step 0: --force instead of --resume, or another folder with -o ANOTHER_DIR
        "#]],
    );
    assert!(begun == place.contents(), "a refused run changes nothing");

    let ended = place.succeed(&format!("{flags} --save-every 8"));
    let told = notes(&ended);
    assert!(
        told[0].starts_with("note: the run in run has no checkpoint yet: it starts at step 0, and repeats "),
        "{told:?}"
    );
    assert_same(&place, "run", "whole");
    assert_eq!(place.checkpoints("run"), [8, 16, 20]);
    let ended = place.succeed(&flags);
    assert_eq!(
        notes(&ended),
        ["note: the run in run is at step 20, and --steps 20 ends there: no step is left"]
    );

    // A folder with a result and without a checkpoint is not a run that just began.
    std::fs::remove_dir_all(place.path("run/checkpoints")).expect("it is there");
    let before = place.contents();
    refused(
        &place.run(&flags),
        expect![[r#"
        error: run has no checkpoint to resume from, and it holds a trained model, model.onnx
          = to start from step 0: --force instead of --resume, or another folder with -o ANOTHER_DIR
    "#]],
    );
    assert!(before == place.contents(), "a refused run changes nothing");
}

#[test]
fn a_run_that_goes_on_with_other_flags_says_so() {
    let place = place();
    place.succeed(&format!("{RUN} --microbatch 64 --steps 2 -o run"));
    let flags = RUN.replace("--lr 2e-3", "--lr 1e-3").replace("--clip 1", "--label-smoothing 0.1");
    let ended = place.succeed(&format!("{flags} --microbatch 32 --steps 3 -o run --resume"));
    assert_eq!(
        notes(&ended),
        [
            "note: the run in run had --lr 0.002, and it continues with --lr 0.001",
            "note: the run in run had --clip 1.0, and it continues with no --clip",
            "note: the run in run had --label-smoothing 0.0, and it continues with --label-smoothing 0.1",
        ]
    );
    let ended = place.succeed(&format!("{flags} --microbatch 32 --steps 4 --device cpu -o run --resume"));
    assert!(!ended.stderr.contains("note: the run in run"), "{}", ended.stderr);
    // As if the run had been on a processor with AMX.
    let config = String::from_utf8(place.read("run/config.toml")).expect("it is text");
    place.write("run/config.toml", config.replace("device = \"cpu\"", "device = \"cpu-amx\"").as_bytes());
    let ended = place.succeed(&format!("{flags} --microbatch 32 --steps 5 -o run --resume"));
    assert_eq!(
        notes(&ended),
        ["note: the run in run had --device cpu-amx, and it continues with --device cpu"]
    );
}

#[test]
fn every_changed_flag_of_a_step_is_told() {
    let place = place();
    let run = |optimizer: &str, rest: &str, steps: u64, out: &str| {
        let command = "compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 64 --optimizer";
        place.succeed(&format!("{command} {optimizer} {rest} --steps {steps} {out}"))
    };
    run("adamw:beta1=0.8", "--lr-schedule cosine:warmup=1 --eval text.txt", 2, "-o adam");
    place.write("eval.txt", &place.read("text.txt")[..4000]);
    let ended = run(
        "adamw:beta1=0.85,beta2=0.95,eps=1e-6",
        "--weight-decay 0.2 --decay all --lr-schedule cosine:warmup=2,min=1e-5 --group *.bias:lr=2 --ignore-index -1 \
         --eval eval.txt",
        4,
        "-o other --resume=adam",
    );
    expect![[r#"
        note: the run in adam had --optimizer adamw:beta1=0.8,beta2=0.999,eps=1e-8, and it continues with --optimizer adamw:beta1=0.85,beta2=0.95,eps=1e-6
        note: the run in adam had --lr-schedule cosine:warmup=1,min=0.0, and it continues with --lr-schedule cosine:warmup=2,min=1e-5
        note: the run in adam had no --weight-decay, and it continues with --weight-decay 0.2
        note: the run in adam had --decay matrices, and it continues with --decay all
        note: the run in adam had no --group, and it continues with --group *.bias:lr=2.0
        note: the run in adam had no --ignore-index, and it continues with --ignore-index -1
        note: the run in adam had --eval text.txt, and it continues with --eval eval.txt"#]].assert_eq(&notes(&ended).join("\n"));
    // The schedule ends with the run.
    let ended =
        run("adamw:beta1=0.8", "--lr-schedule cosine:warmup=1 --eval text.txt", 4, "-o adam --resume");
    expect![[r#"
        note: the learning-rate schedule of the run in adam ended with --steps 2, and it ends with --steps 4 now, so its learning rates differ; steps=N in --lr-schedule fixes the schedule's length"#]].assert_eq(&notes(&ended).join("\n"));
    run("momentum", "", 2, "-o momentum");
    let ended = run("nesterov:momentum=0.5", "", 3, "-o momentum --resume");
    expect![[r#"
        note: the run in momentum had --optimizer sgd:momentum=0.9, and it continues with --optimizer nesterov:momentum=0.5"#]].assert_eq(&notes(&ended).join("\n"));
}

#[test]
fn a_run_goes_on_with_the_states_of_optimizers_with_less_state() {
    let place = place();
    for optimizer in ["lion", "adafactor:beta1=0.9", "adamw:moments=bf16", "adamw:moments=8bit"] {
        let name = optimizer.replace([':', '=', '.'], "-");
        let flags =
            format!("{RUN} --microbatch 64 --lr 1e-3 --optimizer {optimizer}").replace("--lr 2e-3 ", "");
        place.succeed(&format!("{flags} --steps 20 -o {name}-whole"));
        place.succeed(&format!("{flags} --steps 20 --save-every 7 -o {name}"));
        place.succeed(&format!("{flags} --steps 20 -o {name} --resume=@7 --force"));
        assert_same(&place, &name, &format!("{name}-whole"));
        let losses = place.metrics(&name);
        let loss = |step: usize| losses[step]["loss"].as_f64().expect("a loss");
        assert!(loss(19) < loss(0) - 0.02, "{optimizer}: from {} to {}", loss(0), loss(19));
    }
}
