//! Patterns that are found in every model, and the reasons why near matches are not found.

use expect_test::expect;
use serde_json::{Value, json};

use super::{check, inspect, json};

/// Checks the patterns that `inspect` counts in a model, and the patterns that lack one condition.
#[track_caller]
fn found(model: &str, flags: &[&str], expected: Value) {
    let path = format!("models/{model}.onnx");
    let inspection = json(&[&[path.as_str()], flags].concat());
    assert_eq!(inspection["program"]["patterns"], expected, "{model}");
    assert_eq!(inspection["near_misses"], Value::Null, "{model}");
}

#[test]
fn gpt2_has_its_patterns_in_every_export() {
    let patterns = json!({ "attention": 2, "cross_entropy": 1, "gelu_tanh": 2, "layer_norm": 5 });
    for model in
        ["dynamo", "dynamo-op23", "dynamo-noopt", "legacy-mask"].map(|exporter| format!("gpt2.{exporter}"))
    {
        found(&model, &[], patterns.clone());
    }
    for model in ["gpt2-loss.dynamo", "gpt2-fp16.dynamo", "gpt2-dropout.legacy"] {
        found(model, &[], patterns.clone());
    }
    found("gpt2.dynamo-dyn", &["--bind", "batch=2,seq=32"], patterns);
}

#[test]
fn llama_has_its_patterns_in_every_export() {
    let patterns = json!({ "attention": 2, "cross_entropy": 1, "rms_norm": 5, "rotary": 4, "silu": 2 });
    for model in ["llama.dynamo", "llama.dynamo-op23", "llama.legacy-mask"] {
        found(model, &[], patterns.clone());
    }
    found("llama.dynamo-dyn", &["--bind", "batch=2,seq=32"], patterns);
}

#[test]
fn bert_has_its_patterns_in_every_export() {
    let patterns = json!({ "attention": 2, "cross_entropy": 1, "gelu": 3, "layer_norm": 6 });
    found("bert.dynamo", &[], patterns.clone());
    found("bert.legacy-dyn", &["--bind", "batch=2,seq=32"], patterns);
}

#[test]
fn attention_of_t5_has_its_bias_in_every_export() {
    let patterns = json!({ "attention": 3, "cross_entropy": 1, "rms_norm": 7 });
    let bindings = ["--bind", "batch=2,seq=32,dseq=24"];
    for (model, flags) in [("t5.dynamo", &[][..]), ("t5.dynamo-dyn", &bindings)] {
        found(model, flags, patterns.clone());
        let path = format!("models/{model}.onnx");
        let arguments = [&[path.as_str(), "--after", "canonicalize"], flags].concat();
        let module = inspect(&arguments).output().expect("the pass is there").text;
        let module = ir::text::parse(&module).expect("the text parses");
        let attention = |(_, node): (_, &ir::Node)| match &node.op {
            ir::Op::Attention(op) => Some((node.operands.len(), op.causal)),
            _ => None,
        };
        let mut found: Vec<(usize, bool)> = module.nodes().filter_map(attention).collect();
        found.sort_unstable();
        // Cross attention, attention in the encoder with its bias, and attention in the decoder with its bias, where later positions are
        // hidden.
        assert_eq!(found, [(3, false), (4, false), (4, true)], "{model}");
    }
}

#[test]
fn the_experts_of_mixtral_are_found() {
    let patterns = json!({
        "attention": 2, "cross_entropy": 1, "experts": 4, "rms_norm": 5, "rotary": 4, "silu": 2
    });
    found("mixtral.dynamo", &[], patterns.clone());
    found("mixtral.dynamo-dyn", &["--bind", "batch=2,seq=32"], patterns);
}

#[test]
fn all_96_layers_of_gpt3_have_their_patterns() {
    let patterns = json!({ "attention": 96, "cross_entropy": 1, "gelu_tanh": 96, "layer_norm": 193 });
    for model in ["gpt3-175b-noweights", "gpt3-175b-noweights-op23"] {
        found(model, &["--microbatch", "16"], patterns.clone());
    }
}

#[test]
fn models_without_patterns_have_their_loss() {
    for model in ["mlp.dynamo", "mlp.legacy", "mlp-loss.dynamo", "resnet.dynamo", "resnet.legacy-trainmode"] {
        found(model, &[], json!({ "cross_entropy": 1 }));
    }
    found("mlp.dynamo-dyn", &["--bind", "batch=8"], json!({ "cross_entropy": 1 }));
}

#[test]
fn why_tells_how_often_a_pattern_was_found() {
    check(
        &["models/gpt2.dynamo.onnx", "--why", "attention", "--why", "rms_norm"],
        expect![[r#"
            `attention` was found 2 times, and no node nearly matches

            `rms_norm` was not found, and no node nearly matches
        "#]],
    );
}

#[test]
fn feed_forward_blocks_are_listed_whether_or_not_they_become_mixtures() {
    for flags in [&[][..], &["--moe", "experts=4"]] {
        let found = json(&[&["models/llama.dynamo.onnx"], flags].concat());
        let blocks = found["feed_forward"]["blocks"].as_array().expect("a list");
        let sizes: Vec<_> = blocks.iter().map(|block| (&block["features"], &block["hidden"])).collect();
        assert_eq!(sizes, [(&json!(128), &json!(256)); 2], "{flags:?}");
    }
    check(
        &["models/gpt2.dynamo.onnx", "--why", "feed-forward"],
        expect![[r#"
        `feed-forward` was found 2 times, and no node nearly matches
          at node "node_mul_3" (Mul, opset 20): 128 numbers, 512 hidden
          at node "node_mul_7" (Mul, opset 20): 128 numbers, 512 hidden
    "#]],
    );
    check(
        &["models/mlp.dynamo.onnx", "--why", "feed-forward"],
        expect![[r#"
        `feed-forward` was not found
          nearly `feed-forward` at node "node_linear_1" (Gemm, opset 20)
            but its rows are samples (f32[8, 64]), and routing compares the tokens of a sequence
          nearly `feed-forward` at node "node_linear_2" (Gemm, opset 20)
            but its rows are samples (f32[8, 128]), and routing compares the tokens of a sequence
    "#]],
    );
}
