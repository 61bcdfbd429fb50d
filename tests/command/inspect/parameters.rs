//! The messages about tensors that the import trained by a guess, merged or tied, or did not find.

use expect_test::expect;
use serde_json::Value;

use super::{json, read};

#[test]
fn a_position_embedding_that_the_exporter_folded_is_trained_with_a_warning() {
    let found = json(&["models/gpt2.dynamo.onnx"]);
    let warnings = found["warnings"].as_array().expect("they are a list");
    let [lost, warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert_eq!(lost["message"], "1 parameter is not in the file: `m.transformer.wpe.weight`");
    expect![[r#"
        {
          "message": "`embedding_1` f32[1, 32, 128] is trained, though it may be a constant: added to activations, as folded position embeddings are, node \"node_add_1\" (Add, opset 20)",
          "notes": [
            "--freeze 'embedding_1' keeps the tensor constant"
          ]
        }
    "#]].assert_eq(&format!("{warning:#}\n"));
}

#[test]
fn parameters_that_the_exporter_merged_are_trained_apart() {
    let found = json(&["gpt2-fresh.onnx"]);
    let tensors = found["parameters"]["tensors"].as_array().expect("they are a list");
    let trained = tensors.iter().filter(|tensor| tensor["role"] == "parameter");
    let names: Vec<&str> = trained.filter_map(|tensor| tensor["author"][0].as_str()).collect();
    for norm in ["transformer.h.0.ln_1", "transformer.h.1.ln_2", "transformer.ln_f"] {
        for leaf in ["weight", "bias"] {
            assert!(names.contains(&&*format!("{norm}.{leaf}")), "{norm}.{leaf} is not in {names:?}");
        }
    }
    let text = read(&["gpt2-fresh.onnx"]);
    assert!(!text.contains("share the initializer"), "{text}");
}

#[test]
fn the_head_of_a_legacy_export_is_tied_again() {
    for model in ["models/gpt2.legacy-mask.onnx", "odd/tied-legacy.onnx"] {
        let found = json(&[model]);
        let tensors = found["parameters"]["tensors"].as_array().expect("they are a list");
        let tied: Vec<&Value> = tensors.iter().filter(|tensor| tensor["tied"].is_object()).collect();
        let [head] = tied[..] else { panic!("{model}: {tied:?}") };
        assert_eq!(head["tied"]["permutation"], serde_json::json!([1, 0]), "{model}");
        let count = tensors.iter().filter(|tensor| tensor["role"] == "parameter").count();
        assert_eq!(found["parameters"]["count"], count - 1, "{model}");
        let untied = json(&[model, "--untied"]);
        assert_eq!(untied["parameters"]["count"], count, "{model}");
    }
}

#[test]
fn a_model_that_came_without_its_weights_says_so() {
    let text = read(&["models/gpt3-175b-noweights.onnx", "--microbatch", "16"]);
    for part in [
        "can be trained when weights are given: --weights FILE, or --init RULE",
        "1,156 parameters, 174,615,846,912 elements trained",
        "a step of 1 microbatch of 16 samples: 34.9 PFLOP",
    ] {
        assert!(text.contains(part), "no `{part}` in\n{text:.2000}");
    }
}
