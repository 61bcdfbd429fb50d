//! `trainyard inspect`: it describes every model of `testdata`, or lists every reason why it cannot.

mod as_onnx;
mod cluster;
mod dot;
mod early;
mod folder;
mod groups;
mod parameters;
mod patterns;
mod precision;
mod prediction;
mod reasons;
mod recompute;
mod stages;
mod why;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use expect_test::{Expect, expect};
use serde_json::Value;
use trainyard::cli::{Cli, Command, Inspect};
use trainyard::diagnostics::{Severity, render};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

/// `trainyard inspect ARGUMENTS`, the model's path being relative to `testdata`.
fn inspect(arguments: &[&str]) -> Inspect {
    let subject = testdata().join(arguments[0]).display().to_string();
    let words = ["trainyard", "inspect", &subject].into_iter().chain(arguments[1..].iter().copied());
    match Cli::parse_with_config(words) {
        Ok(Cli { command: Command::Inspect(inspect), .. }) => *inspect,
        other => panic!("not an inspect: {other:?}"),
    }
}

/// The text that the user reads: standard output, then standard error. Times and the path of the repository are left out.
fn read(arguments: &[&str]) -> String {
    let text = match inspect(arguments).output() {
        Ok(output) => output.text + &render(Severity::Error, &output.reasons, false),
        Err(failure) => render(Severity::Error, &failure.diagnostics(), false),
    };
    let timeless = text.lines().filter(|line| !line.starts_with("passes: "));
    let text = timeless.flat_map(|line| [line, "\n"]).collect::<String>();
    text.replace(&format!("{}/", testdata().display()), "")
}

fn json(arguments: &[&str]) -> Value {
    let output = inspect(&[arguments, &["--format", "json"]].concat()).output().expect("there is JSON");
    serde_json::from_str(&output.text).expect("it is JSON")
}

fn check(arguments: &[&str], expected: Expect) {
    expected.assert_eq(&read(arguments));
}

/// The files of a folder of `testdata` that end in `.onnx`.
fn models(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(testdata().join(folder)).expect("the folder is there");
    let names =
        entries.map(|entry| entry.expect("it can be read").file_name().into_string().expect("it is UTF-8"));
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".onnx")).collect();
    names.sort();
    names.into_iter().map(|name| format!("{folder}/{name}")).collect()
}

