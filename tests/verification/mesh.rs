//! Meshes: a model that is split over devices computes the same as on one, whichever axes split it. A run on local ranks can be resumed on
//! other devices. A split that is impossible is refused, and the error names possible ones.

use crate::TRAINYARD;
use expect_test::{Expect, expect};
use passes::optimizer::Algorithm;
use testing::models::{self, path};
use testing::verification;
use testing::workplace::Workplace;
use trainyard::diagnostics::{Severity, render};
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::compare::Kind;
use trainyard::verification::report::Report;

/// Runs `trainyard verify ARGUMENTS`, whose first argument is a file of `testdata/models` without its ending. Returns the report, or the
/// error that the user would read.
fn verify(arguments: &str) -> Result<Report, String> {
    let (model, flags) = arguments.split_once(' ').unwrap_or((arguments, ""));
    let model = path(&format!("{model}.onnx"));
    verification::verify(&model, flags).map_err(|failure| {
        let text = render(Severity::Error, &failure.diagnostics(), false);
        assert_eq!(failure.exit_code(), 2, "{text}");
        text.replace(&model.display().to_string(), "MODEL")
    })
}

#[track_caller]
fn check_passes(arguments: &str) -> Report {
    let report = verify(arguments).unwrap_or_else(|error| panic!("{arguments}: {error}"));
    assert!(report.passed && report.failed() == 0, "{arguments}:\n{report}");
    assert!(report.differences.iter().any(|difference| difference.kind == Kind::Gradient));
    report
}

#[track_caller]
fn check_error(arguments: &str, expected: Expect) {
    expected.assert_eq(&verify(arguments).expect_err(arguments));
}

/// The transformer exports and an MLP, each with a batch that two data ranks share.
const MODELS: [&str; 4] = ["mlp.dynamo", "gpt2.dynamo", "llama.dynamo", "bert.dynamo"];

#[test]
fn data_ranks_compute_what_one_device_does() {
    for model in MODELS {
        for mesh in ["dp=2", "dp=4", "dp.outer=2,dp.inner=2"] {
            check_passes(&format!("{model} --microbatch 2 --mesh {mesh} --tolerance 1e-10"));
        }
    }
}

#[test]
fn data_ranks_in_several_nodes_compute_what_one_device_does() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cluster = folder.path().join("cluster.toml");
    std::fs::write(&cluster, "preset = 'h100'\nnodes = 4\n[node]\ndevices = 2\n").expect("it is written");
    for flags in ["--mesh dp=4", "--mesh tp=2,dp=4", "--mesh dp=4 --zero 2"] {
        check_passes(&format!(
            "gpt2.dynamo --microbatch 2 {flags} --tolerance 1e-10 --cluster {}",
            cluster.display()
        ));
    }
}

#[test]
fn tensor_ranks_compute_what_one_device_does() {
    for model in MODELS {
        for mesh in ["tp=2", "tp=4"] {
            check_passes(&format!("{model} --microbatch 2 --mesh {mesh} --tolerance 1e-10"));
        }
    }
}

#[test]
fn expert_ranks_compute_what_one_device_does() {
    for flags in [
        "--mesh ep=2 --optimizer momentum",
        "--mesh ep.a=2,ep.b=2",
        "--mesh ep=2,dp=2 --global-batch 16 --clip 0.01",
        "--mesh ep=2,tp=2 --sequence-parallel",
        "--mesh pp=2,ep=2 --global-batch 16 --zero 1",
        "--mesh dp=2,ep=2 --zero 2 --recompute full",
    ] {
        check_passes(&format!("mixtral.dynamo --microbatch 2 {flags} --tolerance 1e-10"));
    }
    check_passes("mixtral.dynamo-dyn --bind seq=24 --microbatch 3 --mesh ep=2 --tolerance 1e-10");
    check_passes("mixtral.dynamo --mesh ep=4 --mode cpu");
}

#[test]
fn expert_ranks_share_the_states_of_the_rest_of_the_model() {
    for flags in ["ep=2 --zero 1", "dp=2,ep=2 --zero 2 --bf16", "dp=2,ep=2 --zero 3 --fp16 --clip 0.1"] {
        let flags = format!("--mesh {flags} --global-batch 8 --microbatch 1");
        check_passes(&format!("mixtral.dynamo {flags} --tolerance 1e-10"));
    }
}

#[test]
fn both_together_compute_what_one_device_does_in_microbatches_and_clipped() {
    for model in MODELS {
        for flags in [
            "--global-batch 4 --tolerance 1e-10",
            "--global-batch 12 --clip 0.01 --tolerance 1e-10",
            "--mode cpu",
        ] {
            check_passes(&format!("{model} --microbatch 2 --mesh dp=2,tp=2 {flags}"));
        }
    }
}

