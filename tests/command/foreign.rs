//! Files and processes of others: a run removes and overwrites only its own files, and keeps signals that its parent set to be ignored.

use crate::TRAINYARD;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use testing::running::Running;
use testing::workplace::{Ended, Workplace};

const RUN: &str = "compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 64 -o run";

fn place() -> Workplace {
    Workplace::with_text(TRAINYARD, 20_000)
}

/// Asserts that the command is refused with this text, and that every file stays as it is.
#[track_caller]
fn refused(place: &Workplace, arguments: &str, text: &str) {
    let before = place.contents();
    let ended = place.run(arguments);
    assert_eq!(ended.status.code(), Some(2), "{arguments}: {}", ended.stderr);
    assert!(ended.stderr.contains(text), "{arguments}: {}", ended.stderr);
    assert!(before == place.contents(), "{arguments} changed a file");
}

#[test]
fn files_that_no_run_wrote_are_never_removed() {
    for (name, is_folder) in [
        ("checkpoints", true),
        ("logs", true),
        ("model.onnx", false),
        ("config.toml", false),
        ("metrics.jsonl", false),
    ] {
        let place = place();
        fs::create_dir(place.path("run")).expect("it can be made");
        if is_folder {
            fs::create_dir(place.path("run").join(name)).expect("it can be made");
            place.write(&format!("run/{name}/mine.txt"), b"mine");
        } else {
            place.write(&format!("run/{name}"), b"mine")
        }
        let flags = format!("{RUN} --steps 1");
        for more in ["", " --force"] {
            refused(
                &place,
                &format!("{flags}{more}"),
                &format!("run has files that no run of trainyard wrote ({name})"),
            );
        }
        let before = place.contents();
        assert_eq!(place.run(&format!("{flags} --resume")).status.code(), Some(2), "{name}");
        assert!(before == place.contents(), "{name}");
    }
}

#[test]
fn files_in_the_folders_of_a_run_stay_when_it_is_deleted() {
    let place = place();
    place.succeed(&format!("{RUN} --steps 2 --save-every 1"));
    let mine = ["run/notes.txt", "run/checkpoints/notes.txt", "run/checkpoints/step-2/notes.txt"];
    mine.iter().for_each(|name| place.write(name, b"mine"));
    fs::create_dir(place.path("run/checkpoints/step-x")).expect("it can be made");
    place.succeed(&format!("{RUN} --steps 1 --force"));
    for name in mine {
        assert_eq!(place.read(name), b"mine", "{name}");
    }
    assert!(
        !place.path("run/checkpoints/step-2/checkpoint.json").exists()
            && place.path("run/checkpoints/step-x").exists()
    );
    fs::remove_dir_all(place.path("run/checkpoints/step-2")).expect("it is there");
    // A run that ended before its first checkpoint starts again at step 0.
    fs::remove_dir_all(place.path("run/checkpoints/step-1")).expect("it is there");
    for name in ["model.onnx", "model.safetensors"] {
        fs::remove_file(place.path("run").join(name)).expect("it is there");
    }
    place.succeed(&format!("{RUN} --steps 1 --resume"));
    assert_eq!(place.read("run/checkpoints/notes.txt"), b"mine");
}

#[test]
fn no_link_is_written_through() {
    let place = place();
    place.write("mine.txt", b"mine");
    fs::create_dir(place.path("run")).expect("it can be made");
    let link =
        |name: &str, target: &str| symlink(place.path(target), place.path(name)).expect("it can be made");
    for target in ["mine.txt", "nothing.txt"] {
        for (name, flags, told) in [
            ("run/.lock", "", "run/.lock is not a lock of a run"),
            ("run/metrics.jsonl", " --force", "no run of trainyard wrote (metrics.jsonl)"),
        ] {
            link(name, target);
            let ended = place.run(&format!("{RUN} --steps 1{flags}"));
            assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
            assert!(ended.stderr.contains(told), "{}", ended.stderr);
            assert!(fs::symlink_metadata(place.path(name)).expect("it is there").is_symlink());
            fs::remove_file(place.path(name)).expect("it is there");
            assert!(fs::read_dir(place.path("run")).expect("it is there").next().is_none());
        }
    }
    assert_eq!(place.read("mine.txt"), b"mine");
    assert!(!place.path("nothing.txt").exists());
    let dump = "compile testdata/gpt2-fresh.onnx --dump dump -o run --force";
    place.succeed(dump);
    let first = fs::read_dir(place.path("dump")).expect("it is there").next().expect("it has a file");
    let first = first.expect("it can be read").path();
    let text = fs::read(&first).expect("it can be read");
    fs::remove_file(&first).expect("it is there");
    symlink(place.path("mine.txt"), &first).expect("it can be made");
    place.succeed(dump);
    assert_eq!(place.read("mine.txt"), b"mine");
    assert!(fs::read(&first).expect("it can be read") == text);
}

#[test]
fn plans_and_answers_do_not_overwrite_the_model_or_the_data() {
    let place = place();
    place.write("model.onnx", &place.read("testdata/gpt2-fresh.onnx"));
    symlink(place.path("model.onnx"), place.path("linked.onnx")).expect("it can be made");
    place.succeed("compile model.onnx -o other");
    let compile = "compile model.onnx --train text.txt --microbatch 64 --steps 1 -o run --memory-plan";
    for (command, target) in [
        (compile, "model.onnx"),
        (compile, "text.txt"),
        (compile, "linked.onnx"),
        ("inspect model.onnx -o", "./model.onnx"),
        ("inspect model.onnx --memory-plan", "model.onnx"),
        ("inspect model.onnx --format onnx -o", "linked.onnx"),
        ("inspect other -o", "other/program.ir"),
    ] {
        refused(&place, &format!("{command} {target}"), "would overwrite a file that this command reads");
    }
    place.write("external.onnx", &place.read("testdata/odd/external-ok.onnx"));
    place.write("external-ok.bin", &place.read("testdata/odd/external-ok.bin"));
    refused(
        &place,
        "inspect external.onnx -o external-ok.bin",
        "would overwrite a file that this command reads",
    );
}

