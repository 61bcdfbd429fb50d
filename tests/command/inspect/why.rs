//! `--why NAME`: each tensor's role with its reason, under any of its names.

use expect_test::expect;

use super::{check, json, read};

#[test]
fn why_says_what_a_tensor_is() {
    check(
        &[
            "models/gpt2.dynamo.onnx",
            "--why=embedding_1",
            "--why=m.transformer.h.0.attn.c_attn.weight",
            "--why=m.transformer.h.0.attn.c_attn.weight[:,128..256]",
            "--why=adam.m(m.lm_head.weight)",
            "--why=input_ids",
            "--freeze=embedding_1",
        ],
        expect![[r#"
            `embedding_1` f32[1, 32, 128] is a parameter, frozen: it is not trained
              because: added to activations, as folded position embeddings are, node "node_add_1" (Add, opset 20)

            `m.transformer.h.0.attn.c_attn.weight` f32[128, 384] is a parameter
              because: listed by the exporter; weight of a contraction, node "node_Split_326" (Split, opset 20)
                state m.transformer.h.0.attn.c_attn.weight[:,0..128] f32[128, 128] = [slice 1 0 128]
                state m.transformer.h.0.attn.c_attn.weight[:,128..256] f32[128, 128] = [slice 1 128 128]
                state m.transformer.h.0.attn.c_attn.weight[:,256..384] f32[128, 128] = [slice 1 256 128]

            `m.transformer.h.0.attn.c_attn.weight` f32[128, 384] is a parameter
              because: listed by the exporter; weight of a contraction, node "node_Split_326" (Split, opset 20)
                state m.transformer.h.0.attn.c_attn.weight[:,0..128] f32[128, 128] = [slice 1 0 128]
                state m.transformer.h.0.attn.c_attn.weight[:,128..256] f32[128, 128] = [slice 1 128 128]
                state m.transformer.h.0.attn.c_attn.weight[:,256..384] f32[128, 128] = [slice 1 256 128]

            `adam.m(m.lm_head.weight)` f32[512, 128] is a state (optimizer)
              because: the optimizer keeps this state from step to step

            `input_ids` i64[2, 32] is neither a parameter nor a constant
              because: the model takes it
        "#]],
    );
}

#[test]
fn why_knows_tensors_by_their_module_path() {
    check(
        &["models/llama.dynamo.onnx", "--why=m.model.layers.0.self_attn.q_proj.weight"],
        expect![[r#"
            `val_110` f32[128, 128] is a parameter
              because: listed by the exporter; weight of a contraction, node "node_linear" (MatMul, opset 20)
                also called m.model.layers.0.self_attn.q_proj.weight
        "#]],
    );
}

#[test]
fn why_not_of_constants() {
    let tensors = json(&["models/llama.dynamo.onnx"])["parameters"]["tensors"].clone();
    let constants =
        tensors.as_array().expect("they are a list").iter().filter(|row| row["role"] == "constant");
    for constant in constants {
        let name = constant["name"].as_str().expect("it is text");
        let text = read(&["models/llama.dynamo.onnx", "--why", name]);
        assert!(text.contains("is a constant\n  because: "), "{text}");
    }
}

#[test]
fn a_name_that_nothing_has_is_answered_with_the_nearest() {
    check(
        &["models/mlp.dynamo.onnx", "--why", "m.net.0.wieght"],
        expect![[r#"
        error: --why m.net.0.wieght: the model has no tensor or pattern of this name
          = the nearest are `m.net.0.weight`, `m.net.2.weight`, `m.net.4.weight`, `m.net.0.bias`, `m.net.2.bias`
    "#]],
    );
}

/// A name of an ONNX node stands for all results of its nodes; a value of the program has the name that it has in the text.
#[test]
fn why_says_whether_an_activation_is_kept_or_computed_again() {
    let model = "models/gpt2.dynamo.onnx";
    check(
        &[model, "--recompute=selective", "--why=node_mul_3", "--why=node_layer_norm_1", "--why=node_add_11"],
        expect![[r#"
            the result %140 and %248 of `gelu_tanh`, 128 KiB on each device, is computed again in backward
              because: its node takes 7.4 µs, and the price of its bytes is 14.4 µs
                node "node_mul_3" (Mul, opset 20)
                in block 3 of 6, from node "node_layer_norm" (LayerNormalization, opset 20) to node "node_add_7" (Add, opset 20)

            the result %135 and %253 of `layer_norm`, 32.0 KiB on each device, is computed again in backward
              because: its node takes 2.6 µs, and the price of its bytes is 3.6 µs
                node "node_layer_norm_1" (LayerNormalization, opset 20)
                in block 3 of 6, from node "node_layer_norm" (LayerNormalization, opset 20) to node "node_add_7" (Add, opset 20)
            the result %136 and %254 of `layer_norm`, 256 B on each device, is computed again in backward
              because: its node, which takes 2.6 µs, is repeated for other results too
                node "node_layer_norm_1" (LayerNormalization, opset 20)
                in block 3 of 6, from node "node_layer_norm" (LayerNormalization, opset 20) to node "node_add_7" (Add, opset 20)
            the result %137 and %255 of `layer_norm`, 256 B on each device, is computed again in backward
              because: its node, which takes 2.6 µs, is repeated for other results too
                node "node_layer_norm_1" (LayerNormalization, opset 20)
                in block 3 of 6, from node "node_layer_norm" (LayerNormalization, opset 20) to node "node_add_7" (Add, opset 20)

            the result %174 of `add`, 32.0 KiB on each device, is kept
              because: a later block reads it
                node "node_add_11" (Add, opset 20)
                in block 4 of 6, from node "node_layer_norm_2" (LayerNormalization, opset 20) to node "node_add_11" (Add, opset 20)
        "#]],
    );
    let text = |name: &str| read(&[model, "--recompute=selective", "--why", name]);
    assert_eq!(text("%140"), text("node_mul_3"), "the value");
    assert_eq!(text("%248"), text("node_mul_3"), "its copy");
    let behind_reduction = read(&[model, "--mesh=tp=2", "--recompute=full", "--why=node_add_4"]);
    let because =
        "is kept for backward\n  because: a reduction over devices would be repeated to compute it again";
    assert!(behind_reduction.contains(because), "{behind_reduction}");
    let without = read(&[model, "--why=node_mul_3"]);
    assert!(without.contains("the model has no tensor or pattern of this name"), "{without}");
}
