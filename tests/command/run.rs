//! Whole runs of the binary: the files that they write, how they stop, and how they resume.

mod best;
mod decay;
mod older;
mod resuming;
mod rows;

use crate::TRAINYARD;
use std::time::Duration;

use expect_test::{Expect, expect};
use testing::running::Running;
use testing::workplace::{Ended, Workplace};

/// A run of 20 steps of about 30 ms each, so that it can be stopped between steps. Its learning rate differs in each step.
const RUN: &str = "compile testdata/gpt2-fresh.onnx --train text.txt --global-batch 64 --lr 2e-3 \
                   --lr-schedule cosine:warmup=3,min=1e-5,steps=20 --weight-decay 0.1 --clip 1 --seed 7";

fn place() -> Workplace {
    Workplace::with_text(TRAINYARD, 20_000)
}

/// A whole `RUN` without an interruption, in the folder `whole`.
fn whole() -> Workplace {
    let place = place();
    place.succeed(&format!("{RUN} --microbatch 64 --steps 20 -o whole"));
    assert_eq!(place.checkpoints("whole"), [20]);
    place
}

/// The bits of the numbers that must be equal in equal runs.
fn numbers(place: &Workplace, run: &str, fields: &[&str]) -> Vec<Vec<Option<u64>>> {
    let bits = |value: &serde_json::Value| value.as_f64().map(f64::to_bits);
    let line = |line: &serde_json::Value| fields.iter().map(|field| bits(&line[field])).collect();
    place.metrics(run).iter().map(line).collect()
}

/// Asserts that the results of two runs are equal, bit for bit.
#[track_caller]
fn assert_same(place: &Workplace, run: &str, other: &str) {
    let fields = ["step", "loss", "lr", "grad_norm", "eval_loss"];
    assert_eq!(numbers(place, run, &fields), numbers(place, other, &fields));
    for file in ["checkpoints/step-20/state.safetensors", "model.onnx", "model.safetensors"] {
        let [ours, others] = [run, other].map(|run| place.read(&format!("{run}/{file}")));
        assert!(ours == others, "{run}/{file} is not {other}/{file}");
    }
}

/// Asserts that no file is left half written.
#[track_caller]
fn assert_nothing_half_written(place: &Workplace) {
    let names: Vec<String> = place.contents().into_keys().collect();
    let half = names.iter().filter(|name| name.contains("tmp") || name.contains("partial"));
    assert_eq!(half.collect::<Vec<_>>(), Vec::<&String>::new());
}

/// Asserts that the command ended with exit code 2 and this message.
#[track_caller]
fn refused(ended: &Ended, expected: Expect) {
    expected.assert_eq(&ended.errors());
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
}

/// A signal stops the run after its step. With `--resume` the run continues as if it had not stopped.
fn stops_and_goes_on(signal: &str) {
    let place = whole();
    let flags = format!("{RUN} --microbatch 64 --steps 20 -o run");
    let mut running = Running::start(place.command(&flags));
    running.wait_for_steps(&place.path("run/metrics.jsonl"), 8);
    running.signal(signal);
    let stopped = running.wait();
    assert_eq!(stopped.status.code(), Some(130), "{}", stopped.stderr);
    let steps = place.metrics("run").len() as u64;
    assert!((8..20).contains(&steps), "stopped after {steps} steps\n{}", stopped.stderr);
    assert_eq!(place.checkpoints("run"), [steps]);
    let told = format!(
        "stopped after {steps} of 20 steps; saved run/checkpoints/step-{steps}\n\
         to continue, give the same command with --resume\n"
    );
    assert!(stopped.stderr.ends_with(&told), "{}", stopped.stderr);
    assert_nothing_half_written(&place);

    let resumed = place.succeed(&format!("{flags} --resume"));
    assert!(!resumed.stderr.contains("before step 0"), "{}", resumed.stderr);
    assert_same(&place, "run", "whole");
    assert_eq!(place.checkpoints("run"), [steps, 20]);
}

