//! `--target`: the prediction of a step on a device that this machine does not have.

use serde_json::Value;

use super::{inspect, json, read};

const SMALL: &str = "models/gpt2.dynamo.onnx";

fn numbers(all: &Value, key: &str) -> Vec<f64> {
    let list = all.as_array().expect("it is a list");
    list.iter().map(|one| one[key].as_f64().expect("it is a number")).collect()
}

/// Users and scripts rely on this: every launch is listed, and the times of all commands add up to more than the step, since some overlap.
#[test]
fn every_command_of_a_step_is_told_once() {
    let found = json(&[SMALL, "--target", "h200", "--global-batch", "6"]);
    let prediction = &found["prediction"];
    assert_eq!(prediction["microbatches"], 3);
    let runs = |section: &Value| if section["section"] == "microbatch" { 3 } else { 1 };
    let sections = prediction["sections"].as_array().expect("they are a list");
    let mut launches = 0;
    for section in sections {
        let number = |key: &str| section[key].as_u64().expect("it is a number");
        let kinds = ["kernels", "multiplications", "libraries", "collectives"];
        let own: u64 = kinds.into_iter().map(number).sum();
        let commands = prediction["commands"].as_array().expect("they are a list");
        let told = commands.iter().filter(|command| command["section"] == section["section"]).count();
        assert_eq!(own, told as u64, "{section}");
        launches += own * runs(section);
    }
    assert_eq!(prediction["launches"], launches);
    let by_kind: f64 = numbers(&prediction["kinds"], "launches").iter().sum();
    assert_eq!(by_kind as u64, launches);
    let [step, in_turn] =
        ["step_ms", "in_turn_ms"].map(|key| prediction[key].as_f64().expect("it is a number"));
    let by_kind: f64 = numbers(&prediction["kinds"], "ms").iter().sum();
    assert!((by_kind - in_turn).abs() < 1e-9 * in_turn, "{by_kind} {in_turn}");
    assert!(step < in_turn, "gradients of weights overlap: {step} {in_turn}");
    // Three microbatches of 2 samples of 32 tokens.
    assert_eq!((&prediction["samples"], &prediction["tokens"]), (&(2 * 32 * 3).into(), &true.into()));
}

/// The copies from and to a file have a stream of their own, and make the step longer.
#[test]
fn a_step_of_a_gpu_with_values_in_a_file_is_predicted() {
    let folder = std::env::temp_dir();
    let file = format!("host=1200KiB,disk={}", folder.display());
    let predicted = |memory: &str| {
        let flags = ["--offload", "optimizer,parameters", "--offload-least", "1B", "--memory", memory];
        let found = json(&[&[SMALL, "--target", "h200"][..], &flags].concat());
        let prediction = found["prediction"].clone();
        let copies = numbers(&prediction["sections"], "with_file").iter().sum::<f64>();
        let streams = prediction["commands"].as_array().expect("they are a list").iter();
        let on_disk = streams.filter(|command| command["stream"] == "disk").count();
        assert_eq!(copies as usize, on_disk);
        (on_disk, prediction["step_ms"].as_f64().expect("it is a number"))
    };
    let [(none, on_host), (some, in_file)] = [predicted("host=1GiB"), predicted(&file)];
    assert_eq!(none, 0);
    // Each request waits 100 µs for its disk.
    assert!(some > 0 && in_file - on_host > 0.05 * some as f64, "{some} copies, {on_host} and {in_file} ms");
}

/// 72·B·L·s·h²·(1 + s/(12h) + v/(12Lh)) operations (arXiv 2205.05198, with half of the scores for causal attention).
#[test]
fn a_models_operations_are_those_of_the_published_formula() {
    let found = json(&["models/gpt3-175b-noweights.onnx", "--bf16", "--target", "h200"]);
    let (layers, s, h, v) = (96.0, 2048.0, 12288.0, 51200.0);
    let published = 72.0 * layers * s * h * h * (1.0 + s / (12.0 * h) + v / (12.0 * layers * h));
    let counted = found["prediction"]["model_flops"].as_f64().expect("it is a number");
    assert!((counted / published - 1.0).abs() < 1e-6, "{counted} {published}");
}

/// Megatron-LM measured 137 TFLOP/s for a model of 1.7 B parameters on an A100 (arXiv 2104.04473). The prediction for a model of 1.5 B is
/// above this, and below the speed of one multiplication.
#[test]
fn a_prediction_lies_between_what_was_published_and_what_one_multiplication_attains() {
    let flags =
        ["bench/gpt2-1.5b.onnx", "--bind", "seq=1024", "--microbatch", "16", "--bf16", "--target", "a100"];
    let mfu = json(&flags)["prediction"]["mfu"].as_f64().expect("it is a number");
    assert!((137.0 / 312.0..271.2 / 312.0).contains(&mfu), "{mfu}");
}

#[test]
fn a_step_is_told_in_words() {
    let text = read(&[
        "bench/gpt2-124m.onnx",
        "--bind",
        "seq=1024",
        "--microbatch",
        "16",
        "--bf16",
        "--target",
        "h200",
    ]);
    let expected = [
        "\non H200 SXM: ",
        " ms per step, ",
        " tokens per second, MFU ",
        " % of 13.1 TFLOP\n",
        " launches, ",
        "\n  energy and cost: ",
        " dollars per billion tokens\n",
        "\n  memory of each device: ",
        "saved activations ",
        "\n    microbatch    1 x   ",
        "\nthe longest\n",
        "compute  multiply [1, 16384, 768, 50304]  at node \"node_linear_48\" (MatMul, opset 23)\n",
        " with less time; --format json lists all\n",
    ];
    for expected in expected {
        assert!(text.contains(expected), "no `{expected}` in\n{text}");
    }
}

