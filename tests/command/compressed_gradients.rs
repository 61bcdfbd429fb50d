//! `--compress-gradients`: runs that stop and resume, the line about bytes, and the answers to flags that it excludes.

use crate::TRAINYARD;
use std::os::unix::fs::MetadataExt;
use testing::running::Running;
use testing::workplace::Workplace;

const GPT2: &str =
    "compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 2 --global-batch 8 --compress-gradients";

/// The error that the user reads for a command that fails.
fn refused(place: &Workplace, arguments: &str) -> String {
    let ended = place.run(arguments);
    assert_ne!(ended.status.code(), Some(0), "trainyard {arguments}");
    ended.stderr
}

#[test]
fn a_run_goes_on_with_the_errors_that_it_had() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    for (number, method) in ["powersgd:rank=2", "bf16"].into_iter().enumerate() {
        let (whole, parted) = (format!("whole{number}"), format!("parted{number}"));
        let run = format!("{GPT2} {method} --mesh dp=2");
        place.succeed(&format!("{run} --steps 8 --save-every 4 -o {whole}"));
        place.succeed(&format!("{run} --steps 4 --save-every 4 -o {parted}"));
        place.succeed(&format!("{run} --steps 8 --save-every 4 -o {parted} --resume"));
        assert!(place.states(&whole, 8) == place.states(&parted, 8), "{method}");
        assert!(place.read(&format!("{whole}/model.onnx")) == place.read(&format!("{parted}/model.onnx")));
        // The compression errors belong to the ranks that made them, so another number of ranks cannot resume them.
        let error =
            refused(&place, &format!("{GPT2} {method} --mesh dp=4 --steps 12 -o other --resume={parted}"));
        let says = "is f32[4, 128, 64] compression in this program and f32[2, 128, 64] compression in the checkpoint";
        assert!(error.contains(says), "{error}");
        assert!(error.contains("load only the weights, with --weights"), "{error}");
    }
}

/// Whole gradients are reduced in the first steps, as in PyTorch's hook, and again in the last steps.
#[test]
fn a_run_goes_on_with_compression_and_without() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let whole = GPT2.replace(" --compress-gradients", "");
    place.succeed(&format!("{whole} --mesh dp=2 --steps 2 --save-every 2 -o run"));
    place.succeed(&format!("{GPT2} powersgd:rank=2 --mesh dp=2 --steps 4 --save-every 2 -o run --resume"));
    place.succeed(&format!("{whole} --mesh dp=2 --steps 6 --save-every 2 -o run --resume"));
    let has_errors = |step| place.states("run", step).windows(6).any(|bytes| bytes == b"error(");
    assert_eq!([2, 4, 6].map(has_errors), [false, true, false]);
}

/// One command does the same with two programs. The second resumes from the checkpoint of the first.
#[test]
fn one_command_compresses_after_a_step() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let whole = GPT2.replace(" --compress-gradients", "");
    let flags = "--mesh dp=2 --save-every 2 --lr-schedule cosine:warmup=1,steps=6";
    place.succeed(&format!("{whole} {flags} --steps 3 -o parted"));
    place.succeed(&format!("{GPT2} powersgd:rank=2 {flags} --steps 6 -o parted --resume"));
    let late = format!("{GPT2} powersgd:rank=2 {flags} --compress-gradients-after 3");
    let told = place.succeed(&format!("{late} --steps 6 -o one")).stderr;
    assert!(told.contains("gradients are compressed after step 3"), "{told}");
    assert!(place.states("one", 6) == place.states("parted", 6));
    assert!(place.read("one/model.onnx") == place.read("parted/model.onnx"));
    let losses = |run: &str| -> Vec<String> {
        place.metrics(run).iter().map(|line| line["loss"].to_string()).collect()
    };
    assert_eq!(losses("one"), losses("parted"));
    // A resumed run uses the program to which its step belongs.
    for (step, told_again) in [(2, true), (3, false), (4, false)] {
        let other = format!("from{step}");
        let told = place.succeed(&format!("{late} --steps 6 -o {other} --resume=one@{step}")).stderr;
        assert_eq!(told.contains("gradients are compressed after step 3"), told_again, "{step}: {told}");
        assert!(place.states(&other, 6) == place.states("one", 6), "{step}");
    }
    // A command that is killed in its first part, without a checkpoint, begins again.
    let long = late.replace("--save-every 2", "").replace("after 3", "after 1000");
    let mut running = Running::start(place.command(&format!("{long} --steps 2000 -o killed --resume")));
    running.wait_for_steps(&place.path("killed/metrics.jsonl"), 3);
    running.kill();
    std::fs::remove_file(place.path("killed/.lock")).expect("the killed run had the folder");
    let told = place.succeed(&format!("{late} --steps 6 -o killed --resume")).stderr;
    assert!(told.contains("no checkpoint yet: it starts at step 0"), "{told}");
    assert!(place.states("killed", 6) == place.states("one", 6));
    // The second program is compiled before the first step.
    let error = refused(&place, &format!("{late} --fp16 --steps 6 -o never"));
    assert!(error.contains("--compress-gradients cannot be used with fp16"), "{error}");
    let error = refused(&place, &format!("{late} --steps 3 -o never"));
    assert!(error.contains("compresses no gradient: the run ends with step 3"), "{error}");
    let error = refused(&place, &format!("{whole} {flags} --compress-gradients-after 3 --steps 6 -o never"));
    assert!(error.contains("does not apply without --compress-gradients"), "{error}");
    assert!(!place.path("never").exists());
}

/// The flags of a run whose gradients are compressed from a step on.
fn late(after: u64, steps: u64) -> String {
    format!("{GPT2} powersgd:rank=2 --mesh dp=2 --compress-gradients-after {after} --steps {steps}")
}

