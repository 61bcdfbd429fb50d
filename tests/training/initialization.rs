//! `--init` on the models of `testdata`: the purpose of each parameter follows from the graph.

use expect_test::{Expect, expect};
use ir::interp::{self, Missing, Mode};
use ir::{DType, Initializer, Module, Op, Tensor};
use passes::Manager;
use passes::initialize::{InitialValue, Initialize, Rule, Use, decide};
use std::collections::BTreeMap;
use std::path::Path;
use trainyard::compilation::{Compilation, Source};
use trainyard::pipeline::CompilationPlan;

/// A model compiled with the file's weights.
fn compiled(model: &str) -> Compilation {
    compiled_with(model, None)
}

/// A model compiled with new weights.
fn initialized(model: &str, rule: Rule) -> Compilation {
    compiled_with(model, Some(Initialize { rule }))
}

fn compiled_with(model: &str, initialize: Option<Initialize>) -> Compilation {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(model);
    let source = Source::load(&path, &BTreeMap::new()).expect("the model is imported");
    let plan = CompilationPlan { initialize, ..CompilationPlan::default() };
    source.compile(&plan, &Manager::default(), |_, _, _| {}).expect("the model compiles")
}

fn check(model: &str, rule: Rule, expected: Expect) {
    expected.assert_eq(&decide(&compiled(model).forward, rule).to_string());
}

/// The value of every state after `--init`, by name.
fn values(compilation: &Compilation, seed: u64) -> BTreeMap<String, Tensor> {
    let module = &compilation.training;
    let values =
        interp::initial_states(module, seed, Missing::Refuse).expect("nothing of the file is needed");
    values.into_iter().map(|(id, value)| (module.states[id].name.clone(), value)).collect()
}

