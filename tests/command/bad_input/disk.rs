//! Folders that cannot be written, disks that are full, checkpoints that are damaged.

use crate::TRAINYARD;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;

use expect_test::expect;

use super::{FRESH, failed, half_written, place, refused};
use testing::workplace::{Ended, Workplace};

#[test]
fn a_folder_that_cannot_be_written_is_refused() {
    let place = place();
    refused(
        &place,
        &format!("{FRESH} --steps 1 -o text.txt"),
        expect![[r#"
        error: text.txt is not a folder
          = give another folder: -o ANOTHER_DIR
    "#]],
    );
    refused(
        &place,
        &format!("{FRESH} --steps 1 -o text.txt/run"),
        expect![[r#"
            error: cannot create the folder text.txt/run: File exists (os error 17)
        "#]],
    );

    // Root can write everywhere. As root, the run is started as another user, who cannot read a repository in a home folder.
    fs::create_dir(place.path("read-only")).expect("a folder can be made");
    fs::set_permissions(place.path("read-only"), fs::Permissions::from_mode(0o555)).expect("it is ours");
    let root = fs::metadata("/proc/self").expect("there is /proc").uid() == 0;
    place.write("gpt2-fresh.onnx", &place.read("testdata/gpt2-fresh.onnx"));
    let flags = "compile gpt2-fresh.onnx --microbatch 32 --train text.txt --steps 1 -o read-only/run";
    let mut command = place.command(flags);
    if root {
        const NOBODY: u32 = 65534;
        fs::copy(TRAINYARD, place.path("trainyard")).expect("there is room");
        fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).expect("it is ours");
        command = place.command_of(&place.path("trainyard"), flags);
        command.uid(NOBODY);
    }
    let before = place.contents();
    failed(
        &Ended::of(command.output().expect("the binary can be started")),
        expect![[r#"
        error: cannot create the folder read-only/run: Permission denied (os error 13)
    "#]],
    );
    assert!(before == place.contents());
}

/// Runs with the size of files limited to `blocks` blocks of 512 or 1024 bytes, as on a disk that is full.
fn run_with_little_room(place: &Workplace, blocks: u64, arguments: &str) -> Ended {
    let limited = format!("ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let mut command = place.command_of(Path::new("sh"), "-c");
    command.arg(limited).arg(TRAINYARD).args(arguments.split_whitespace());
    Ended::of(command.output().expect("sh can be started"))
}

#[test]
fn a_disk_that_is_full_from_the_beginning_gets_nothing() {
    let place = place();
    let before = place.contents();
    failed(
        &run_with_little_room(&place, 2, &format!("{FRESH} --steps 1 -o run")),
        expect![[r#"
        error: cannot write run/program.ir: File too large (os error 27)
    "#]],
    );
    let mut after = place.contents();
    assert!(after.remove("run").is_some());
    assert!(before == after);
}

#[test]
fn a_disk_that_is_full_while_saving_keeps_the_checkpoint_before() {
    let place = place();
    let flags = format!("{FRESH} --save-every 1 -o run");
    failed(
        &run_with_little_room(&place, 600, &format!("{flags} --steps 2")),
        expect![[r#"
            error: cannot save the checkpoint of step 1 to `run/checkpoints/step-1`, which needs 1330936 bytes: File too large (os error 27)
              = there is no earlier checkpoint
        "#]],
    );
    assert_eq!((half_written(&place), place.checkpoints("run")), (vec![], vec![]));

    place.succeed(&format!("{flags} --steps 2 --force"));
    let state = place.read("run/checkpoints/step-2/state.safetensors");
    let model = place.read("run/model.onnx");
    failed(
        &run_with_little_room(&place, 600, &format!("{flags} --steps 4 --resume")),
        expect![[r#"
            error: cannot save the checkpoint of step 3 to `run/checkpoints/step-3`, which needs 1330936 bytes: File too large (os error 27)
              = the checkpoint `run/checkpoints/step-2` is whole; resume from it with --resume
        "#]],
    );
    assert_eq!((half_written(&place), place.checkpoints("run")), (vec![], vec![1, 2]));
    assert!(place.read("run/checkpoints/step-2/state.safetensors") == state, "the checkpoint is as it was");
    assert!(place.read("run/model.onnx") == model, "the model is as it was");

    place.succeed(&format!("{flags} --steps 4 --resume"));
    assert_eq!((place.checkpoints("run"), place.metrics("run").len()), (vec![1, 2, 3, 4], 4));
}

#[test]
fn a_model_that_cannot_be_written_is_told_before_the_run_goes_on() {
    let place = place();
    place.succeed(&format!("{FRESH} --steps 1 -o run"));
    fs::remove_file(place.path("run/model.onnx")).expect("it is there");
    fs::create_dir_all(place.path("run/model.onnx/in-the-way")).expect("a folder can be made");
    refused(
        &place,
        &format!("{FRESH} --steps 2 -o run --resume"),
        expect![[r#"
        error: run/model.onnx cannot be written: it is a folder
          = move the folder away, or give another output folder: -o ANOTHER_DIR
    "#]],
    );
}

#[test]
fn damaged_checkpoints_are_passed_over_and_told_when_there_is_no_other() {
    let place = place();
    place.succeed(&format!("{FRESH} --save-every 1 --steps 2 -o run"));
    let state = "run/checkpoints/step-2/state.safetensors";
    place.write(state, &place.read(state)[..1000]);
    let ended = place.succeed(&format!("{FRESH} --save-every 1 --steps 3 -o run --resume"));
    expect!["note: a checkpoint is skipped: `run/checkpoints/step-2/checkpoint.json` is damaged: `state.safetensors` in the same folder has 1000 bytes and should have 1330936: was it truncated?"].assert_eq(ended.stderr.lines().find(|line| line.contains("step-2")).unwrap_or_default());
    assert_eq!(place.metrics("run").len(), 3);
    for step in 1..=3 {
        fs::write(place.path(&format!("run/checkpoints/step-{step}/checkpoint.json")), "{")
            .expect("it is ours");
    }
    refused(
        &place,
        &format!("{FRESH} --steps 4 -o run --resume"),
        expect![[r#"
        error: there is no checkpoint to resume from in `run/checkpoints`
          = `run/checkpoints/step-3/checkpoint.json` is damaged: EOF while parsing an object at line 1 column 1
          = `run/checkpoints/step-2/checkpoint.json` is damaged: EOF while parsing an object at line 1 column 1
          = `run/checkpoints/step-1/checkpoint.json` is damaged: EOF while parsing an object at line 1 column 1
    "#]],
    );
}