#[test]
fn a_run_that_ctrl_c_stopped_goes_on_bit_for_bit() {
    stops_and_goes_on("INT");
}

#[test]
fn a_run_that_sigterm_stopped_goes_on_bit_for_bit() {
    stops_and_goes_on("TERM");
}

#[test]
fn a_run_that_was_killed_between_two_saves_goes_on_bit_for_bit() {
    let place = whole();
    let flags = format!("{RUN} --microbatch 64 --steps 20 --save-every 4 -o run");
    let mut running = Running::start(place.command(&flags));
    running.wait_for_checkpoint(&place.path("run/checkpoints/step-8"));
    running.wait_for_steps(&place.path("run/metrics.jsonl"), 10);
    running.kill();
    let saved = *place.checkpoints("run").last().expect("it has saved");
    assert!((8..20).contains(&saved), "the last checkpoint is of step {saved}");
    assert!(!place.path("run/model.onnx").exists());

    place.succeed(&format!("{flags} --resume"));
    assert_same(&place, "run", "whole");
    assert_eq!(place.checkpoints("run"), [4, 8, 12, 16, 20]);
}

#[test]
fn a_run_goes_on_with_other_microbatches_and_the_same_samples() {
    let place = whole();
    place.succeed(&format!("{RUN} --microbatch 64 --steps 10 -o run"));
    place.succeed(&format!("{RUN} --microbatch 16 --steps 20 -o run --resume"));
    assert_eq!(numbers(&place, "run", &["step", "lr"]), numbers(&place, "whole", &["step", "lr"]));
    let losses = |run: &str| -> Vec<f64> {
        place.metrics(run).iter().map(|line| line["loss"].as_f64().expect("a loss")).collect()
    };
    for (step, (ours, whole)) in losses("run").into_iter().zip(losses("whole")).enumerate() {
        assert!((ours - whole).abs() <= 1e-5, "step {step}: {ours} and {whole}");
        assert!(step >= 10 || ours == whole, "step {step} was run in the same way");
    }
}

#[test]
fn a_run_goes_on_in_another_folder() {
    let place = whole();
    place.succeed(&format!("{RUN} --microbatch 64 --steps 10 -o first"));
    let before = place.contents();
    place.succeed(&format!("{RUN} --microbatch 64 --steps 20 -o run --resume=first"));
    assert_eq!(
        place.read("run/checkpoints/step-20/state.safetensors"),
        place.read("whole/checkpoints/step-20/state.safetensors")
    );
    assert_eq!(place.read("run/model.onnx"), place.read("whole/model.onnx"));
    let after = place.contents();
    let is_as_it_was = |(name, bytes): (&String, &Option<Vec<u8>>)| after.get(name) == Some(bytes);
    assert!(before.iter().all(is_as_it_was), "the run that is gone on with is changed");
}

#[test]
fn a_run_that_was_stopped_when_it_began_goes_on_bit_for_bit() {
    let place = whole();
    let flags = format!("{RUN} --microbatch 64 --steps 20 -o run");
    let mut running = Running::start(place.command(&flags));
    running.wait_for_line("before step 0");
    running.signal("INT");
    let stopped = running.wait();
    assert_eq!(stopped.status.code(), Some(130), "{}", stopped.stderr);
    assert!(place.metrics("run").len() < 20, "{}", stopped.stderr);
    place.succeed(&format!("{flags} --resume"));
    assert_same(&place, "run", "whole");
}

/// The number after a label in the messages of a run.
#[track_caller]
fn number_after(ended: &Ended, label: &str) -> f64 {
    let text = &ended.stderr;
    let after = text.split_once(label).unwrap_or_else(|| panic!("no {label:?}\n{text}")).1;
    let end = after.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(after.len());
    after[..end].parse().unwrap_or_else(|_| panic!("no number after {label:?}\n{text}"))
}

/// The eval losses before the first step and after the last.
fn eval_losses(ended: &Ended) -> [f64; 2] {
    ["before step 0: eval loss ", ", eval loss "].map(|label| number_after(ended, label))
}