#[test]
fn every_model_is_described_or_all_reasons_are_told() {
    let mut table = String::new();
    for model in models("models").iter().chain(&["gpt2-bytes.onnx".into(), "gpt2-fresh.onnx".into()]) {
        let found = json(&[model]);
        let parameters = &found["parameters"];
        let (count, elements) = (&parameters["count"], &parameters["trained"]);
        let support = found["support"].as_str().expect("it has a support");
        let _ = writeln!(table, "{model}: {support}, {count} parameters, {elements} elements");
        let _ = writeln!(table, "    {}", found["program"]["patterns"]);
        for reason in found["reasons"].as_array().expect("they are a list") {
            assert!(
                reason["origin"].as_str().is_some_and(|origin| origin.contains(".onnx, node")),
                "{reason}"
            );
            let _ = writeln!(table, "    {}", reason["message"].as_str().expect("it is text"));
        }
    }
    expect![[r#"
        models/batch-loss.dynamo.onnx: trainable, 4 parameters, 259 elements
            {}
        models/bert.dynamo.onnx: trainable, 42 parameters, 352384 elements
            {"attention":2,"cross_entropy":1,"gelu":3,"layer_norm":6}
        models/bert.legacy-dyn.onnx: unbound, null parameters, null elements
            null
            the end of the slice is a size that is not bound
        models/clamped-loss.dynamo.onnx: trainable, 3 parameters, 204 elements
            {}
        models/gpt2-dropout.legacy.onnx: trainable, 28 parameters, 470528 elements
            {"attention":2,"cross_entropy":1,"gelu_tanh":2,"layer_norm":5}
        models/gpt2-fp16.dynamo.onnx: trainable, 28 parameters, 466432 elements
            {"attention":2,"cross_entropy":1,"gelu_tanh":2,"layer_norm":5}
        models/gpt2-loss.dynamo.onnx: trainable, 28 parameters, 466432 elements
            {"attention":2,"cross_entropy":1,"gelu_tanh":2,"layer_norm":5}
        models/gpt2.dynamo-dyn.onnx: unbound, null parameters, null elements
            null
            the slice needs the size of dim 1 of i64[batch, seq], which is not bound
            sizes that are not bound are read as values
        models/gpt2.dynamo-noopt.onnx: trainable, 28 parameters, 470528 elements
            {"attention":2,"cross_entropy":1,"gelu_tanh":2,"layer_norm":5}
        models/gpt2.dynamo-op23.onnx: trainable, 28 parameters, 466432 elements
            {"attention":2,"cross_entropy":1,"gelu_tanh":2,"layer_norm":5}
        models/gpt2.dynamo.onnx: trainable, 28 parameters, 466432 elements
            {"attention":2,"cross_entropy":1,"gelu_tanh":2,"layer_norm":5}
        models/gpt2.legacy-mask.onnx: trainable, 28 parameters, 470528 elements
            {"attention":2,"cross_entropy":1,"gelu_tanh":2,"layer_norm":5}
        models/gpt3-175b-noweights-op23.onnx: trainable, 1156 parameters, 174615846912 elements
            {"attention":96,"cross_entropy":1,"gelu_tanh":96,"layer_norm":193}
        models/gpt3-175b-noweights.onnx: trainable, 1156 parameters, 174615846912 elements
            {"attention":96,"cross_entropy":1,"gelu_tanh":96,"layer_norm":193}
        models/joined-loss.dynamo.onnx: trainable, 4 parameters, 361 elements
            {"cross_entropy":1}
        models/llama.dynamo-dyn.onnx: unbound, null parameters, null elements
            null
            the slice needs the size of dim 1 of i64[batch, seq], which is not bound
            sizes that are not bound are read as values
        models/llama.dynamo-op23.onnx: trainable, 21 parameters, 426624 elements
            {"attention":2,"cross_entropy":1,"rms_norm":5,"rotary":4,"silu":2}
        models/llama.dynamo.onnx: trainable, 21 parameters, 426624 elements
            {"attention":2,"cross_entropy":1,"rms_norm":5,"rotary":4,"silu":2}
        models/llama.legacy-mask.onnx: trainable, 21 parameters, 426624 elements
            {"attention":2,"cross_entropy":1,"rms_norm":5,"rotary":4,"silu":2}
        models/mixtral.dynamo-dyn.onnx: unbound, null parameters, null elements
            null
            the slice needs the size of dim 1 of i64[batch, seq], which is not bound
            sizes that are not bound are read as values
        models/mixtral.dynamo.onnx: trainable, 21 parameters, 287552 elements
            {"attention":2,"cross_entropy":1,"experts":4,"rms_norm":5,"rotary":4,"silu":2}
        models/mlp-loss.dynamo.onnx: trainable, 6 parameters, 17226 elements
            {"cross_entropy":1}
        models/mlp.dynamo-dyn.onnx: unbound, 6 parameters, 17226 elements
            {}
        models/mlp.dynamo.onnx: trainable, 6 parameters, 17226 elements
            {"cross_entropy":1}
        models/mlp.legacy.onnx: trainable, 6 parameters, 17226 elements
            {"cross_entropy":1}
        models/parted-loss.dynamo.onnx: trainable, 4 parameters, 361 elements
            {"cross_entropy":1}
        models/positives-loss.dynamo.onnx: trainable, 4 parameters, 276 elements
            {}
        models/quotient-loss.dynamo.onnx: trainable, 3 parameters, 204 elements
            {}
        models/recorded-loss.dynamo.onnx: trainable, 15 parameters, 534 elements
            {"cross_entropy":1,"layer_norm":3}
        models/resnet.dynamo.onnx: trainable, 42 parameters, 176762 elements
            {"cross_entropy":1}
        models/resnet.legacy-trainmode.onnx: trainable, 62 parameters, 177362 elements
            {"cross_entropy":1}
        models/root-loss.dynamo.onnx: trainable, 4 parameters, 259 elements
            {}
        models/smoothed-loss.dynamo.onnx: trainable, 4 parameters, 378 elements
            {}
        models/summed-loss.dynamo.onnx: trainable, 4 parameters, 259 elements
            {}
        models/t5.dynamo-dyn.onnx: unbound, 26 parameters, 7168 elements
            {"attention":3,"rms_norm":7}
        models/t5.dynamo.onnx: trainable, 26 parameters, 10336 elements
            {"attention":3,"cross_entropy":1,"rms_norm":7}
        models/weighted-loss.dynamo.onnx: trainable, 4 parameters, 378 elements
            {}
        gpt2-bytes.onnx: trainable, 52 parameters, 834304 elements
            {"attention":4,"cross_entropy":1,"gelu_tanh":4,"layer_norm":9}
        gpt2-fresh.onnx: trainable, 28 parameters, 109312 elements
            {"attention":2,"cross_entropy":1,"gelu_tanh":2,"layer_norm":5}
    "#]]
    .assert_eq(&table);
}

#[test]
fn a_small_model_as_text() {
    check(
        &["models/mlp.dynamo.onnx"],
        expect![[r#"
            models/mlp.dynamo.onnx: can be trained
              made by  pytorch 2.15.0+cu132; IR version 10; operator sets ai.onnx 20
              takes    x f32[8, 64]
              gives    logits f32[8, 10]
              holds    6 tensors (67.3 KiB), 5 nodes: 3 Gemm, 2 Relu

            6 parameters, 17,226 elements trained
              m.net.0.weight  f32[128, 64]  listed by the exporter; weight of a contraction, node "node_linear" (Gemm, opset 20)
              m.net.0.bias    f32[128]      listed by the exporter; bias, node "node_linear" (Gemm, opset 20)
              m.net.2.weight  f32[64, 128]  listed by the exporter; weight of a contraction, node "node_linear_1" (Gemm, opset 20)
              m.net.2.bias    f32[64]       listed by the exporter; bias, node "node_linear_1" (Gemm, opset 20)
              m.net.4.weight  f32[10, 64]   listed by the exporter; weight of a contraction, node "node_linear_2" (Gemm, opset 20)
              m.net.4.bias    f32[10]       listed by the exporter; bias, node "node_linear_2" (Gemm, opset 20)

            patterns found: 1 cross_entropy
            forward program: 9 nodes: 3 add, 3 contract, 2 relu, 1 cross_entropy

            loss: cross-entropy (mean over the labels that count) of the logits in output `logits` and the labels

            a step of 1 microbatch of 8 samples: 1.05 MFLOP
              forward       11 nodes   277 kFLOP  reads   88.0 KiB  writes   18.7 KiB
              backward      12 nodes   447 kFLOP  reads   69.8 KiB  writes   79.6 KiB
              update        54 nodes   327 kFLOP  reads    472 KiB  writes    269 KiB
            memory: 276 KiB planned; parameters 67.3 KiB, optimizer 135 KiB, gradients 67.3 KiB

        "#]],
    );
}

#[test]
fn a_small_model_as_json() {
    let mut found = json(&["models/mlp.dynamo.onnx", "--global-batch", "24"]);
    found["file"]["path"] = Value::Null;
    found["passes"] = Value::Null;
    found["parameters"]["tensors"].as_array_mut().expect("they are a list").truncate(1);
    let text = serde_json::to_string_pretty(&found).expect("JSON prints") + "\n";
    expect![[r#"
        {
          "feed_forward": {
            "blocks": [],
            "near": [
              {
                "origin": "node \"node_linear_1\" (Gemm, opset 20)",
                "pattern": "feed-forward",
                "reason": "its rows are samples (f32[8, 64]), and routing compares the tokens of a sequence"
              },
              {
                "origin": "node \"node_linear_2\" (Gemm, opset 20)",
                "pattern": "feed-forward",
                "reason": "its rows are samples (f32[8, 128]), and routing compares the tokens of a sequence"
              }
            ]
          },
          "file": {
            "absent": 0,
            "bytes": 68904,
            "inputs": [
              {
                "name": "x",
                "type": "f32[8, 64]"
              }
            ],
            "ir_version": 10,
            "nodes": 5,
            "operators": {
              "Gemm": 3,
              "Relu": 2
            },
            "opsets": {
              "ai.onnx": 20
            },
            "outputs": [
              {
                "name": "logits",
                "type": "f32[8, 10]"
              }
            ],
            "path": null,
            "producer": "pytorch 2.15.0+cu132",
            "tensors": 6
          },
          "loss": "cross-entropy (mean over the labels that count) of the logits in output `logits` and the labels",
          "parameters": {
            "count": 6,
            "frozen": 0,
            "tensors": [
              {
                "aliases": [],
                "author": [
                  "m.net.0.weight"
                ],
                "frozen": false,
                "name": "m.net.0.weight",
                "reason": "listed by the exporter; weight of a contraction, node \"node_linear\" (Gemm, opset 20)",
                "role": "parameter",
                "states": [
                  {
                    "state": "m.net.0.weight",
                    "type": "f32[128, 64]",
                    "view": ""
                  }
                ],
                "type": "f32[128, 64]"
              }
            ],
            "trained": 17226
          },
          "passes": null,
          "program": {
            "operators": {
              "add": 3,
              "contract": 3,
              "cross_entropy": 1,
              "relu": 2
            },
            "patterns": {
              "cross_entropy": 1
            }
          },
          "reasons": [],
          "step": {
            "batch": 8,
            "flops": 2498017,
            "memory": {
              "buffers": 0,
              "gradients": 68904,
              "optimizer": 137816,
              "parameters": 68904,
              "planned": 293120
            },
            "microbatches": 3,
            "phases": [
              {
                "flops": 276576,
                "nodes": 11,
                "phase": "forward",
                "read": 90096,
                "written": 19128
              },
              {
                "flops": 446992,
                "nodes": 12,
                "phase": "backward",
                "read": 71524,
                "written": 81516
              },
              {
                "flops": 327313,
                "nodes": 54,
                "phase": "update",
                "read": 482854,
                "written": 275917
              }
            ]
          },
          "support": "trainable",
          "unbound": [],
          "warnings": []
        }
    "#]]
    .assert_eq(&text);
}

#[test]
fn costs_grow_with_the_batch_and_the_optimizer() {
    let step = |arguments: &[&str]| json(&[&["models/mlp.dynamo.onnx"], arguments].concat())["step"].clone();
    let (small, large) = (step(&["--microbatch", "4"]), step(&["--microbatch", "16"]));
    let forward = |step: &Value| step["phases"][0]["flops"].as_u64().expect("it is a number");
    assert_eq!(forward(&small) * 4, forward(&large));
    let several = step(&["--microbatch", "4", "--global-batch", "16"]);
    assert_eq!((&several["microbatches"], forward(&several)), (&4.into(), forward(&small)));
    let optimizer =
        |name: &str| step(&["--optimizer", name])["memory"]["optimizer"].as_u64().expect("it is a number");
    let (adam, momentum) = (optimizer("adamw"), optimizer("momentum"));
    let parameters = small["memory"]["parameters"].as_u64().expect("it is a number");
    assert!(adam >= 2 * parameters && momentum >= parameters && momentum < adam, "{adam} {momentum}");
    // Without momentum, the state of gradient descent is the counter of steps.
    assert_eq!(optimizer("sgd"), 8);
    assert_eq!(optimizer("lion"), momentum);
    assert_eq!(optimizer("adamw:moments=bf16"), momentum);
    let (factored, in_8_bits) = (optimizer("adafactor"), optimizer("adamw:moments=8bit"));
    assert!(factored > 8 && factored < parameters / 10, "{factored} of {parameters}");
    assert!(in_8_bits < momentum && in_8_bits > parameters / 2, "{in_8_bits} of {parameters}");
}

#[test]
fn the_program_after_a_pass_is_text_that_parses() {
    for pass in ["import", "bind", "canonicalize", "parameters", "autodiff", "simplify"] {
        let output =
            inspect(&["models/mlp.dynamo.onnx", "--after", pass]).output().expect("the pass is there");
        let module = ir::text::parse(&output.text).expect("the text parses");
        let has_states = ["parameters", "autodiff", "simplify"].contains(&pass);
        assert_eq!(!module.states.is_empty(), has_states, "{pass}");
    }
    check(
        &["models/mlp.dynamo.onnx", "--after", "canonicalise"],
        expect![[r#"
            error: --after canonicalise: there is no such pass
              = there are bind, dropout, fold, canonicalize, parameters, moe, loss, initialize, stage, delay, autodiff, precision, router_bias, compress_gradients, optimizer, simplify, spmd, collectives, buckets, hierarchy, recompute, compress_activations, offload, evaluation, update, keep, absorb, join; the nearest is `canonicalize`
        "#]],
    );
    check(
        &["models/mlp.dynamo-dyn.onnx", "--after", "autodiff"],
        expect![[r#"
            error: --after autodiff: the pass runs only when all dims are bound
              = bind the dims: --bind batch=SIZE
        "#]],
    );
    check(
        &["models/mlp.dynamo.onnx", "--after", "absorb"],
        expect![[r#"
            error: --after absorb: the pass is not among those that make a step by these flags
        "#]],
    );
}
