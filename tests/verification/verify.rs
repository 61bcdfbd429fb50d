//! `trainyard verify`: real models pass in every mode, faults that are planted between passes are found and the pass is named, and mistakes
//! of the user are answered.

mod against;
mod rounding;

use crate::TRAINYARD;
use clap::error::ErrorKind;
use ir::ops::elementwise::{Binary, Unary};
use ir::{At, Builder, DType, Module, Op, Phase, Role, Type};
use std::path::Path;
use testing::models::{self, path};
use testing::planted::Planted;
use trainyard::cli::{Cli, Command, ParseError};
use trainyard::diagnostics::{Severity, render};
use trainyard::verification::Mode;
use trainyard::verification::compare::{Difference, Kind};
use trainyard::verification::report::Report;

/// Runs `trainyard verify ARGUMENTS`, whose first argument is a file of `testdata/models`. Returns the report, or the error that the user
/// would read.
fn verify(arguments: &str) -> Result<Report, String> {
    let mut words = vec!["trainyard".to_owned(), "verify".to_owned()];
    words.extend(arguments.split_whitespace().map(|word| {
        if word.contains(".onnx") || word.contains(".npz") {
            path(word).display().to_string()
        } else {
            word.to_owned()
        }
    }));
    let cli = Cli::parse_with_config(words).expect("the flags are right");
    let Command::Verify(verify) = cli.command else { panic!("not a verify") };
    verify.report().map_err(|failure| {
        assert_eq!(failure.exit_code(), 2, "{failure:?}");
        render(Severity::Error, &failure.diagnostics(), false)
    })
}

fn check_passes(arguments: &str) -> Report {
    let report = verify(arguments).unwrap_or_else(|error| panic!("{arguments}: {error}"));
    assert!(report.passed && report.failed() == 0, "{arguments}:\n{report}");
    report
}

#[test]
fn real_models_compute_what_their_untransformed_graphs_do() {
    for file in [
        "mlp.dynamo",
        "mlp.legacy",
        "mlp-loss.dynamo",
        "gpt2.dynamo",
        "gpt2.dynamo-op23",
        "gpt2-loss.dynamo",
        "gpt2.legacy-mask",
        "llama.dynamo",
        "llama.dynamo-op23",
        "llama.legacy-mask",
        "bert.dynamo",
        "gpt2.dynamo-noopt",
        "gpt2-fp16.dynamo",
        "mixtral.dynamo",
        "resnet.dynamo",
        "resnet.legacy-trainmode",
    ] {
        let report = check_passes(&format!("{file}.onnx --microbatch 2 --global-batch 6"));
        assert_eq!(report.microbatches, 3);
        assert!(
            report.differences.iter().filter(|difference| difference.kind == Kind::Gradient).count() >= 6
        );
    }
    for file in ["gpt2.dynamo-dyn", "llama.dynamo-dyn", "bert.legacy-dyn", "mixtral.dynamo-dyn"] {
        check_passes(&format!("{file}.onnx --bind seq=8 --microbatch 3"));
    }
}

#[test]
fn real_models_pass_rounded_and_on_the_cpu_backend() {
    for file in ["mlp.dynamo", "gpt2.legacy-mask", "llama.dynamo", "bert.dynamo", "mixtral.dynamo"] {
        for mode in ["typed", "cpu"] {
            check_passes(&format!("{file}.onnx --mode {mode}"));
            check_passes(&format!("{file}.onnx --mode {mode} --microbatch 1 --global-batch 2 --clip 0.01"));
        }
    }
}

#[test]
fn products_of_bf16_by_instructions_or_their_emulations_pass() {
    for (file, mode) in
        [("gpt2.legacy-mask", "cpu-amx"), ("mixtral.dynamo", "cpu-amx"), ("bert.dynamo", "cpu-avx512-bf16")]
    {
        check_passes(&format!("{file}.onnx --bf16 --mode {mode}"));
        check_passes(&format!(
            "{file}.onnx --bf16 --mode {mode} --mesh dp=2,tp=2 --microbatch 1 --global-batch 4"
        ));
    }
}