#[test]
fn a_trained_model_begins_where_its_training_ended() {
    let place = Workplace::with_text(TRAINYARD, 40_000);
    place.write("eval.txt", &place.read("text.txt")[..4000]);
    let bytes = "--train text.txt --eval eval.txt --tokenizer bytes";
    for (model, flags) in [
        ("gpt2-fresh", bytes),
        ("models/gpt2.dynamo", bytes),
        ("models/gpt2.dynamo-op23", bytes),
        ("models/gpt2.legacy-mask", bytes),
        ("models/llama.dynamo", bytes),
        (
            "models/bert.dynamo",
            "--train testdata/models/bert.train.npz --eval testdata/models/bert.train.npz",
        ),
        ("models/mlp.legacy", "--train testdata/models/mlp.train.npz --eval testdata/models/mlp.train.npz"),
    ] {
        let flags = format!("{flags} --microbatch 8 --lr 1e-2");
        let first =
            place.succeed(&format!("compile testdata/{model}.onnx {flags} --steps 4 -o first --force"));
        let second = place.succeed(&format!("compile first/model.onnx {flags} --steps 0 -o second --force"));
        let [before, after] = eval_losses(&first);
        let [again, _] = eval_losses(&second);
        assert!((before - after).abs() > 1e-4, "{model} was not trained: {before}, then {after}");
        // Both are rounded to six digits.
        assert!((after - again).abs() < 1.5e-6, "{model} ended with {after} and began with {again}");
    }
}

#[test]
fn weights_of_another_run_are_loaded_by_name() {
    let place = place();
    let first = place.succeed(&format!("{RUN} --microbatch 64 --steps 3 -o first"));
    let second = place
        .succeed(&format!("{RUN} --microbatch 64 --steps 0 -o second --weights first/model.safetensors"));
    assert!((eval_losses(&first)[1] - eval_losses(&second)[0]).abs() < 1.5e-6, "{}", second.stderr);
    assert_eq!(place.read("first/model.onnx"), place.read("second/model.onnx"));
}