#[test]
fn an_answer_that_cannot_be_given_leaves_no_file() {
    let place = place();
    for format in ["text", "json", "dot", "onnx"] {
        let ended = place.run(&format!("inspect testdata/odd/truncated.onnx --format {format} -o answer"));
        assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
        let ended = place.run(&format!("inspect testdata/odd/unknown-op.onnx --format {format} -o answer"));
        assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
        assert!(fs::read(place.path("answer")).map_or(true, |answer| !answer.is_empty()), "{format}");
    }
}

#[test]
fn a_run_whose_lock_is_removed_ends_before_another_can_begin() {
    let place = Workplace::with_text(TRAINYARD, 200_000);
    let flags = RUN.replace("--microbatch 64", "--microbatch 16 --save-every 5");
    let mut running = Running::start(place.command(&format!("{flags} --steps 2000")));
    running.wait_for_checkpoint(&place.path("run/checkpoints/step-5"));
    fs::remove_file(place.path("run/.lock")).expect("it is there");
    let ended = running.wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("`.lock` of the folder `run` was removed while"), "{}", ended.stderr);
    let last = *place.checkpoints("run").last().expect("it has saved");
    let resumed = place.succeed(&format!("{flags} --steps {} --resume", last + 1));
    assert!(
        resumed.stderr.contains(&format!("resumed from run/checkpoints/step-{last}")),
        "{}",
        resumed.stderr
    );
}

/// Starts a run from a shell that sets signals.
fn under(place: &Workplace, set: &str, arguments: &str) -> Running {
    let mut command = place.command_of(Path::new("sh"), "-c");
    command.arg(format!("{set}; exec \"$0\" \"$@\"")).arg(TRAINYARD).args(arguments.split_whitespace());
    Running::start(command)
}

#[test]
fn signals_that_a_process_is_started_to_ignore_stay_ignored() {
    let place = Workplace::with_text(TRAINYARD, 200_000);
    for signal in ["HUP", "INT"] {
        let [kept, ended_by] = ["kept", "ended"].map(|name| format!("{name}-{signal}"));
        let flags = |run: &str| RUN.replace("--microbatch 64 -o run", &format!("--microbatch 16 -o {run}"));
        let mut running =
            under(&place, &format!("trap '' {signal}"), &format!("{} --steps 60", flags(&kept)));
        running.wait_for_steps(&place.path(&kept).join("metrics.jsonl"), 8);
        running.signal(signal);
        let ended = running.wait();
        assert_eq!(ended.status.code(), Some(0), "{signal}: {}", ended.stderr);
        let mut running = under(&place, "true", &format!("{} --steps 2000", flags(&ended_by)));
        running.wait_for_steps(&place.path(&ended_by).join("metrics.jsonl"), 8);
        running.signal(signal);
        assert_eq!(running.wait().status.code(), Some(130), "{signal}");
    }
}

#[test]
fn checkpoints_that_are_kept_no_longer_make_room_before_another_is_written() {
    let place = place();
    place.succeed(&format!("{RUN} --steps 4 --save-every 1"));
    assert_eq!(place.checkpoints("run"), [1, 2, 3, 4]);
    // The next step cannot be saved, and the older checkpoints were removed before.
    let mut command = place.command_of(Path::new("sh"), "-c");
    let resume = format!("{RUN} --steps 6 --keep 1 --resume");
    command.arg("ulimit -f 600; exec \"$0\" \"$@\"").arg(TRAINYARD).args(resume.split_whitespace());
    let ended = Ended::of(command.output().expect("sh can be started"));
    assert!(ended.stderr.contains("cannot save the checkpoint of step 6"), "{}", ended.stderr);
    assert_eq!(place.checkpoints("run"), [4]);
    place.succeed(&resume);
    assert_eq!(place.checkpoints("run"), [6]);
}

#[test]
fn metrics_count_steps_as_the_log_and_the_checkpoints_do() {
    let place = place();
    let ended = place.succeed(&format!("{RUN} --steps 3 --save-every 1"));
    let text = String::from_utf8(place.read("run/metrics.jsonl")).expect("it is text");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    let steps: Vec<u64> = lines.iter().map(|line| line["step"].as_u64().expect("a number")).collect();
    assert_eq!(steps, [0, 1, 2, 3]);
    assert!(lines[0]["counting"].as_str().is_some_and(|counting| counting.contains("N steps are done")));
    let before = lines[0]["eval_loss"].as_f64().expect("it was evaluated");
    assert!(ended.stderr.contains(&format!("before step 0: eval loss {before:.6}")), "{}", ended.stderr);
    assert_eq!(place.checkpoints("run"), [1, 2, 3]);
    // The metrics file of a version that counted from 0.
    let older: String = lines[1..]
        .iter()
        .map(|line| {
            let mut line = line.clone();
            line["step"] = (line["step"].as_u64().expect("a number") - 1).into();
            format!("{line}\n")
        })
        .collect();
    place.write("run/metrics.jsonl", older.as_bytes());
    place.succeed(&format!("{RUN} --steps 4 --resume=@2 --force"));
    let steps: Vec<u64> =
        place.metrics("run").iter().map(|line| line["step"].as_u64().expect("a number")).collect();
    assert_eq!(steps, [1, 2, 3, 4]);
}