#[test]
fn every_way_to_train_is_verified() {
    for flags in [
        "--optimizer sgd --weight-decay 0.1 --decay all",
        "--optimizer nesterov --lr 0.1",
        "--optimizer adam --weight-decay 0.1 --clip 0.001",
        "--optimizer adagrad:eps=1e-8 --weight-decay 0.1 --clip 0.1",
        "--optimizer lion --weight-decay 0.1 --lr 1e-4",
        "--optimizer adafactor --weight-decay 0.1 --clip 0.1",
        "--optimizer adafactor:relative=off,beta1=0.9",
        "--optimizer adamw:moments=bf16",
        "--optimizer adam:moments=8bit --weight-decay 0.1",
        "--lr-schedule cosine:warmup=3,min=1e-5",
        "--lr-schedule wsd:decay=5,min=1e-5 --group *.attn.*:lr=0.5 --group *.bias:weight-decay=0.2,lr=3",
        "--freeze *lm_head* --freeze *.bias",
        "--train-only *mlp*",
        "--label-smoothing 0.1 --ignore-index 3",
        "--init gpt2 --seed 7",
        "--init normal:std=0.1 --mode cpu",
    ] {
        check_passes(&format!("gpt2.dynamo.onnx {flags}"));
    }
    check_passes("gpt2.legacy-mask.onnx --untied");
}

#[test]
fn numbers_of_pytorch_are_matched_by_name_and_by_value() {
    let report = check_passes("gpt2.dynamo.onnx --against gpt2.train.npz --tolerance 1e-5");
    let how =
        |there: &str| report.tensors.matched.iter().find(|found| found.there == there).unwrap().how.as_str();
    assert_eq!(how("m.transformer.wpe.weight"), "by its value, rows 0..32 of that there");
    assert_eq!(how("m.transformer.h.0.ln_1.weight"), "");
    assert_eq!(report.tensors.unmatched_here, ["output logits"]);
    let report = check_passes("llama.dynamo.onnx --against llama.train.npz --tolerance 1e-5");
    assert!(report.tensors.matched.iter().any(|found| found.how == "transposed"), "{report}");
    let text = verify("llama.dynamo.onnx --against llama.train.npz --tolerance 1e-9").unwrap().to_string();
    assert!(text.contains("DIFFERENT") && text.contains("above the tolerance 1e-9"), "{text}");
    // The batch of the file is divided into two microbatches, and the outputs are put together again.
    let report = check_passes("bert.dynamo.onnx --microbatch 1 --against bert.io.npz --tolerance 1e-5");
    assert_eq!((report.microbatches, report.differences.len()), (2, 1));
}

/// Gives `node` another operator on the same operands.
fn change_operator(module: &mut Module, by: &str, from: &Op, to: &Op) {
    let found = module.nodes().find(|(_, node)| node.op == *from).map(|(id, node)| (id, node.clone()));
    let (id, node) = found.expect("the program has such a node");
    let mut b = Builder::new(module, by);
    b.at(At::Before(id));
    let results = b.push(to.clone(), &node.operands).expect("the operators take the same operands");
    node.results.iter().zip(results).for_each(|(&old, new)| b.replace(old, new));
    b.remove(id);
    b.finish();
}

#[test]
fn without_a_fault_no_pass_is_blamed() {
    let planted = Planted::new(&models::GPT2_DYNAMO);
    assert!(planted.differences(&planted.stages, Mode::Exact)[0].error <= 1e-9);
    assert_eq!(planted.culprit(&planted.stages, Mode::Exact, 1e-9), None);
    assert_eq!(planted.culprit(&planted.stages, Mode::On(cpu::TARGET), 1e-5), None);
    // If the mode itself has errors above the tolerance, no pass is to blame.
    let culprit = planted.culprit(&planted.stages, Mode::On(cpu::TARGET), 1e-9).expect("rounding is found");
    assert_eq!((culprit.pass, culprit.number), (None, 0));
}

#[test]
fn a_pattern_that_was_found_wrongly_is_caught_and_canonicalize_is_named() {
    let planted = Planted::new(&models::GPT2_DYNAMO);
    let differences = planted.check("canonicalize", |module| {
        change_operator(module, "canonicalize", &Unary::GeluTanh.into(), &Unary::Gelu.into());
    });
    let of =
        |kind: Kind| differences.iter().find(|difference| difference.kind == kind).expect("all are compared");
    assert!(of(Kind::Output).error > 1e-9 && of(Kind::Loss).error > 1e-9 && of(Kind::Gradient).error > 1e-9);
}