#[test]
fn each_program_of_a_run_is_compiled_once_and_the_model_up_to_the_loss_once_for_both() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let told =
        place.succeed(&format!("{} --print-after loss --print-after optimizer -o run", late(2, 3))).stderr;
    let compiled = ["loss", "optimizer"].map(|pass| told.matches(&format!("// after {pass}")).count());
    assert_eq!(compiled, [1, 2]);
    let [last, first] = ["// after optimizer", "step 1/3"].map(|text| told.rfind(text));
    assert!(last < first, "the second program is compiled before the first step");
}

#[test]
fn patience_counts_the_same_evaluations_as_in_a_run_of_one_program() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    // With a learning rate of 0, no update changes anything.
    let flags = format!("{} --lr 0 --eval-every 2 --patience 2", late(3, 20));
    let told = place.succeed(&format!("{flags} -o run")).stderr;
    assert!(told.contains("ended early, after 6 of 20 steps"), "{told}");
    let evaluated = |line: &serde_json::Value| line.get("eval_loss").and(line["step"].as_u64());
    assert_eq!(place.metrics("run").iter().filter_map(evaluated).collect::<Vec<_>>(), [2, 4, 6]);
    assert_eq!(place.checkpoints("run"), [3, 6]);
}

#[test]
fn a_run_holds_its_folder_and_stops_and_resumes_on_both_sides_of_the_compression() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    // A step takes some milliseconds, so 300 of them take longer than a signal.
    let run = late(300, 600);
    place.succeed(&format!("{run} -o whole"));
    let mut running = Running::start(place.command(&format!("{run} -o run")));
    running.wait_for_steps(&place.path("run/metrics.jsonl"), 2);
    // A lock that is taken again is another file.
    std::fs::hard_link(place.path("run/.lock"), place.path("lock")).expect("the run has its folder");
    assert!(place.metrics("run").len() < 300);
    running.wait_for_line("gradients are compressed after step 300");
    let links = std::fs::metadata(place.path("lock")).expect("it is there").nlink();
    assert_eq!(links, 2, "the lock of the folder is still the same file");
    running.signal("INT");
    assert_eq!(running.wait().status.code(), Some(130));
    let stopped = place.metrics("run").len();
    assert!((300..600).contains(&stopped), "{stopped}");
    place.succeed(&format!("{run} -o run --resume"));
    assert!(place.states("run", 600) == place.states("whole", 600));

    let mut running = Running::start(place.command(&format!("{run} -o early")));
    running.wait_for_steps(&place.path("early/metrics.jsonl"), 2);
    running.signal("INT");
    assert_eq!(running.wait().status.code(), Some(130));
    assert!(place.metrics("early").len() < 300);
    let told = place.succeed(&format!("{run} -o early --resume")).stderr;
    assert!(told.contains("gradients are compressed after step 300"), "{told}");
    assert!(place.states("early", 600) == place.states("whole", 600));
    assert!(place.read("early/model.onnx") == place.read("whole/model.onnx"));
}

#[test]
fn a_profile_has_the_steps_of_both_programs() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let told = place.succeed(&format!("{} --profile -o run", late(3, 6))).stderr;
    let of_program = |first: &str| told.split_once(first).unwrap_or_else(|| panic!("no {first:?}: {told}")).1;
    let compressed = of_program("the steps after step 3:\n");
    let whole = of_program("the steps after step 0:\n").strip_suffix(compressed).expect("it is before");
    assert!([whole, compressed].iter().all(|table| table.contains(" ms per step; ")), "{told}");
    assert_eq!([whole, compressed].map(|table| table.contains("orthogonalize")), [false, true], "{told}");
    assert!(
        String::from_utf8(place.read("run/timeline.json")).expect("it is text").contains("orthogonalize")
    );
}

#[test]
fn a_run_says_what_its_ranks_reduce() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let told = place.succeed(&format!("{GPT2} powersgd:rank=2 --mesh dp=2 --steps 1 -o run")).stderr;
    let line = "gradients: PowerSGD of rank 2 compresses 14 of 36 tensors; a step reduces ";
    assert!(told.contains(line), "{told}");
    let inspect = GPT2.replacen("compile", "inspect", 1).replace("--train text.txt ", "");
    let shown =
        place.command(&format!("{inspect} powersgd:rank=2 --mesh dp=2")).output().expect("it runs").stdout;
    let shown = String::from_utf8(shown).expect("it is text");
    assert!(shown.contains(line) && !shown.contains("ZeRO saves"), "{shown}");
    let config = String::from_utf8(place.read("run/config.toml")).expect("it is text");
    assert!(config.contains("compress-gradients = \"powersgd:rank=2\"\n"), "{config}");
}

#[test]
fn what_does_not_go_with_compressed_gradients_is_refused_with_a_remedy() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    for (flags, says, remedy) in [
        ("", "without --mesh there is no data axis of more than one device", "--mesh dp=2"),
        ("--mesh tp=2", "the mesh tp=2 has no data axis of more than one device", "--mesh dp=2"),
        ("--mesh dp=2,pp=2", "cannot be used with --mesh pp=2 yet", "use dp and tp axes"),
        ("--mesh dp=2,ep=2", "cannot be used with --mesh ep=2 yet", "use dp and tp axes"),
        ("--mesh dp=2 --zero 1", "cannot be used with --zero 1", "remove either"),
        ("--mesh dp=2 --fp16", "--compress-gradients cannot be used with fp16", "--bf16"),
    ] {
        let error = refused(&place, &format!("{GPT2} powersgd {flags} --steps 1 -o run"));
        assert!(error.contains(says) && error.contains(remedy), "{flags}: {error}");
    }
}
