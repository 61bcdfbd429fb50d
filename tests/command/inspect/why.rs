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