#[test]
fn a_wrong_gradient_is_caught_and_autodiff_is_named() {
    let planted = Planted::new(&models::BERT_DYNAMO);
    let differences = planted.check("autodiff", |module| {
        change_operator(module, "autodiff", &Binary::GeluGrad.into(), &Binary::GeluTanhGrad.into());
    });
    let outputs =
        differences.iter().filter(|difference| difference.kind == Kind::Output || difference.name == "loss");
    assert!(outputs.into_iter().all(|difference| difference.error < 1e-12), "forward is right");
}

#[test]
fn one_gradient_that_is_too_large_is_named() {
    let planted = Planted::new(&models::MLP_DYNAMO);
    let differences = planted.check("autodiff", |module| {
        let at = module
            .outputs
            .iter()
            .position(|output| output.name == "grad.m.net.2.bias")
            .expect("it is trained");
        let mut b = Builder::new(module, "autodiff");
        b.at(At::End(Phase::Update));
        let gradient = b.module().outputs[at].value;
        let wrong = b.build(gradient * 1.01).expect("a gradient is a float");
        b.tables().outputs[at].value = wrong;
        b.finish();
    });
    let wrong = |difference: &&Difference| difference.kind == Kind::Gradient && difference.error > 1e-9;
    let wrong: Vec<&Difference> = differences.iter().filter(wrong).collect();
    assert!(wrong.len() == 1 && wrong[0].name == "m.net.2.bias", "{wrong:?}");
    assert!((wrong[0].error - 0.01).abs() < 1e-9, "{wrong:?}");
}

#[test]
fn a_parameter_that_is_not_updated_is_caught_and_simplify_is_named() {
    let planted = Planted::new(&models::LLAMA_DYNAMO);
    let differences = planted.check("simplify", |module| {
        let (id, _) =
            module.states.iter().filter(|(_, state)| state.role == Role::Parameter).nth(4).expect("21 are");
        module.states[id].output = None;
    });
    let wrong: Vec<&Difference> = differences.iter().filter(|difference| difference.error > 1e-9).collect();
    assert!(wrong.len() == 1 && wrong[0].kind == Kind::Parameter, "{wrong:?}");
}

#[test]
fn weights_that_are_not_here_are_refused_with_what_to_do() {
    let error = verify("gpt3-175b-noweights.onnx --microbatch 1").unwrap_err();
    assert!(error.starts_with("error: the weights of `"), "{error}");
    assert!(error.contains("--weights FILE.safetensors") && error.contains("--init"), "{error}");
    let error = verify("gpt3-175b-noweights.onnx --microbatch 1 --init gpt2").unwrap_err();
    assert!(error.contains("the states of two programs need"), "{error}");
}

/// A safetensors file of float tensors.
fn write(path: &Path, tensors: &[(&str, &[usize], Vec<f32>)]) {
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, _, values)| values.iter().flat_map(|value| value.to_le_bytes()).collect())
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, sizes, _), bytes)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, sizes.to_vec(), bytes);
        (*name, view.expect("the sizes fit"))
    });
    std::fs::write(path, safetensors::serialize(views, None).expect("tensors"))
        .expect("a temporary file is written");
}

#[test]
fn files_of_numbers_that_do_not_fit_say_what_would() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("numbers.safetensors");
    let against = |tensors: &[(&str, &[usize], Vec<f32>)]| {
        write(&file, tensors);
        verify(&format!("mlp.dynamo.onnx --tolerance 1e-3 --against {}", file.display()))
    };
    let x = || ("input.x", &[8, 64][..], vec![0.5; 8 * 64]);
    let error = against(&[("logits", &[8, 10], vec![0.0; 80])]).unwrap_err();
    assert!(error.contains("the file has no `input.x`, which is f32[8, 64]"), "{error}");
    let error = against(&[("input.x", &[7, 64], vec![0.5; 7 * 64])]).unwrap_err();
    assert!(error.contains("input `x` is f32[7, 64], and the program takes f32[8, 64]"), "{error}");
    let error = against(&[x()]).unwrap_err();
    assert!(error.contains("the file has no tensor to compare with"), "{error}");
    let error = against(&[x(), ("grad.net.0.bias", &[128], vec![0.0; 128])]).unwrap_err();
    assert!(error.contains("gradients can be compared only with the labels"), "{error}");
    let report =
        against(&[x(), ("logits", &[8, 10], vec![0.0; 80]), ("param.w", &[3], vec![1.0; 3])]).unwrap();
    assert!(!report.passed);
    assert_eq!(report.tensors.unmatched_there, ["parameter w"]);
    assert_eq!(report.tensors.unmatched_here.len(), 6, "{report}");

    std::fs::write(&file, b"not a file of tensors").expect("a temporary file is written");
    let broken = verify(&format!("mlp.dynamo.onnx --against {}", file.display())).unwrap_err();
    assert!(broken.contains("--against:") && broken.contains("numbers.safetensors"), "{broken}");
    let missing = verify("mlp.dynamo.onnx --against nowhere.npz").unwrap_err();
    assert!(missing.contains("nowhere.npz"), "{missing}");
    let wrong = verify("mlp.dynamo.onnx --against numbers.txt").unwrap_err();
    assert!(wrong.contains("not an .npz file"), "{wrong}");
    let both =
        Cli::parse_with_config(["trainyard", "verify", "mlp.onnx", "--bisect", "--against", "mlp.npz"]);
    let Err(ParseError::Usage(error)) = both else { panic!("{both:?}") };
    assert_eq!(error.kind(), ErrorKind::ArgumentConflict);
}