#[test]
fn a_faster_memory_makes_a_shorter_step() {
    let step = |target: &str| {
        let found = json(&[SMALL, "--microbatch", "64", "--target", target]);
        found["prediction"]["step_ms"].as_f64().expect("it is a number")
    };
    let usual = step("h200");
    assert!(step("h200:bandwidth=0.01") > 2.0 * usual, "{usual}");
    assert!(step("h200:launch=20") > 2.0 * usual, "{usual}");
}

#[test]
fn a_timeline_has_every_command_within_its_step() {
    let output = inspect(&[SMALL, "--target", "a100", "--format", "perfetto"]).output().expect("it is drawn");
    let timeline: Value = serde_json::from_str(&output.text).expect("it is JSON");
    let prediction = &json(&[SMALL, "--target", "a100"])["prediction"];
    let events = timeline["traceEvents"].as_array().expect("they are a list");
    let spans: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
    assert_eq!(spans.len(), prediction["commands"].as_array().expect("they are a list").len());
    let end = |span: &&Value| span["ts"].as_f64().expect("a time") + span["dur"].as_f64().expect("a time");
    let last = spans.iter().map(end).fold(0.0, f64::max);
    let step = prediction["step_ms"].as_f64().expect("it is a number") * 1e3;
    assert!(last <= step + 1e-6 && last > 0.5 * step, "{last} {step}");
    let tracks: std::collections::BTreeSet<u64> =
        spans.iter().filter_map(|span| span["tid"].as_u64()).collect();
    assert_eq!(tracks, [0, 1].into());
}

/// Two data ranks send each other as many bytes as the passes count.
#[test]
fn collectives_are_sent_by_links() {
    let found = json(&[SMALL, "--mesh", "dp=2", "--target", "h200"]);
    let commands = found["prediction"]["commands"].as_array().expect("they are a list");
    let sent: u64 = commands.iter().filter_map(|command| command["sent"].as_u64()).sum();
    assert!(sent > 0);
    assert_eq!(found["step"]["mesh"]["communication"]["bytes"], sent);
}

#[test]
fn a_timeline_needs_a_device() {
    let refused = read(&[SMALL, "--format", "perfetto"]);
    assert!(refused.contains("give the device: --target h200"), "{refused}");
}

#[test]
fn a_run_stands_beside_the_prediction_for_its_kind_of_device() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().display().to_string();
    let write =
        |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("it is written");
    let program = read(&[SMALL, "--after", "simplify"]);
    write("program.ir", &program);
    write("plan.json", r#"{"microbatches": 2}"#);
    let step = |step: u64, ms: f64| {
        format!(
            r#"{{"step":{step},"loss":1.0,"lr":0.1,"grad_norm":1.0,"tokens_per_s":1.0,"step_ms":{ms},"skipped":false}}"#
        ) + "\n"
    };
    write("metrics.jsonl", &[step(0, 9000.0), step(1, 20.0), step(2, 20.0)].concat());
    write("config.toml", "device = \"cpu\"\n");
    let text = read(&[&path, "--target", "h200"]);
    assert!(
        text.contains("the run was not on a GPU (--device cuda): its 20.00 ms per step cannot be compared"),
        "{text}"
    );
    let text = read(&[&path, "--target", "cpu"]);
    assert!(text.contains("the run took 20.00 ms per step, "), "{text}");
    write("config.toml", "device = \"cuda\"\n");
    let text = read(&[&path, "--target", "h200"]);
    assert!(text.contains("the run took 20.00 ms per step, "), "{text}");
    let found = json(&[&path, "--target", "h200"]);
    assert_eq!(
        (&found["prediction"]["microbatches"], &found["run"]["median_step_ms"]),
        (&2.into(), &20.0.into())
    );
}

/// If attention does not use cuDNN, its command and that of its gradient are named with the reason.
#[test]
fn attention_by_our_own_kernels_is_named_with_the_reason() {
    let single = read(&[SMALL, "--target", "h200"]);
    let reason = "by our own kernels: 2 x, f32 (cuDNN is used for attention in f16 and bf16)\n";
    for kind in ["attention", "gradient of attention"] {
        assert!(single.contains(&format!("\n  {kind} {reason}")), "{single}");
    }
    let half = read(&[SMALL, "--bf16", "--target", "h100"]);
    assert!(!half.contains("by our own kernels"), "{half}");
}

#[test]
fn products_of_experts_are_one_launch_each_on_tensor_cores() {
    let found = json(&["models/mixtral.dynamo.onnx", "--bf16", "--target", "h100"]);
    let kinds = found["prediction"]["kinds"].as_array().expect("a list");
    let launches = |kind: &str| {
        let of_kind = kinds.iter().find(|of_kind| of_kind["kind"] == kind).expect("there are launches");
        of_kind["launches"].as_u64().expect("a count")
    };
    // Two layers, each with two products forward and two more for the gradient of each.
    assert_eq!([launches("experts_mma"), launches("experts_grad_mma")], [2 * 4, 2 * 2]);
}
