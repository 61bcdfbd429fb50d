//! Recurrent layers that are one operator, and layers and loops that the import unrolls. Every weight is trained, and every mesh and microbatch
//! gives the gradients of the untransformed graph. A quantized model is refused.

use std::collections::BTreeMap;
use std::path::PathBuf;
use testing::verification;
use trainyard::compilation::Source;
use trainyard::diagnostics::{Severity, render};
use trainyard::failure::Failure;

fn model(name: &str) -> PathBuf {
    testing::testdata(&format!("{name}.onnx"))
}

/// Asserts that the compiled step equals that of the untransformed graph.
#[track_caller]
fn verify(flags: &str) {
    verification::passing(&model("recurrent"), flags);
}

fn told(failure: &Failure) -> String {
    render(Severity::Error, &failure.diagnostics(), false)
}

#[test]
fn every_weight_of_a_recurrent_layer_is_a_parameter() {
    let source = Source::load(&model("recurrent"), &BTreeMap::new())
        .unwrap_or_else(|failure| panic!("{}", told(&failure)));
    let plan = trainyard::pipeline::CompilationPlan::default();
    let compiled = source
        .compile(&plan, &passes::Manager::default(), |_, _, _| {})
        .unwrap_or_else(|failure| panic!("{}", told(&failure)));
    let trained = |name: &str| {
        let report = compiled.reports.parameters.iter().find(|report| report.data == name);
        report.is_some_and(|report| !report.states.is_empty())
    };
    let layers = ["lstm", "gru", "gru_after", "rnn"].into_iter();
    let weights = layers.flat_map(|layer| ["w", "r", "b"].map(|part| format!("{layer}.{part}")));
    let others = ["lstm.p", "scan.r", "embedding", "head"].map(str::to_owned);
    for name in weights.chain(others) {
        assert!(trained(&name), "{name} is not trained: {:#?}", compiled.reports.parameters);
    }
    assert!(!trained("scan.start"), "the zeros before the first step are a constant");
}

#[test]
fn biases_of_all_directions_in_one_tensor_do_not_decay() {
    let source = Source::load(&model("recurrent"), &BTreeMap::new())
        .unwrap_or_else(|failure| panic!("{}", told(&failure)));
    let mut plan = trainyard::pipeline::CompilationPlan::default();
    plan.optimizer.weight_decay = 0.5;
    let compiled = source
        .compile(&plan, &passes::Manager::default(), |_, _, _| {})
        .unwrap_or_else(|failure| panic!("{}", told(&failure)));
    let module = &compiled.training;
    let splat = |value| match &module.producer(value).expect("a node makes it").op {
        ir::Op::Splat(splat) => splat.value.get(),
        op => panic!("{op:?} is no number"),
    };
    let mut decays: BTreeMap<&str, f64> = BTreeMap::new();
    for report in &compiled.reports.parameters {
        for part in &report.states {
            let state = module.state(&part.state).expect("there is such a state");
            let own = module.states[state].input;
            let updates = module.nodes().filter(|(_, node)| matches!(node.op, ir::Op::Adam(_)));
            let update = updates.map(|(_, node)| node).find(|node| node.operands[0] == own);
            decays.insert(&report.data, splat(update.expect("each is updated").operands[5]));
        }
    }
    for layer in ["lstm", "gru", "gru_after", "rnn"] {
        let [w, r, b] = ["w", "r", "b"].map(|part| decays[&*format!("{layer}.{part}")]);
        assert_eq!((w, r, b), (0.5, 0.5, 0.0), "{layer}");
    }
    assert_eq!((decays["lstm.p"], decays["head"]), (0.0, 0.5));
}

#[test]
fn an_unrolled_model_computes_the_step_of_the_untransformed_graph() {
    verify("");
    verify("--microbatch 1 --global-batch 4");
    verify("--mode cpu --tolerance 1e-5");
}

#[test]
fn an_unrolled_model_is_split_over_data_ranks_and_tensor_ranks() {
    verify("--microbatch 1 --global-batch 4 --mesh dp=2");
    verify("--microbatch 1 --global-batch 4 --mesh dp=2 --zero 3");
    verify("--mesh tp=2");
}

/// Asserts the same for the layers that are one operator in each direction.
#[track_caller]
fn verify_layers(flags: &str) {
    verification::passing(&model("recurrent-layers"), flags);
}

#[test]
fn layers_compute_the_step_of_the_untransformed_graph() {
    for flags in ["", "--microbatch 1 --global-batch 4", "--recompute full", "--recompute selective"] {
        verify_layers(flags);
        verify_layers(&format!("{flags} --mode cpu --tolerance 1e-5"));
    }
}

#[test]
fn layers_are_split_over_data_ranks_tensor_ranks_and_stages() {
    for mesh in ["dp=2", "dp=2 --zero 3", "tp=2", "pp=2", "dp=2,tp=2", "pp=2,dp=2 --zero 1"] {
        let batch = if mesh.contains("dp") { 4 } else { 2 };
        for recompute in ["", " --recompute full"] {
            verify_layers(&format!("--microbatch {batch} --global-batch 8 --mesh {mesh}{recompute}"));
        }
    }
}

#[test]
fn layers_compute_in_f32_in_a_step_in_half_precision() {
    for half in ["--bf16", "--fp16"] {
        for mesh in ["", "--mesh dp=2", "--mesh tp=2", "--mesh pp=2"] {
            verify_layers(&format!("{half} {mesh}"));
        }
    }
}

#[test]
fn a_quantized_model_is_refused_with_all_its_reasons() {
    let refused = Source::load(&model("quantized"), &BTreeMap::new()).map(|_| ());
    let told = told(&refused.expect_err("a quantized model is not trained"));
    for part in [
        "the model is quantized and cannot be trained: 5 nodes",
        "DequantizeLinear, 3 times, first at node \"dequantize0\" (DequantizeLinear, opset 20)",
        "QuantizeLinear, 2 times, first at node \"quantize0\" (QuantizeLinear, opset 20)",
        "export the float model",
    ] {
        assert!(told.contains(part), "{part:?} is missing in:\n{told}");
    }
}