#[test]
fn weights_of_the_user_are_verified_in_place_of_the_files() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("weights.safetensors");
    let values: Vec<f32> = (0..128 * 64).map(|i| (i % 23) as f32 * 0.01 - 0.1).collect();
    write(&file, &[("m.net.0.weight", &[128, 64], values)]);
    let with = check_passes(&format!("mlp.dynamo.onnx --weights {}", file.display()));
    let without = check_passes("mlp.dynamo.onnx");
    assert_ne!(with.loss, without.loss);
}

#[test]
fn the_command_exits_with_0_or_3_and_prints_a_table_or_json() {
    let run = |flags: &str| {
        let mut command = std::process::Command::new(TRAINYARD);
        let output =
            command.arg("verify").arg(path("mlp.dynamo.onnx")).args(flags.split_whitespace()).output();
        let output = output.expect("the command starts");
        (output.status.code(), String::from_utf8(output.stdout).expect("it prints text"))
    };
    let (code, table) = run("--microbatch 2 --global-batch 8");
    assert_eq!(code, Some(0), "{table}");
    assert!(
        table.contains("(mode exact, 6 parameters, 4 microbatches) against the untransformed graph"),
        "{table}"
    );
    assert!(table.ends_with("equal: no error is above 1e-9\n"), "{table}");
    let assumed = "\
trained tensors  not compared: 6 of the 6 float tensors that the model reads; 6 by the exporter's list of parameters
loss             not compared: cross-entropy (mean over the labels that count) of the logits in output `logits` and the labels
batch            not compared: random numbers (--seed 0); your data may reach other parts of the model
the strongest check is --against, ";
    assert!(table.contains(assumed), "{table}");

    let (code, json) = run("--mode cpu --tolerance 1e-300 --bisect --json");
    assert_eq!(code, Some(3), "{json}");
    let json: serde_json::Value = serde_json::from_str(&json).expect("it prints JSON");
    assert_eq!(
        (&json["passed"], &json["mode"], &json["parameters"]),
        (&false.into(), &"cpu".into(), &6.into())
    );
    assert!(json["differences"][0]["error"].as_f64() > Some(0.0));
    assert_eq!(json["culprit"]["number"], 0);
    let about = |index: usize| &json["assumptions"][index]["about"];
    assert_eq!([about(0), about(1), about(2)], ["trained tensors", "loss", "batch"]);
    assert_eq!(json["assumptions"][0]["checked"], false);
}

#[test]
fn a_program_that_cannot_run_is_blamed_on_the_pass_that_made_it() {
    let planted = Planted::new(&models::MLP_DYNAMO);
    let stages = planted.stages_with("optimizer", |module| {
        let unfed = module.add_input("unfed", Type::of(DType::F32, &[2]), true);
        module.add_output("unfed", unfed);
    });
    let failure = planted.bisect(&stages, Mode::Exact, 1e-9).expect_err("nothing feeds it");
    let told = render(Severity::Error, &failure.diagnostics(), false);
    let blamed = "the program after pass `optimizer` fails, and the programs before it do not";
    assert!(told.contains("input `unfed` is missing") && told.contains(blamed), "{told}");
}
