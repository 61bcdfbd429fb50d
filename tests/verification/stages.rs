//! Pipelines: a model that is cut into stages computes the same as on one device, with every placement of the stages and all other options.
//! Each schedule does so with a rank for each stage.

use crate::TRAINYARD;
use expect_test::{Expect, expect};
use ir::{Builder, Module, Op, Phase, ValueId};
use passes::rewriting::dead::remove_dead;
use passes::stage::Stage;
use testing::models::{self, path};
use testing::planted::Planted;
use testing::verification;
use testing::workplace::Workplace;
use trainyard::diagnostics::{Severity, render};
use trainyard::pipeline::{Batch, CompilationPlan};

/// The error of `trainyard verify ARGUMENTS`, whose first argument is a file of `testdata/models` without its ending; `None` if the
/// compiled program computes the same as the model.
fn fault(arguments: &str) -> Option<String> {
    let (model, flags) = arguments.split_once(' ').unwrap_or((arguments, ""));
    let model = path(&format!("{model}.onnx"));
    match verification::verify(&model, flags) {
        Ok(report) if report.passed && report.failed() == 0 => None,
        Ok(report) => Some(format!("{arguments}:\n{report}")),
        Err(failure) => {
            let text = render(Severity::Error, &failure.diagnostics(), false);
            assert_eq!(failure.exit_code(), 2, "{arguments}: {text}");
            Some(text.replace(&model.display().to_string(), "MODEL"))
        }
    }
}