#[test]
fn gpt2_scales_what_is_added_to_the_residual_stream() {
    check(
        "models/gpt2.dynamo.onnx",
        Rule::Gpt2,
        expect![[r#"
        embedding_1: Table -> normal 0.02000
        m.lm_head.weight: Table -> normal 0.02000
        m.transformer.h.0.attn.c_attn.bias[0..128]: Bias -> 0
        m.transformer.h.0.attn.c_attn.bias[128..256]: Bias -> 0
        m.transformer.h.0.attn.c_attn.bias[256..384]: Bias -> 0
        m.transformer.h.0.attn.c_attn.weight[:,0..128]: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.transformer.h.0.attn.c_attn.weight[:,128..256]: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.transformer.h.0.attn.c_attn.weight[:,256..384]: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.transformer.h.0.attn.c_proj.bias: Bias -> 0
        m.transformer.h.0.attn.c_proj.weight: Weight { fan_in: 128, residual: true } -> normal 0.01000
        m.transformer.h.0.ln_1.bias: Bias -> 0
        m.transformer.h.0.ln_1.weight: Scale -> 1
        m.transformer.h.0.ln_2.bias: Bias -> 0
        m.transformer.h.0.ln_2.weight: Scale -> 1
        m.transformer.h.0.mlp.c_fc.bias: Bias -> 0
        m.transformer.h.0.mlp.c_fc.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.transformer.h.0.mlp.c_proj.bias: Bias -> 0
        m.transformer.h.0.mlp.c_proj.weight: Weight { fan_in: 512, residual: true } -> normal 0.01000
        m.transformer.h.1.attn.c_attn.bias[0..128]: Bias -> 0
        m.transformer.h.1.attn.c_attn.bias[128..256]: Bias -> 0
        m.transformer.h.1.attn.c_attn.bias[256..384]: Bias -> 0
        m.transformer.h.1.attn.c_attn.weight[:,0..128]: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.transformer.h.1.attn.c_attn.weight[:,128..256]: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.transformer.h.1.attn.c_attn.weight[:,256..384]: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.transformer.h.1.attn.c_proj.bias: Bias -> 0
        m.transformer.h.1.attn.c_proj.weight: Weight { fan_in: 128, residual: true } -> normal 0.01000
        m.transformer.h.1.ln_1.bias: Bias -> 0
        m.transformer.h.1.ln_1.weight: Scale -> 1
        m.transformer.h.1.ln_2.bias: Bias -> 0
        m.transformer.h.1.ln_2.weight: Scale -> 1
        m.transformer.h.1.mlp.c_fc.bias: Bias -> 0
        m.transformer.h.1.mlp.c_fc.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.transformer.h.1.mlp.c_proj.bias: Bias -> 0
        m.transformer.h.1.mlp.c_proj.weight: Weight { fan_in: 512, residual: true } -> normal 0.01000
        m.transformer.ln_f.bias: Bias -> 0
        m.transformer.ln_f.weight: Scale -> 1
    "#]],
    );
}

#[test]
fn what_is_added_to_the_residual_stream_may_be_dropped_before() {
    let decision = decide(&compiled("models/gpt2-dropout.legacy.onnx").forward, Rule::Gpt2);
    let residual = |(_, (found, _)): &(&String, &(Use, InitialValue))| {
        matches!(found, Use::Weight { residual: true, .. })
    };
    let added: Vec<(&String, &(Use, InitialValue))> = decision.starts.iter().filter(residual).collect();
    assert_eq!(added.len(), 4);
    for (name, (_, start)) in added {
        assert!(
            name.ends_with(".c_proj.weight") && *start == InitialValue::Normal(0.01),
            "{name}: {start:?}"
        );
    }
}

#[test]
fn llama_has_scales_without_biases() {
    check(
        "models/llama.dynamo.onnx",
        Rule::Gpt2,
        expect![[r#"
        m.lm_head.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.model.embed_tokens.weight: Table -> normal 0.02000
        m.model.layers.0.input_layernorm.weight: Scale -> 1
        m.model.layers.0.mlp.down_proj.weight: Weight { fan_in: 256, residual: true } -> normal 0.01000
        m.model.layers.0.mlp.gate_proj.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.model.layers.0.mlp.up_proj.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.model.layers.0.post_attention_layernorm.weight: Scale -> 1
        m.model.layers.0.self_attn.k_proj.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.model.layers.0.self_attn.o_proj.weight: Weight { fan_in: 128, residual: true } -> normal 0.01000
        m.model.layers.0.self_attn.q_proj.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.model.layers.0.self_attn.v_proj.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.model.layers.1.input_layernorm.weight: Scale -> 1
        m.model.layers.1.mlp.down_proj.weight: Weight { fan_in: 256, residual: true } -> normal 0.01000
        m.model.layers.1.mlp.gate_proj.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.model.layers.1.mlp.up_proj.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.model.layers.1.post_attention_layernorm.weight: Scale -> 1
        m.model.layers.1.self_attn.k_proj.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.model.layers.1.self_attn.o_proj.weight: Weight { fan_in: 128, residual: true } -> normal 0.01000
        m.model.layers.1.self_attn.q_proj.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.model.layers.1.self_attn.v_proj.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.model.norm.weight: Scale -> 1
    "#]],
    );
}

#[test]
fn bert_adds_to_the_stream_before_its_norms() {
    check(
        "models/bert.dynamo.onnx",
        Rule::Gpt2,
        expect![[r#"
        embedding_2: Table -> normal 0.02000
        m.bert.embeddings.LayerNorm.bias: Bias -> 0
        m.bert.embeddings.LayerNorm.weight: Scale -> 1
        m.bert.embeddings.token_type_embeddings.weight: Table -> normal 0.02000
        m.bert.encoder.layer.0.attention.output.LayerNorm.bias: Bias -> 0
        m.bert.encoder.layer.0.attention.output.LayerNorm.weight: Scale -> 1
        m.bert.encoder.layer.0.attention.output.dense.bias: Bias -> 0
        m.bert.encoder.layer.0.attention.output.dense.weight: Weight { fan_in: 128, residual: true } -> normal 0.01000
        m.bert.encoder.layer.0.attention.self.key.bias: Bias -> 0
        m.bert.encoder.layer.0.attention.self.key.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.bert.encoder.layer.0.attention.self.query.bias: Bias -> 0
        m.bert.encoder.layer.0.attention.self.query.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.bert.encoder.layer.0.attention.self.value.bias: Bias -> 0
        m.bert.encoder.layer.0.attention.self.value.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.bert.encoder.layer.0.intermediate.dense.bias: Bias -> 0
        m.bert.encoder.layer.0.intermediate.dense.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.bert.encoder.layer.0.output.LayerNorm.bias: Bias -> 0
        m.bert.encoder.layer.0.output.LayerNorm.weight: Scale -> 1
        m.bert.encoder.layer.0.output.dense.bias: Bias -> 0
        m.bert.encoder.layer.0.output.dense.weight: Weight { fan_in: 256, residual: true } -> normal 0.01000
        m.bert.encoder.layer.1.attention.output.LayerNorm.bias: Bias -> 0
        m.bert.encoder.layer.1.attention.output.LayerNorm.weight: Scale -> 1
        m.bert.encoder.layer.1.attention.output.dense.bias: Bias -> 0
        m.bert.encoder.layer.1.attention.output.dense.weight: Weight { fan_in: 128, residual: true } -> normal 0.01000
        m.bert.encoder.layer.1.attention.self.key.bias: Bias -> 0
        m.bert.encoder.layer.1.attention.self.key.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.bert.encoder.layer.1.attention.self.query.bias: Bias -> 0
        m.bert.encoder.layer.1.attention.self.query.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.bert.encoder.layer.1.attention.self.value.bias: Bias -> 0
        m.bert.encoder.layer.1.attention.self.value.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.bert.encoder.layer.1.intermediate.dense.bias: Bias -> 0
        m.bert.encoder.layer.1.intermediate.dense.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.bert.encoder.layer.1.output.LayerNorm.bias: Bias -> 0
        m.bert.encoder.layer.1.output.LayerNorm.weight: Scale -> 1
        m.bert.encoder.layer.1.output.dense.bias: Bias -> 0
        m.bert.encoder.layer.1.output.dense.weight: Weight { fan_in: 256, residual: true } -> normal 0.01000
        m.cls.predictions.decoder.bias: Bias -> 0
        m.cls.predictions.decoder.weight: Table -> normal 0.02000
        m.cls.predictions.transform.LayerNorm.bias: Bias -> 0
        m.cls.predictions.transform.LayerNorm.weight: Scale -> 1
        m.cls.predictions.transform.dense.bias: Bias -> 0
        m.cls.predictions.transform.dense.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
    "#]],
    );
}

#[test]
fn kaiming_looks_at_what_is_summed() {
    check(
        "models/mlp.dynamo.onnx",
        Rule::Kaiming,
        expect![[r#"
        m.net.0.bias: Bias -> 0
        m.net.0.weight: Weight { fan_in: 64, residual: false } -> normal 0.17678
        m.net.2.bias: Bias -> 0
        m.net.2.weight: Weight { fan_in: 128, residual: false } -> normal 0.12500
        m.net.4.bias: Bias -> 0
        m.net.4.weight: Weight { fan_in: 64, residual: false } -> normal 0.17678
    "#]],
    );
}

#[test]
fn a_tied_head_starts_as_the_table_it_is() {
    check(
        "odd/tied-legacy.onnx",
        Rule::Kaiming,
        expect![[r#"
        embedding.weight: Table -> normal 0.02000
        linear.bias: Bias -> 0
        linear.weight: Weight { fan_in: 8, residual: false } -> normal 0.50000
    "#]],
    );
}

#[test]
fn an_mlp_without_a_residual_stream_is_drawn_as_it_is() {
    check(
        "models/mlp.dynamo.onnx",
        Rule::Gpt2,
        expect![[r#"
        m.net.0.bias: Bias -> 0
        m.net.0.weight: Weight { fan_in: 64, residual: false } -> normal 0.02000
        m.net.2.bias: Bias -> 0
        m.net.2.weight: Weight { fan_in: 128, residual: false } -> normal 0.02000
        m.net.4.bias: Bias -> 0
        m.net.4.weight: Weight { fan_in: 64, residual: false } -> normal 0.02000
    "#]],
    );
}

#[test]
fn the_numbers_drawn_have_the_deviation_asked_for_and_come_from_the_seed() {
    let compilation = initialized("models/gpt2.dynamo.onnx", Rule::Normal { std: 0.5 });
    let (first, again, other) = (values(&compilation, 3), values(&compilation, 3), values(&compilation, 4));
    assert_eq!(first, again);
    let decision = decide(&compilation.forward, Rule::Normal { std: 0.5 });
    assert!(decision.starts.len() >= 28);
    for (name, (_, start)) in &decision.starts {
        let elements = first[name].floats();
        match start {
            InitialValue::Fill(value) => assert!(elements.iter().all(|x| x == value), "{name}"),
            InitialValue::Normal(_) => {
                let variance = elements.iter().map(|x| x * x).sum::<f64>() / elements.len() as f64;
                assert!((variance.sqrt() - 0.5).abs() < 0.05, "{name}: {}", variance.sqrt());
                assert_ne!(first[name], other[name]);
            }
        }
    }
}

#[test]
fn a_model_that_starts_from_scratch_knows_nothing() {
    let compilation = initialized("models/gpt2.dynamo.onnx", Rule::Gpt2);
    let module = &compilation.evaluation;
    let mut states =
        interp::initial_states(module, 1, Missing::Refuse).expect("nothing of the file is needed");
    // The labels differ from the tokens, because a tied head predicts its own tokens slightly.
    let tokens = |(offset, input): (i64, &ir::Input)| {
        let sizes: Vec<usize> =
            module.ty(input.value).sizes().unwrap().iter().map(|&size| size as usize).collect();
        let count = sizes.iter().product::<usize>() as i64;
        let token = |i: i64| (i * 7 + offset * 100) % 512;
        (input.name.clone(), Tensor::int(DType::I64, sizes, (0..count).map(token).collect()))
    };
    let inputs = (0..).zip(&module.inputs).map(tokens).collect();
    let outputs = interp::step(module, Mode::Exact, &mut states, &[inputs]).expect("the program runs");
    let loss = outputs["loss.sum"][0].item() / outputs["loss.weight"][0].item();
    let vocabulary = module.nodes().find_map(|(_, node)| match node.op {
        Op::CrossEntropy(_) => module.ty(node.operands[0]).dims.last()?.size(),
        _ => None,
    });
    let ignorance = (vocabulary.expect("there is a loss") as f64).ln();
    assert!((loss - ignorance).abs() < 0.1, "{loss} is not about {ignorance}");
}

#[test]
fn a_new_start_still_names_the_tensor_of_the_file() {
    let [before, after] = [None, Some(Initialize { rule: Rule::Gpt2 })]
        .map(|initialize| compiled_with("odd/tied-legacy.onnx", initialize));
    let rows = |module: &Module| -> Vec<_> { module.states.values().map(|s| s.initializer.data()).collect() };
    assert_eq!(rows(&after.training), rows(&before.training));
    assert_eq!(rows(&after.evaluation), rows(&before.evaluation));
    for module in [&after.forward, &after.training, &after.evaluation] {
        let parameters = module.states.values().filter(|state| state.initializer.data().is_some());
        let mut parameters = parameters.filter(|state| state.ty.dtype.is_float());
        assert!(parameters.all(|state| !matches!(state.initializer, Initializer::Data(_))));
    }
}