#[test]
fn every_stage_of_zero_computes_what_one_device_does() {
    for model in MODELS {
        for zero in 1..=3 {
            for mesh in ["dp=2", "dp=2,tp=2"] {
                let flags = format!("--mesh {mesh} --zero {zero} --global-batch 8 --microbatch 2");
                check_passes(&format!("{model} {flags} --tolerance 1e-10"));
            }
        }
    }
}

#[test]
fn the_states_of_every_optimizer_are_shared_and_split() {
    let group = "--group *mlp*:lr=0.5,weight-decay=0.3 --lr-schedule wsd:warmup=0,decay=1,min=1e-4";
    // With the default eps, Adagrad would move parameters by gradients that are zero but for rounding.
    let optimizers = [
        "sgd",
        "momentum",
        "nesterov",
        "adagrad:eps=1e-8",
        "adafactor",
        "lion",
        "adam",
        "adamw",
        "adam:moments=bf16",
        "adamw:moments=8bit",
        "adafactor:relative=off,beta1=0.9",
    ];
    let is_there = |name: &str| optimizers.iter().any(|optimizer| optimizer.starts_with(name));
    assert!(Algorithm::ALL.iter().all(|(_, name)| is_there(name)));
    for optimizer in optimizers {
        for flags in
            ["--mesh dp=2,tp=2 --zero 1", "--mesh dp=2 --zero 3 --bf16 --clip 0.1", "--mesh tp=2 --fp16"]
        {
            let flags = format!("--optimizer {optimizer} {flags} {group} --global-batch 4 --microbatch 2");
            check_passes(&format!("gpt2.dynamo {flags} --tolerance 1e-10"));
        }
    }
}

#[test]
fn half_precision_is_exact_where_rounding_is_left_out() {
    for flags in ["--bf16", "--fp16 --clip 0.1", "--bf16 --grad-dtype bf16 --mesh dp=2,tp=2 --zero 1"] {
        check_passes(&format!("gpt2.dynamo {flags} --tolerance 1e-10"));
    }
}