#[track_caller]
pub(super) fn check(arguments: impl IntoIterator<Item = String>) {
    let faults: Vec<String> = arguments.into_iter().filter_map(|arguments| fault(&arguments)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[track_caller]
pub(super) fn check_error(arguments: &str, expected: Expect) {
    expected.assert_eq(&fault(arguments).expect("it is refused"));
}

/// Models with tied embeddings, several inputs, running statistics, experts, an encoder that all later stages read, and dropout.
const MODELS: [&str; 7] = [
    "gpt2.dynamo",
    "llama.dynamo",
    "bert.dynamo",
    "resnet.legacy-trainmode",
    "mixtral.dynamo",
    "t5.dynamo",
    "gpt2-dropout.legacy",
];

/// A schedule for each placement of stages.
const PLACEMENTS: [&str; 3] = ["1f1b", "interleaved", "zb-v"];
const SCHEDULES: [&str; 6] = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev"];

/// Options that are tested in pairs.
const OPTIONS: [&str; 10] = [
    "--mesh pp=2,dp=2",
    "--mesh pp=2,dp=2 --zero 1 --clip 0.01",
    "--mesh pp=2,dp=2 --zero 2 --schedule zb-v",
    "--mesh pp=2,dp=2 --zero 3 --schedule interleaved --recompute selective",
    "--mesh pp=4,tp=2 --schedule zb-h1",
    "--mesh pp=2,tp=2 --sequence-parallel --recompute full --clip 0.01",
    "--mesh pp=2,dp=2,tp=2 --zero 1 --bf16 --schedule dualpipev",
    "--mesh pp=4,dp=2 --fp16 --clip 0.1 --schedule interleaved",
    "--mesh pp=2 --bf16 --grad-dtype bf16 --recompute full --schedule zb-v",
    "--mesh pp=2,tp=2 --zero 0 --optimizer adagrad:eps=1e-8 --schedule gpipe",
];

/// Steps with a number of microbatches that every schedule on four ranks accepts.
const BATCH: &str = "--microbatch 2 --global-batch 16";

#[test]
fn a_pipeline_computes_what_one_device_does() {
    check(MODELS.map(|model| format!("{model} --mesh pp=2 {BATCH} --tolerance 1e-9")));
}

/// The gradient of the mean of one number is a constant, which no stage sends. The stage of the loss may have no parameters.
#[test]
fn stages_without_parameters_compute_what_one_device_does() {
    for model in ["batch-loss.dynamo", "root-loss.dynamo", "mlp-loss.dynamo", "joined-loss.dynamo"] {
        let batch = "--mesh pp=2 --microbatch 1 --global-batch 8";
        check(["", "--fp16", "--clip 0.01"].map(|flags| format!("{model} {batch} {flags} --tolerance 1e-9")));
    }
}

/// Backward of each class begins on its own stage, with the loss scale of all. The divisor may be computed on an earlier stage or on a
/// later one.
#[test]
fn losses_of_several_divisors_are_scaled_in_stages() {
    for model in ["parted-loss", "clamped-loss", "joined-loss", "smoothed-loss", "quotient-loss"] {
        let flags =
            ["--mesh pp=2 --schedule gpipe", "--mesh pp=3 --schedule 1f1b", "--mesh pp=2,dp=2 --zero 1"];
        for batch in ["--microbatch 2 --global-batch 12", "--microbatch 4"] {
            check(flags.map(|flags| format!("{model}.dynamo --fp16 {flags} {batch} --tolerance 1e-9")));
        }
    }
}

/// A part of a state is cut on the state's stage, and then sent.
#[test]
fn parts_of_tied_weights_are_sent_to_other_stages() {
    let mesh = "--mesh tp=2,pp=2,dp=2 --microbatch 1 --global-batch 4";
    let options =
        ["sgd --zero 1", "sgd --zero 2", "adafactor --zero 1", "adafactor --zero 2 --tolerance 1e-9"];
    check(options.map(|options| format!("gpt2.dynamo --fp16 {mesh} --optimizer {options}")));
}

#[test]
fn every_option_composes_with_stages() {
    let global = "--microbatch 2 --global-batch 32";
    check(OPTIONS.map(|options| format!("gpt2.dynamo {options} {global} --tolerance 1e-9")));
}

#[test]
fn each_schedule_runs_on_ranks_of_its_own() {
    let arguments = |schedule| {
        ["gpt2.dynamo", "gpt2-dropout.legacy"]
            .map(|model| format!("{model} --mesh pp=2 --schedule {schedule} {BATCH} --mode cpu"))
    };
    check(SCHEDULES.into_iter().flat_map(arguments));
}

#[test]
fn ranks_of_a_stage_exchange_among_themselves() {
    let options =
        ["--mesh pp=2,dp=2 --zero 3", "--mesh pp=2,tp=2 --sequence-parallel --schedule zb-v --clip 0.01"];
    check(options.map(|options| format!("llama.dynamo {options} {BATCH} --mode cpu")));
}

/// The arguments for both asynchronous schedules: `pipedream` with one microbatch, and `2bw` with as many as there are ranks.
fn asynchronous(model: &str, pp: u32, more: &str) -> [String; 2] {
    let of = |schedule, batch| {
        format!("{model} --mesh pp={pp}{more} --schedule {schedule} --microbatch 2 --global-batch {batch}")
    };
    [of("pipedream", 2), of("2bw", 2 * pp)]
}

/// Each version of a weight has its own value here, and the reference reads the versions that the delays of the stages demand.
#[test]
fn an_asynchronous_pipeline_computes_with_the_versions_of_its_delays() {
    let models = ["gpt2.dynamo", "llama.dynamo"];
    let all = models.into_iter().flat_map(|model| [2, 4].map(|pp| asynchronous(model, pp, "")));
    check(all.flatten().map(|arguments| format!("{arguments} --tolerance 1e-9")));
}

#[test]
fn asynchronous_schedules_compose_with_the_axes_of_a_stage() {
    let of = |mesh: &str, options: &str, global: u32| {
        format!(
            "gpt2.dynamo --mesh pp=2,{mesh} {options} --microbatch 2 --global-batch {global} --tolerance 1e-9"
        )
    };
    check([
        of("dp=2", "--zero 3 --recompute selective --schedule 2bw", 16),
        of("dp=2", "--zero 2 --bf16 --schedule pipedream", 4),
        of("tp=2", "--sequence-parallel --schedule pipedream", 2),
        of("dp=2,tp=2", "--zero 1 --recompute full --schedule 2bw", 16),
    ]);
}

#[test]
#[ignore = "longer"]
fn every_model_computes_with_the_versions_of_its_delays() {
    let all = MODELS.into_iter().flat_map(|model| [2, 4].map(|pp| asynchronous(model, pp, "")));
    let all: Vec<String> = all.flatten().collect();
    check(all.iter().map(|arguments| format!("{arguments} --tolerance 1e-9")));
    check(all.iter().map(|arguments| format!("{arguments} --mode cpu")));
}

#[test]
fn an_asynchronous_schedule_runs_on_ranks_of_its_own() {
    let all = [("gpt2.dynamo", 2), ("llama.dynamo", 4), ("gpt2-dropout.legacy", 2)];
    let all = all.map(|(model, pp)| asynchronous(model, pp, ""));
    check(all.into_iter().flatten().map(|arguments| format!("{arguments} --mode cpu")));
}

#[test]
#[ignore = "longer"]
fn every_model_computes_the_same_with_every_placement_of_stages() {
    let arguments = |model| {
        let placements =
            PLACEMENTS.into_iter().flat_map(move |schedule| [2, 4].map(move |pp| (schedule, pp)));
        placements.map(move |(schedule, pp)| {
            format!("{model} --mesh pp={pp} --schedule {schedule} {BATCH} --tolerance 1e-9")
        })
    };
    check(MODELS.into_iter().flat_map(arguments));
}

#[test]
#[ignore = "longer"]
fn every_model_runs_by_each_schedule() {
    let arguments = |model| {
        SCHEDULES.map(move |schedule| format!("{model} --mesh pp=2 --schedule {schedule} {BATCH} --mode cpu"))
    };
    check(MODELS.into_iter().flat_map(arguments));
}

/// All models with all options and all schedules.
#[test]
#[ignore = "takes hours"]
fn all_options_compose_with_all_schedules() {
    let meshes = ["", ",dp=2", ",tp=2", ",dp=2,tp=2"];
    let options = ["", "--clip 0.01", "--bf16", "--recompute full", "--recompute selective"];
    let mut all = vec![];
    for model in MODELS {
        for mesh in meshes {
            let zeros = if mesh.contains("dp") { 0..4 } else { 0..1 };
            for (zero, schedule) in zeros.flat_map(|zero| PLACEMENTS.map(|schedule| (zero, schedule))) {
                all.extend(options.map(|option| {
                    let flags = format!("--mesh pp=2{mesh} --zero {zero} --schedule {schedule} {option}");
                    format!("{model} {flags} {BATCH} --tolerance 1e-9").replace("--zero 0 ", "")
                }));
            }
        }
    }
    check(all);
}

#[test]
fn a_cut_by_hand_names_a_node_or_a_parameter() {
    check([
        format!("gpt2.dynamo --mesh pp=2 --cut node_layer_norm_2 {BATCH} --tolerance 1e-9"),
        format!("gpt2.dynamo --mesh pp=2 --cut *.h.1.ln_1.* {BATCH} --tolerance 1e-9"),
    ]);
}

/// `verify` makes the same choices as a run: the schedule, and cuts that fit.
#[test]
fn schedules_and_cuts_that_memory_decides_compute_the_same() {
    check([
        format!("llama.dynamo --mesh pp=4 --schedule auto {BATCH} --tolerance 1e-9"),
        format!("llama.dynamo --mesh pp=4 --memory 2700KiB {BATCH} --tolerance 1e-9"),
        format!("llama.dynamo --mesh pp=4 --memory 2700KiB {BATCH} --mode cpu"),
        // Earlier versions of weights count, and backward of a later step computes activations again with its own version of the weights.
        "llama.dynamo --mesh pp=2 --schedule 2bw --microbatch 2 --global-batch 8 --memory 4800KiB --mode cpu"
            .to_owned(),
        format!("t5.dynamo --mesh pp=2,dp=2 --zero 1 {BATCH} --mode cpu"),
    ]);
}

#[test]
fn pipelines_that_cannot_be_are_refused_with_what_could_be() {
    check_error(
        "mlp.dynamo --mesh pp=64 --microbatch 1 --global-batch 64",
        expect![[r#"
        error: the model cannot be cut into 64 stages: it has 9 nodes
          = --mesh pp=9 or less would work
    "#]],
    );
    check_error(
        "gpt2.dynamo --mesh pp=2 --schedule interleaved --microbatch 2 --global-batch 6",
        expect![[r#"
            error: `interleaved` on 2 ranks needs a multiple of 2 microbatches, not 3; 2 or 4 would work
              = --global-batch and --microbatch set the microbatches of a step
        "#]],
    );
    check_error(
        "gpt2.dynamo --mesh pp=2 --schedule dualpipev --microbatch 2 --global-batch 4",
        expect![[r#"
            error: `dualpipev` on 2 ranks needs at least 4 microbatches, not 2; `zb-v` takes any number
              = --global-batch and --microbatch set the microbatches of a step
        "#]],
    );
    check_error(
        "gpt2.dynamo --mesh pp=2 --cut nothing --microbatch 2 --global-batch 8",
        expect![[r#"
        error: no node of the model fits the pattern `nothing` of --cut
          = a pattern is compared with the names of nodes and of the parameters that they read; `trainyard inspect` lists both
    "#]],
    );
    check_error(
        "gpt2.dynamo --mesh pp=4 --cut *mlp* --microbatch 2 --global-batch 8",
        expect![[r#"
        error: 1 cuts make 2 stages, and there are 4
          = 4 stages need 3 patterns of --cut
    "#]],
    );
    check_error(
        "gpt2.dynamo --mesh pp=2 --schedule pipedream --clip 1 --microbatch 2 --global-batch 2",
        expect![[r#"
            error: --clip cannot be used with --schedule pipedream
              = clipping needs the norm of all gradients, and a stage updates its weights before other stages have theirs; remove --clip, or use a synchronous schedule such as 1f1b
        "#]],
    );
    check_error(
        "gpt2.dynamo --mesh pp=2 --schedule 2bw --fp16 --microbatch 2 --global-batch 8",
        expect![[r#"
            error: fp16 cannot be used with --schedule 2bw
              = fp16 skips the update if a gradient of any stage is not finite, and a stage updates its weights before other stages have their gradients; --bf16 needs no loss scale, and synchronous schedules such as 1f1b take fp16
        "#]],
    );
    check_error(
        "gpt2.dynamo --mesh pp=2 --schedule pipedream --microbatch 2 --global-batch 8",
        expect![[r#"
            error: `pipedream` updates the weights after each microbatch, and a step has 4; `2bw` takes 2 microbatches or more
              = --global-batch and --microbatch set the microbatches of a step
        "#]],
    );
    check_error(
        "gpt2.dynamo --mesh pp=4 --schedule 2bw --microbatch 2 --global-batch 6",
        expect![[r#"
            error: `2bw` on 4 ranks needs at least 4 microbatches, not 3; `pipedream` takes 1, `1f1b` any number
              = --global-batch and --microbatch set the microbatches of a step
        "#]],
    );
    check_error(
        "gpt2.dynamo --mesh pp=2 --update early --microbatch 2 --global-batch 8",
        expect![[r#"
        error: --update early cannot be used with the stages of a pipeline
          = a stage has several microbatches at once; remove --update early
    "#]],
    );
}

/// The steps of an asynchronous run follow each other without a flush, except at checkpoints. The delays are fixed, so a flush changes no
/// number.
#[test]
fn an_asynchronous_run_has_the_same_bits_wherever_it_drains() {
    let place = Workplace::new(TRAINYARD);
    let of = |place: &Workplace, model: &str, flags: &str| {
        let fixed = "--train synthetic --microbatch 2 --force -o run";
        place.succeed(&format!("compile testdata/models/{model}.onnx {fixed} {flags}"));
        place.read("run/model.safetensors")
    };
    let runs = [
        ("llama.dynamo", "--mesh pp=4 --schedule pipedream --global-batch 2"),
        ("gpt2-dropout.legacy", "--mesh pp=2 --schedule 2bw --global-batch 6"),
        ("llama.dynamo", "--mesh pp=2,dp=2 --zero 3 --bf16 --schedule 2bw --global-batch 12"),
    ];
    for (model, flags) in runs {
        let stream = of(&place, model, &format!("{flags} --steps 12"));
        assert!(of(&place, model, &format!("{flags} --steps 12 --save-every 1")) == stream, "{flags}");
        of(&place, model, &format!("{flags} --steps 5"));
        let resume = "--train synthetic --microbatch 2 --resume --steps 12 -o run";
        place.succeed(&format!("compile testdata/models/{model}.onnx {resume} {flags}"));
        assert!(place.read("run/model.safetensors") == stream, "{flags}");
        assert!(
            of(
                &place,
                model,
                &format!("{} --steps 12", flags.replace("pipedream", "1f1b").replace("2bw", "1f1b"))
            ) != stream
        );
    }
}

/// Runs eight samples, one of them with a large value, in microbatches of two. Returns the first line of the error.
fn error_of_large_sample(place: &Workplace, sample: usize, value: &str, flags: &str) -> String {
    let row = |index: usize| {
        let feature = |column: usize| {
            if index == sample { value.to_owned() } else { ((index * 7 + column) % 5).to_string() }
        };
        (0..64).map(|column| feature(column) + ",").chain([format!("{index}\n")]).collect::<String>()
    };
    place.write("rows.csv", (0..8).map(row).collect::<String>().as_bytes());
    let fixed = "compile testdata/models/mlp.dynamo.onnx --init kaiming --seed 1 --train rows.csv --microbatch 2 \
                 --global-batch 8 --steps 1 --mesh pp=2 --force -o run";
    let ended = place.run(&format!("{fixed} {flags}"));
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    ended.errors().lines().next().unwrap_or_default().to_owned()
}

/// A large sample overflows in the first product of the model, a smaller one only in the loss.
#[test]
fn the_node_that_makes_a_nan_is_named_with_its_stage_and_microbatch() {
    let place = Workplace::new(TRAINYARD);
    let mut seen = [0; 4];
    for sample in 0..8 {
        let microbatch_of = |value: &str, made: &str, stage: u32, schedule: &str| {
            let told = error_of_large_sample(&place, sample, value, &format!("--schedule {schedule}"));
            let cause = format!(
                "error: the loss of step 1 is NaN: {made} made NaN on rank {stage}, in stage {stage} of the pipeline and \
                 microbatch "
            );
            let number = told.strip_prefix(&cause).unwrap_or_else(|| panic!("{told}"));
            number.parse::<usize>().expect("a number")
        };
        let first = "`contract` of node \"node_linear\" (Gemm, opset 20)";
        let microbatch = microbatch_of("3e38", first, 0, "1f1b");
        assert_eq!(microbatch_of("1e38", "`cross_entropy` of loss", 1, "zb-h1"), microbatch);
        seen[microbatch] += 1;
    }
    assert_eq!(seen, [2; 4], "samples of each microbatch");
}

/// The model after some steps of a run.
fn trained(place: &Workplace, flags: &str) -> Vec<u8> {
    let fixed = "--train synthetic --steps 20 --microbatch 2 --global-batch 8 --force -o run";
    place.succeed(&format!("compile testdata/models/llama.dynamo.onnx {fixed} {flags}"));
    place.read("run/model.safetensors")
}

/// Sums have the same order in every schedule, because each stage runs its microbatches in ascending order. Stages begin where blocks
/// begin: a cut within a block may separate operators that are otherwise fused and rounded as one.
#[test]
fn every_schedule_trains_to_the_bits_of_one_device() {
    let place = Workplace::new(TRAINYARD);
    let one = trained(&place, "");
    let four = "--cut *layers.0.post* --cut *layers.1.input* --cut *layers.1.post*";
    for schedule in SCHEDULES {
        let has_chunks = ["interleaved", "zb-v", "dualpipev"].contains(&schedule);
        let cuts = if has_chunks { four } else { "--cut *layers.1.input*" };
        let flags = format!("--mesh pp=2 --schedule {schedule} {cuts}");
        assert!(trained(&place, &flags) == one, "{schedule}");
    }
}

#[test]
fn a_run_goes_on_with_other_stages() {
    let place = Workplace::new(TRAINYARD);
    let flags =
        "compile testdata/models/llama.dynamo.onnx --train synthetic --microbatch 2 --global-batch 8 -o run";
    let whole = trained(&place, "");
    place.succeed(&format!("{flags} --force --steps 8 --mesh pp=2,dp=2 --schedule zb-v --zero 1"));
    place.succeed(&format!("{flags} --resume --steps 14"));
    place.succeed(&format!("{flags} --resume --steps 16 --mesh pp=4 --schedule 1f1b"));
    // A run without the name of a schedule makes its own choice, which differs if there is less memory.
    let mut chosen = vec![];
    for (steps, memory) in [(18, ""), (20, "--memory 2700KiB")] {
        let ended = place.succeed(&format!("{flags} --resume --steps {steps} --mesh pp=4 {memory}"));
        assert!(ended.stderr.contains("\nschedule: "), "{}", ended.stderr);
        let plan = String::from_utf8(place.read("run/plan.json")).expect("the plan is text");
        let schedule = plan.split_once("schedule=").and_then(|(_, rest)| rest.split_once(','));
        chosen.push(schedule.map(|(name, _)| name.to_owned()));
    }
    assert!(chosen[0].is_some() && chosen[0] != chosen[1], "{chosen:?}");
    let resumed = place.read("run/model.safetensors");
    assert_eq!(resumed.len(), whole.len());
}

/// The second stage sends its part of a tied weight's gradient to the first once a step. If it is not sent, all marks and tasks are still
/// in order, so only the numbers show the fault.
#[test]
fn a_tied_gradient_that_is_not_sent_is_found() {
    let schedule = Some("1f1b".parse().expect("a schedule"));
    let stage = Stage { cuts: vec!["*h.1.ln_1*".into()], ..Stage::new(2, schedule) };
    let batch = Batch { global: Some(4), data_ranks: 1 };
    let planted = Planted::of(&models::GPT2_DYNAMO, 2, |plan| CompilationPlan {
        stage: Some(stage.clone()),
        batch,
        ..plan
    });
    let forget = |module: &mut Module| {
        let is_sent = |value: ValueId| {
            let maker = module.producer(value);
            let is_message =
                maker.is_some_and(|node| matches!(node.op, Op::Transfer(_)) && node.phase == Phase::Update);
            is_message && module.ty(value).ndim() == 2
        };
        let sum = module.nodes().find(|(_, node)| node.operands.iter().any(|operand| is_sent(*operand)));
        let (id, node) = sum.expect("parts of a gradient are added");
        let own =
            node.operands.iter().copied().find(|operand| !is_sent(*operand)).expect("the first stage's part");
        let whole = node.results[0];
        let mut b = Builder::new(module, "fault");
        b.replace(whole, own);
        b.remove(id);
        b.finish();
        remove_dead(module, "fault");
    };
    let differences = planted.check("autodiff", forget);
    assert_eq!(differences[0].name, "m.lm_head.weight");
}