#[test]
fn weights_that_do_not_match_are_listed() {
    let place = place();
    place.succeed("compile testdata/models/mlp.dynamo.onnx --train synthetic --steps 0 -o mlp");
    let weights = "--steps 0 -o run --force --weights";
    refused(
        &place.run(&format!("{RUN} --microbatch 64 {weights} mlp/model.safetensors")),
        expect![[r#"
            error: no tensor of `mlp/model.safetensors` matches a parameter of the model
              = the model has `transformer.h.0.ln_1.weight`, `transformer.h.0.ln_1.bias`, `transformer.h.0.attn.c_attn.weight[:,0..64]`, `transformer.h.0.attn.c_attn.weight[:,64..128]`, `transformer.h.0.attn.c_attn.weight[:,128..192]`, `transformer.h.0.attn.c_proj.weight`, `transformer.h.0.mlp.c_fc.weight`, `transformer.h.0.mlp.c_proj.weight` and 28 more
              = the file has `m.net.0.bias`, `m.net.0.weight`, `m.net.2.bias`, `m.net.2.weight`, `m.net.4.bias`, `m.net.4.weight`
        "#]],
    );
    place.succeed(&format!("{RUN} --microbatch 64 --steps 0 -o other"));
    let file = place.read("other/model.safetensors");
    // The name of the table of positions, and the name of its checksum.
    let mut renamed = file.clone();
    for at in 0..file.len() - 11 {
        if file[at..].starts_with(b"embedding_1") {
            renamed[at..at + 11].copy_from_slice(b"positions_1");
        }
    }
    assert!(renamed != file);
    place.write("renamed.safetensors", &renamed);
    let ended = place.succeed(&format!("{RUN} --microbatch 64 {weights} renamed.safetensors"));
    let told =
        ended.stderr.lines().skip_while(|line| !line.contains("parameters and buffers were loaded from"));
    let told: String =
        told.take_while(|line| !line.starts_with("before")).map(|line| format!("{line}\n")).collect();
    expect![[r#"
        35 of 36 parameters and buffers were loaded from `renamed.safetensors`
          = not in the file, and therefore not changed: `embedding_1`
          = in the file, but not in the model: `positions_1`
    "#]]
    .assert_eq(&told);
}

#[test]
fn new_weights_hang_on_the_seed_alone() {
    let place = place();
    for (run, seed) in [("a", 1), ("b", 1), ("c", 2)] {
        let flags = format!("--train text.txt --microbatch 32 --steps 3 --init gpt2 --seed {seed}");
        let ended = place.succeed(&format!("compile testdata/gpt2-fresh.onnx {flags} -o {run}"));
        let [before, _] = eval_losses(&ended);
        // A new model gives all of its 128 tokens about the same probability.
        assert!((before - 128f64.ln()).abs() < 0.1, "seed {seed}: {before}");
    }
    assert_eq!(place.read("a/model.onnx"), place.read("b/model.onnx"));
    assert_ne!(place.read("a/model.onnx"), place.read("c/model.onnx"));
}

#[test]
fn a_model_without_weights_is_compiled_and_trained_only_from_new_ones() {
    let place = place();
    let compiled = place.succeed("compile testdata/models/gpt3-175b-noweights.onnx --microbatch 16 -o gpt3");
    assert!(compiled.stderr.contains("175"), "{}", compiled.stderr);
    let plan: serde_json::Value =
        serde_json::from_slice(&place.read("gpt3/plan.json")).expect("a plan is JSON");
    assert!(plan["parameter_elements"].as_u64() > Some(174_000_000_000), "{plan}");
    place.succeed("inspect testdata/models/gpt3-175b-noweights.onnx");

    let before = place.contents();
    let ended =
        place.run("compile testdata/models/gpt3-175b-noweights.onnx --train synthetic --steps 1 -o run");
    refused(
        &ended,
        expect![[r#"
            error: the weights of `m.lm_head.weight`, `m.transformer.h.0.attn.c_attn.bias`, `m.transformer.h.0.attn.c_attn.weight`, `m.transformer.h.0.attn.c_proj.bias`, `m.transformer.h.0.attn.c_proj.weight`, `m.transformer.h.0.ln_1.bias`, `m.transformer.h.0.ln_1.weight`, `m.transformer.h.0.ln_2.bias` and 1148 more are missing
              --> main_graph
              = the model's file does not contain these weights; give them with --weights FILE.safetensors
              = or start from scratch with --init gpt2, kaiming or normal:std=0.02
              = `gpt3-175b-weights-not-shipped.bin`, to which the model's file refers for 1156 tensors, is not beside it
        "#]],
    );
    assert!(before == place.contents());
}

#[test]
fn the_config_of_a_run_does_it_again() {
    let place = whole();
    place.succeed("compile testdata/gpt2-fresh.onnx --config whole/config.toml -o again");
    assert_same(&place, "again", "whole");
    assert_eq!(place.read("again/config.toml"), place.read("whole/config.toml"));
    assert_eq!(place.read("again/program.ir"), place.read("whole/program.ir"));
}

#[test]
fn a_folder_with_another_run_is_refused_unless_it_may_be_thrown_away() {
    let place = place();
    place.succeed(&format!("{RUN} --microbatch 64 --steps 2 -o run"));
    place.write("run/notes.txt", b"the user's own");
    let before = place.contents();
    refused(
        &place.run(&format!("{RUN} --microbatch 64 --steps 1 -o run")),
        expect![[r#"
            error: run holds another run (program.ir, plan.json, config.toml, metrics.jsonl, checkpoints, model.onnx, model.safetensors)
              = to continue that run: --resume
              = to delete it: --force
              = to keep it: -o ANOTHER_DIR
        "#]],
    );
    refused(
        &place.run("compile testdata/gpt2-fresh.onnx -o run"),
        expect![[r#"
            error: run holds another run (program.ir, plan.json, config.toml, metrics.jsonl, checkpoints, model.onnx, model.safetensors)
              = to continue that run: --resume
              = to delete it: --force
              = to keep it: -o ANOTHER_DIR
        "#]],
    );
    refused(
        &place.run(&format!("{RUN} --microbatch 64 --steps 4 -o run --resume --force")),
        expect![[r#"
        error: --resume continues the run that --force deletes
          = give only one of these flags
    "#]],
    );
    refused(
        &place.run("compile run/model.onnx -o run --force"),
        expect![[r#"
        error: --force would delete run/model.onnx, which this run reads
          = to keep the file: -o ANOTHER_DIR
    "#]],
    );
    assert!(before == place.contents(), "a refused run changes nothing");

    place.succeed(&format!("{RUN} --microbatch 64 --steps 1 -o run --force"));
    assert_eq!((place.checkpoints("run"), place.metrics("run").len()), (vec![1], 1));
    assert_eq!(place.read("run/notes.txt"), b"the user's own");
}

#[test]
fn going_on_is_refused_where_it_would_not_be_the_same_run() {
    let place = place();
    let nothing = place.contents();
    refused(
        &place.run(&format!("{RUN} --microbatch 64 --steps 2 -o run --resume=first")),
        expect![[r#"
        error: there is no checkpoint to resume from in `first/checkpoints`
    "#]],
    );
    assert!(nothing == place.contents(), "a refused run leaves nothing");

    place.succeed(&format!("{RUN} --microbatch 64 --steps 2 -o run"));
    place.write("other.txt", &place.read("text.txt")[1..]);
    let before = place.contents();
    let go_on = |flags: &str| place.run(&format!("{} --steps 4 -o run --resume", flags));
    let with = |from: &str, to: &str| go_on(&format!("{RUN} --microbatch 64").replace(from, to));
    refused(
        &with("gpt2-fresh.onnx", "gpt2-bytes.onnx"),
        expect![[r#"
            error: `run/checkpoints/step-2` is a checkpoint of another program (`main_graph`):
              = missing in the checkpoint: `adam.m(transformer.h.0.attn.c_attn.bias[0..128])` f32[128], `adam.m(transformer.h.0.attn.c_attn.bias[128..256])` f32[128], `adam.m(transformer.h.0.attn.c_attn.bias[256..384])` f32[128], `adam.m(transformer.h.0.attn.c_attn.weight[:,0..128])` f32[128, 128], `adam.m(transformer.h.0.attn.c_attn.weight[:,128..256])` f32[128, 128], `adam.m(transformer.h.0.attn.c_attn.weight[:,256..384])` f32[128, 128], `adam.m(transformer.h.1.attn.c_attn.bias[0..128])` f32[128], `adam.m(transformer.h.1.attn.c_attn.bias[128..256])` f32[128], and 124 more
              = not in this program: `adam.m(transformer.h.0.attn.c_attn.bias[0..64])` f32[64], `adam.m(transformer.h.0.attn.c_attn.bias[128..192])` f32[64], `adam.m(transformer.h.0.attn.c_attn.bias[64..128])` f32[64], `adam.m(transformer.h.0.attn.c_attn.weight[:,0..64])` f32[64, 64], `adam.m(transformer.h.0.attn.c_attn.weight[:,128..192])` f32[64, 64], `adam.m(transformer.h.0.attn.c_attn.weight[:,64..128])` f32[64, 64], `adam.m(transformer.h.1.attn.c_attn.bias[0..64])` f32[64], `adam.m(transformer.h.1.attn.c_attn.bias[128..192])` f32[64], and 28 more
              = different: `adam.m(embedding_1)` is f32[1, 64, 128] optimizer in this program and f32[1, 16, 64] optimizer in the checkpoint, `adam.m(lm_head.weight)` is f32[256, 128] optimizer in this program and f32[128, 64] optimizer in the checkpoint, `adam.m(transformer.h.0.attn.c_proj.bias)` is f32[128] optimizer in this program and f32[64] optimizer in the checkpoint, `adam.m(transformer.h.0.attn.c_proj.weight)` is f32[128, 128] optimizer in this program and f32[64, 64] optimizer in the checkpoint, `adam.m(transformer.h.0.ln_1.bias)` is f32[128] optimizer in this program and f32[64] optimizer in the checkpoint, `adam.m(transformer.h.0.ln_1.weight)` is f32[128] optimizer in this program and f32[64] optimizer in the checkpoint, `adam.m(transformer.h.0.ln_2.bias)` is f32[128] optimizer in this program and f32[64] optimizer in the checkpoint, `adam.m(transformer.h.0.ln_2.weight)` is f32[128] optimizer in this program and f32[64] optimizer in the checkpoint, and 64 more
              = resume with the model and the flags of the first run; or load only the weights, with --weights run/checkpoints/step-2
        "#]],
    );
    refused(
        &with("text.txt", "other.txt"),
        expect![[r#"
            error: `run/checkpoints/step-2` belongs to a run with other data: 20000 bytes (hash 23b8291fd7b0251d); this run has 19999 bytes
              = resume with the data of the first run, or start a new run
        "#]],
    );
    refused(
        &with("--seed 7", "--seed 8"),
        expect![[r#"
        error: cannot resume at the checkpoint's place in the data: the seed was 7 when the checkpoint was saved and is 8 now; resume with the data and flags of the first run, or start a new run
    "#]],
    );
    refused(
        &with("--global-batch 64", "--global-batch 128"),
        expect![[r#"
        error: cannot resume at the checkpoint's place in the data: the global batch was 64 when the checkpoint was saved and is 128 now; resume with the data and flags of the first run, or start a new run
    "#]],
    );
    refused(
        &with("--lr 2e-3", "--lr 2e-3 --optimizer sgd"),
        expect![[r#"
            error: `run/checkpoints/step-2` is a checkpoint of another program (`main_graph`):
              = not in this program: `adam.m(embedding_1)` f32[1, 16, 64], `adam.m(lm_head.weight)` f32[128, 64], `adam.m(transformer.h.0.attn.c_attn.bias[0..64])` f32[64], `adam.m(transformer.h.0.attn.c_attn.bias[128..192])` f32[64], `adam.m(transformer.h.0.attn.c_attn.bias[64..128])` f32[64], `adam.m(transformer.h.0.attn.c_attn.weight[:,0..64])` f32[64, 64], `adam.m(transformer.h.0.attn.c_attn.weight[:,128..192])` f32[64, 64], `adam.m(transformer.h.0.attn.c_attn.weight[:,64..128])` f32[64, 64], and 64 more
              = resume with the model and the flags of the first run; or load only the weights, with --weights run/checkpoints/step-2
        "#]],
    );
    assert!(before == place.contents(), "a refused run changes nothing");
}

#[test]
fn a_run_that_is_past_the_length_asked_for_is_left_as_it_is() {
    let place = place();
    place.succeed(&format!("{RUN} --microbatch 64 --steps 3 -o run"));
    let before = place.contents();
    refused(
        &place.run(&format!("{RUN} --microbatch 64 --steps 2 -o run --resume")),
        expect![[r#"
            error: the run in run is at step 3, which is after --steps 2
              = steps are counted from step 0: for 2 more steps, give --steps 5
              = to start from step 0, give another folder: -o ANOTHER_DIR
        "#]],
    );
    assert!(before == place.contents(), "a refused run changes nothing");
    let ended = place.succeed(&format!("{RUN} --microbatch 64 --steps 3 -o run --resume"));
    let note = "note: the run in run is at step 3, and --steps 3 ends there: no step is left";
    assert!(ended.stderr.contains(note), "{}", ended.stderr);
}

/// A step of `gpt2-bytes` with a large microbatch takes some hundred MiB.
#[test]
fn the_process_takes_no_more_memory_than_was_planned() {
    let place = Workplace::with_text(TRAINYARD, 60_000);
    let flags = "--train text.txt --microbatch 128 --steps 2 --save-every 1 -o run";
    let mut running = Running::start(place.command(&format!("compile testdata/gpt2-bytes.onnx {flags}")));
    running.wait_for_line("memory: ");
    let before = running.memory("VmRSS").expect("it is running");
    let mut peak = 0;
    while running.is_running() {
        peak = peak.max(running.memory("VmHWM").unwrap_or(0));
        std::thread::sleep(Duration::from_micros(500));
    }
    let ended = running.wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    let plan: serde_json::Value =
        serde_json::from_slice(&place.read("run/plan.json")).expect("a plan is JSON");
    let of_plan = |key: &str| plan["memory"][key].as_u64().expect("the plan has it");
    // The checkpoint after the first step is written from a copy.
    assert_eq!(of_plan("checkpoint_copy"), of_plan("states"));
    let planned = of_plan("peak") + of_plan("checkpoint_copy");
    let taken = peak - before;
    assert!(planned > 200 << 20, "a plan of {planned} bytes shows little");
    assert!(taken > planned / 10 * 9, "{taken} bytes taken of {planned}: was it measured?");
    assert!(taken < planned / 10 * 11 + (64 << 20), "{taken} bytes taken, {planned} planned");
}

/// The model's file is mapped, and no step reads it.
#[test]
#[cfg(target_os = "linux")]
fn a_run_gives_back_the_memory_of_the_models_file_before_its_first_step() {
    for ranks in ["", " --mesh dp=2"] {
        let place = Workplace::with_text(TRAINYARD, 60_000);
        let command = format!("compile testdata/gpt2-bytes.onnx --train text.txt --steps 1000{ranks} -o run");
        let mut running = Running::start(place.command(&command));
        running.wait_for_steps(&place.path("run/metrics.jsonl"), 1);
        let resident = running.resident_of("testdata/gpt2-bytes.onnx").expect("the file is mapped");
        running.kill();
        let file = place.read("testdata/gpt2-bytes.onnx").len() as u64;
        assert!(file > 3 << 20, "a file of {file} bytes shows little");
        assert!(resident < file / 4, "{resident} bytes of {file}");
    }
}

#[test]
fn a_profile_is_a_table_and_a_timeline_of_the_last_step() {
    let place = place();
    let ended = place.succeed(
        "compile testdata/gpt2-fresh.onnx --train text.txt --device cpu --steps 3 --profile -o profiled",
    );
    assert!(ended.stderr.contains("ms per step; "), "{}", ended.stderr);
    let timeline: serde_json::Value =
        serde_json::from_slice(&place.read("profiled/timeline.json")).expect("it is JSON");
    let events = timeline["traceEvents"].as_array().expect("there are events");
    let spans: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
    let number = |event: &serde_json::Value, key: &str| event[key].as_f64().expect("a number");
    for pair in spans.windows(2) {
        let end = number(pair[0], "ts") + number(pair[0], "dur");
        assert!(end <= number(pair[1], "ts") + 1.0, "{} runs into {}", pair[0], pair[1]);
    }
    for section in ["microbatch", "update"] {
        assert!(spans.iter().any(|span| span["cat"] == section), "nothing of {section}");
    }
    let named = |span: &&serde_json::Value| {
        span["args"]["origin"].as_str().is_some_and(|node| node.contains("LayerNormalization"))
    };
    assert!(spans.iter().any(named), "no span says which node it is of");
}

#[test]
fn a_run_with_early_updates_leaves_what_a_run_with_late_ones_does() {
    let place = place();
    let flags = RUN.replace(" --clip 1", "");
    place.succeed(&format!("{flags} --microbatch 64 --steps 20 -o late"));
    place.succeed(&format!("{flags} --microbatch 64 --steps 20 --update early -o early"));
    assert_same(&place, "early", "late");
    let plan: serde_json::Value =
        serde_json::from_slice(&place.read("early/plan.json")).expect("a plan is JSON");
    assert_eq!(plan["update"], "early");
}