#[test]
fn what_cannot_be_split_says_what_could_be() {
    check_error(
        "gpt2.dynamo --mesh tp=3",
        expect![[r#"
        error: the 4 heads of an attention cannot be divided into tp=3 equal parts
          --> node "node_scaled_dot_product_attention" (MatMul, opset 20)
          = tp can be 1, 2, 4
    "#]],
    );
    check_error(
        "gpt2.dynamo --bind batch=3 --mesh dp=2",
        expect![[r#"
        error: 2 data ranks cannot share a batch of 3 (--bind batch=3)
          = the nearest batches that they can share: --bind batch=2 or --bind batch=4
    "#]],
    );
    check_error(
        "gpt2.dynamo --microbatch 2 --bind batch=2 --mesh dp=2",
        expect![[r#"
        error: --microbatch 2 on 2 data ranks contradicts --bind batch=2
          = give only one of these flags
    "#]],
    );
    check_error(
        "gpt2.dynamo --mesh dp=2 --microbatch 2 --global-batch 6",
        expect![[r#"
        error: the global batch 6 is not a multiple of the microbatch 2 on 2 data ranks
          = the nearest multiples: --global-batch 4 or 8
          = or --microbatch 1 or 3
    "#]],
    );
    check_error(
        "mixtral.dynamo --mesh ep=3",
        expect![[r#"
            error: the 4 experts of `m.model.layers.0.mlp.experts.gate_up_proj` cannot be divided equally over ep=3
              = the experts can be divided by ep=2, ep=4
        "#]],
    );
    check_error(
        "gpt2.dynamo --mesh ep=2",
        expect![[r#"
            error: --mesh ep=2 divides the experts of a model, and this model has none
              = to split the batch alone, use dp=2
              = a model has experts where rows are multiplied by matrices of their own choice, as in Mixtral
        "#]],
    );
    check_error(
        "gpt2.dynamo --mesh tp=2 --shard nothing*=tp",
        expect![[r#"
        error: --shard nothing*=tp: no state matches the pattern
          = names of states are, for example, m.transformer.h.0.ln_1.weight, m.transformer.h.0.ln_1.bias, m.transformer.h.0.attn.c_attn.weight[:,0..128], m.transformer.h.0.attn.c_attn.weight[:,128..256], m.transformer.h.0.attn.c_attn.weight[:,256..384], m.transformer.h.0.attn.c_attn.bias[0..128], m.transformer.h.0.attn.c_attn.bias[128..256], m.transformer.h.0.attn.c_attn.bias[256..384]
    "#]],
    );
    check_error(
        "mlp.dynamo --mesh tp=2 --shard *0.weight=tp,- --shard *weight=-,tp",
        expect![[r#"
        error: --shard *0.weight=tp,- and --shard *weight=-,tp both match `m.net.0.weight`
          = remove one of the flags, or narrow its pattern
    "#]],
    );
    check_error(
        "mlp.dynamo --mesh tp=2 --shard *0.weight=tp",
        expect![[r#"
        error: --shard *0.weight=tp: `m.net.0.weight` is f32[128, 64], and --shard must give its 1 dims of the file's tensor
    "#]],
    );
    check_error(
        "mlp.dynamo --mesh tp=3 --shard *0.weight=tp,-",
        expect![[r#"
            error: --shard *0.weight=tp,-: the dim of size 128 of `m.net.0.weight` cannot be divided into 3 equal parts
              = it can be divided into 1, 2, 4, 8, 16, 32, 64 parts
        "#]],
    );
}

#[test]
fn a_tensor_is_split_by_the_name_it_has_in_the_file() {
    // A tensor that is cut into states; the copy of a tied table, which is transposed; and a tensor that has a better name.
    for (file, rule, states, sharding) in [
        ("gpt2.dynamo", "m.transformer.h.*.attn.c_attn.weight=tp,-", 6, "{tp, -}"),
        ("../gpt2-fresh", "val_312=tp,-", 1, "{-, tp}"),
        ("llama.legacy-mask", "onnx::MatMul_596=tp,-", 1, "{tp, -}"),
    ] {
        let spmd = models::split(&format!("mesh=tp:2, shard=\"{rule}\""));
        let fixture = models::Fixture { file, bindings: &[], ..models::GPT2_DYNAMO };
        let shardings = fixture
            .compiled(2, CompilationPlan { spmd, ..CompilationPlan::default() })
            .compilation
            .reports
            .shardings;
        let asked = format!("`tp`: --shard {rule} names it");
        let asked: Vec<_> = shardings.iter().filter(|report| report.reasons.contains(&asked)).collect();
        assert_eq!(asked.len(), states, "{file}: {asked:?}");
        assert!(asked.iter().all(|report| report.sharding == sharding), "{file}: {asked:?}");
        check_passes(&format!("{file} --mesh tp=2 --shard {rule} --tolerance 1e-10"));
    }
}

/// The loss of each step.
fn losses(place: &Workplace, run: &str) -> Vec<f64> {
    place.metrics(run).iter().map(|line| line["loss"].as_f64().expect("a loss")).collect()
}

#[track_caller]
fn assert_near(ours: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(ours.len(), expected.len());
    let apart = ours.iter().zip(expected).map(|(ours, expected)| (ours - expected).abs());
    let worst = apart.fold(0.0, f64::max);
    assert!(worst <= tolerance, "{worst:e} apart:\n{ours:?}\n{expected:?}");
}

/// Six steps of 16 samples. The flags divide them into microbatches.
const RUN: &str =
    "compile testdata/gpt2-fresh.onnx --train text.txt --global-batch 16 --lr 2e-3 --clip 1 --seed 7";

#[test]
fn a_run_on_local_ranks_goes_on_on_one_device_and_on_another_mesh() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    place.succeed(&format!("{RUN} --microbatch 16 --steps 6 -o whole"));
    let whole = losses(&place, "whole");
    let first = place.succeed(&format!("{RUN} --microbatch 4 --mesh dp=2,tp=2 --zero 1 --steps 3 -o run"));
    assert!(first.stderr.contains("mesh: dp=2 x tp=2, 4 ranks as threads"), "{}", first.stderr);
    assert_near(&losses(&place, "run"), &whole[..3], 1e-5);
    for (run, flags) in [
        ("one", "--microbatch 8"),
        ("other", "--microbatch 2 --mesh dp=4 --zero 3"),
        ("tensor", "--mesh tp=4 --microbatch 16"),
    ] {
        place.succeed(&format!("{RUN} {flags} --steps 6 --resume=run -o {run}"));
        assert_near(&losses(&place, run), &whole[3..], 1e-4);
    }
    place.succeed(&format!("{RUN} --microbatch 1 --mesh dp=4,tp=2 --zero 2 --steps 6 -o run --resume"));
    assert_near(&losses(&place, "run"), &whole, 1e-4);
    assert_eq!(place.checkpoints("run"), [3, 6]);
}

#[test]
fn data_that_ranks_cannot_share_is_refused_before_anything_is_written() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let before = place.contents();
    let ended = place.run(&format!("{RUN} --mesh dp=3 --microbatch 5"));
    expect![[r#"
        error: the global batch 16 is not a multiple of the microbatch 5 on 3 data ranks
          = the nearest multiples: --global-batch 15 or 30
    "#]]
    .assert_eq(&ended.errors());
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(before == place.contents());
}
