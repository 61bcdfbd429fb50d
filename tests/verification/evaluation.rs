//! `trainyard verify` runs the evaluation programs of a job: on every mesh, in the stages of every schedule, and for a last batch that is
//! short. Faults that are planted in these programs are found.

use crate::stages::check;
use ir::ops::collective::Collective;
use ir::{At, Builder, Module, NodeId, Op, OperandRole, Phase, ScalarPart, Sharding, StepOutput, ValueId};
use passes::keep::Keep;
use passes::spmd::{AxisSize, Spmd};
use passes::{Manager, PassContext, evaluation as pass};
use testing::models::{self, done, path};
use testing::planted::Planted;
use testing::verification;
use trainyard::compilation;
use trainyard::diagnostics::{Severity, render};
use trainyard::failure::Failure;
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::compare::{Difference, Kind};
use trainyard::verification::evaluation::Expected;
use trainyard::verification::report::Report;
use trainyard::verification::{Mode, Tested, inputs};

/// The report of `trainyard verify` on a model of `testdata/models`, whose programs must be equal to the model.
#[track_caller]
fn passing(model: &str, flags: &str) -> Report {
    verification::passing(&path(&format!("{model}.onnx")), flags)
}

/// The line on the evaluation in a report.
#[track_caller]
fn line(report: &Report) -> String {
    let text = report.to_string();
    let line = text.lines().find(|line| line.starts_with("evaluation: "));
    line.unwrap_or_else(|| panic!("there is no such line:\n{text}")).to_owned()
}

/// The outputs of evaluations that were compared, in the order of their names.
fn compared(report: &Report) -> Vec<&str> {
    let of_evaluation = report.differences.iter().filter(|found| found.kind == Kind::Evaluation);
    let mut names: Vec<&str> = of_evaluation.map(|found| found.name.as_str()).collect();
    names.sort_unstable();
    names
}

#[test]
fn the_evaluation_of_every_mesh_and_schedule_is_compared() {
    let batch = "--microbatch 2 --global-batch 16 --tolerance 1e-9";
    for (flags, samples) in [
        ("", 2),
        ("--mesh dp=2 --zero 3", 4),
        ("--mesh tp=2 --sequence-parallel", 2),
        ("--mesh pp=2 --schedule gpipe", 2),
        ("--mesh pp=2,dp=2 --schedule interleaved", 4),
        ("--mesh pp=2,tp=2 --schedule zb-v --bf16", 2),
        ("--mesh pp=2 --schedule 2bw", 2),
    ] {
        let report = passing("gpt2.dynamo", &format!("{batch} {flags}"));
        assert_eq!(line(&report), format!("evaluation: {samples} samples equal"), "{flags}");
        let expected = ["sum", "weight"].map(|part| format!("loss.{part} of {samples} samples"));
        assert_eq!(compared(&report), expected, "{flags}");
    }
}

#[test]
fn evaluations_run_on_the_backends_of_ranks() {
    let batch = "--microbatch 2 --global-batch 8 --mode cpu";
    let meshes =
        ["", "--update early --microbatch 2 --global-batch 2", "--mesh dp=2 --zero 1", "--mesh tp=2 --bf16"];
    let stages = [
        "--mesh pp=2,dp=2 --schedule zb-h1",
        "--mesh pp=2 --schedule 2bw",
        "--mesh pp=2,tp=2 --schedule dualpipev",
    ];
    for flags in meshes.into_iter().chain(stages) {
        let batch = if flags.contains("--microbatch") { "--mode cpu" } else { batch };
        let report = passing("llama.dynamo", &format!("{batch} {flags}"));
        assert!(line(&report).ends_with(" samples equal"), "{report}");
    }
}

/// Batch norms read running statistics, dropout is off, labels are not smoothed, and experts are chosen without noise.
#[test]
fn evaluations_that_differ_from_a_training_step_are_compared_with_evaluations() {
    let batch = "--microbatch 2 --global-batch 8 --tolerance 1e-9";
    check(["", "--mesh dp=2", "--mesh pp=2 --schedule 1f1b"].into_iter().flat_map(|mesh| {
        [
            format!("resnet.legacy-trainmode {mesh} {batch}"),
            format!("gpt2-dropout.legacy {mesh} {batch}"),
            format!("gpt2.dynamo --label-smoothing 0.1 {mesh} {batch}"),
            format!("gpt2.dynamo --moe gshard,experts=4,every=2,noise=0.01 {mesh} {batch}"),
        ]
    }));
    check(
        ["--mesh ep=2", "--mesh ep=2,tp=2", "--mesh dp=2,ep=2 --zero 3"]
            .map(|mesh| format!("mixtral.dynamo {mesh} --microbatch 2 --tolerance 1e-9")),
    );
}

#[test]
fn each_part_of_a_loss_of_several_parts_is_compared() {
    let mut classes = 0;
    for model in
        ["parted-loss", "clamped-loss", "joined-loss", "smoothed-loss", "quotient-loss", "summed-loss"]
    {
        for flags in ["", "--mesh dp=2", "--mesh pp=2 --schedule gpipe"] {
            let flags = format!("--microbatch 2 --global-batch 8 --tolerance 1e-9 {flags}");
            let report = passing(&format!("{model}.dynamo"), &flags);
            classes += usize::from(compared(&report).iter().any(|name| name.starts_with("loss.1.")));
        }
    }
    assert!(classes >= 3, "{classes} losses have several parts");
}

/// A short batch that cannot be filled up has a program of its own.
#[test]
fn the_evaluation_of_a_short_last_batch_is_compared() {
    for (model, flags, expected) in [
        ("parted-loss.dynamo", "", "4 samples equal, 2 samples equal"),
        ("parted-loss.dynamo", "--mesh dp=2", "8 samples equal, 4 samples equal"),
        ("joined-loss.dynamo", "--mesh pp=2,dp=2 --global-batch 16", "8 samples equal, 4 samples equal"),
        ("quotient-loss.dynamo", "--mesh tp=2 --mode cpu", "4 samples equal, 2 samples equal"),
        ("mlp.dynamo", "", "4 samples equal"),
    ] {
        let report = passing(model, &format!("--microbatch 4 {flags}"));
        assert_eq!(line(&report), format!("evaluation: {expected}"), "{model} {flags}");
    }
}

#[test]
fn a_short_last_batch_that_cannot_be_compiled_is_left_out_with_the_reason() {
    let report = verification::model("odd/two-batches", "");
    let reason = "the batch of size 5 cannot be changed to 2: the node `contract` reads input `x` along the batch, and this input is not \
                  batched";
    assert_eq!(line(&report), format!("evaluation: 5 samples equal, 2 samples left out: {reason}"));
}

#[test]
fn the_report_has_the_evaluation_in_json() {
    let report = passing("parted-loss.dynamo", "--microbatch 4");
    let json = serde_json::to_value(&report).expect("a report is JSON");
    let expected =
        serde_json::json!([{ "samples": 4, "differs_in": [] }, { "samples": 2, "differs_in": [] }]);
    assert_eq!(json["evaluation"], expected);
}

/// GPT-2 or another model on two data ranks.
fn on_two_ranks(fixture: &models::Fixture) -> Planted {
    Planted::of(fixture, 4, |plan| {
        let spmd = Spmd { mesh: vec![AxisSize { name: "dp".into(), size: 2 }], ..Spmd::default() };
        CompilationPlan { spmd, ..plan }
    })
}

/// The errors of an evaluation program in a mode.
fn errors(planted: &Planted, module: &Module, mode: Mode) -> Result<Vec<Difference>, Failure> {
    let Planted { source, subject, .. } = planted;
    let batch = done(inputs::draw(&subject.compilation.forward, 5, 1));
    let (of, step) = ((source, &subject.plan), done(subject.reference(source)));
    let mut expected = done(Expected::new(subject, of, (&step, None), &batch, 1e-9, None));
    expected.compare(Tested { module, cut: true }, mode)
}

/// Checks that a fault in the evaluation makes an error in these outputs alone, and that there is no error without the fault.
#[track_caller]
fn finds(planted: &Planted, outputs: &[&str], fault: impl Fn(&mut Module)) {
    for (mode, tolerance) in [(Mode::Exact, 1e-9), (Mode::On(cpu::TARGET), 1e-5)] {
        let wrong = |module: &Module| {
            let errors = errors(planted, module, mode).expect("it runs");
            let wrong = errors.into_iter().filter(|found| found.fails(tolerance));
            wrong.map(|found| found.name).collect::<Vec<_>>()
        };
        let mut module = planted.subject.compilation.evaluation.clone();
        assert_eq!(wrong(&module), [""; 0], "without a fault, in mode {}", mode.name());
        fault(&mut module);
        assert_eq!(wrong(&module), outputs, "in mode {}", mode.name());
    }
}

/// Replaces an output.
fn change(module: &mut Module, part: ScalarPart, wrong: impl Fn(&mut Builder, ValueId) -> ValueId) {
    let name = StepOutput::loss(0, part).to_string();
    let at = module.outputs.iter().position(|output| output.name == name).expect("there is such a part");
    let mut b = Builder::new(module, "fault");
    b.at(At::End(Phase::Forward));
    let value = b.module().outputs[at].value;
    let changed = wrong(&mut b, value);
    b.tables().outputs[at].value = changed;
    b.finish();
}

#[test]
fn a_wrong_constant_is_found_and_the_output_is_named() {
    let planted = Planted::new(&models::GPT2_DYNAMO);
    for (part, name) in [(ScalarPart::Sum, "loss.sum"), (ScalarPart::Weight, "loss.weight")] {
        finds(&planted, &[name], |module| {
            change(module, part, |b, value| b.build(value * 1.001).expect("a float"));
        });
    }
}

/// The all-reduces of the sums and weights over data ranks.
fn reductions(module: &Module) -> Vec<NodeId> {
    let nodes = module.nodes().filter(|(_, node)| {
        node.op == Op::Collective(Collective::AllReduce) && module.ty(node.results[0]).ndim() == 0
    });
    nodes.map(|(id, _)| id).collect()
}

/// The verifier of programs accepts a maximum in place of a sum where the operand is relabelled too.
#[test]
fn a_wrong_reduction_over_an_axis_is_found() {
    let planted = on_two_ranks(&models::GPT2_DYNAMO);
    finds(&planted, &["loss.sum", "loss.weight"], |module| {
        for operand in
            reductions(module).into_iter().flat_map(|id| module.node(id).operands.clone()).collect::<Vec<_>>()
        {
            let sharding = module.ty(operand).sharding.clone();
            let partial = sharding.partial.clone().map(|(_, axes)| (ir::PartialKind::Max, axes));
            let mut b = Builder::new(module, "fault");
            b.shard(operand, Sharding { partial, ..sharding });
            b.finish();
        }
    });
}

/// Without its reduction each rank has a sum of its own.
#[test]
fn a_missing_reduction_over_an_axis_is_found() {
    let planted = on_two_ranks(&models::GPT2_DYNAMO);
    let mut module = planted.subject.compilation.evaluation.clone();
    for id in reductions(&module) {
        let node = module.node(id).clone();
        let mut b = Builder::new(&mut module, "fault");
        for (&from, &to) in node.operands.iter().zip(&node.results) {
            b.shard(from, Sharding::default());
            b.replace(to, from);
        }
        b.remove(id);
        b.finish();
    }
    let refused = errors(&planted, &module, Mode::Exact).expect_err("the ranks disagree");
    let told = render(Severity::Error, &refused.diagnostics(), false);
    assert!(told.starts_with("error: ranks 0 and 1 disagree on output `loss.sum`"), "{told}");
    assert!(told.ends_with("= this program is an evaluation\n"), "{told}");
}

/// An evaluation that is cut out of the step without the pass `evaluation`.
#[test]
fn an_evaluation_that_computes_as_a_training_step_does_is_found() {
    let planted = Planted::new(&models::RESNET_TRAINMODE);
    finds(&planted, &["loss.sum"], |module| {
        *module = planted.subject.compilation.training.clone();
        module.states.values_mut().for_each(|state| state.output = None);
        let keep = Keep { outputs: pass::outputs(module) };
        done(compilation::run(
            &Manager::default(),
            &keep.into(),
            module,
            &mut PassContext::default(),
            |_, _, _| {},
        ));
    });
}

/// The running statistics are no part of the step's loss, so the step is right.
#[test]
fn a_pass_that_breaks_the_evaluation_alone_is_named() {
    let planted = Planted::new(&models::RESNET_TRAINMODE);
    let stages = planted.stages_with("autodiff", |module| {
        let of_training = module.nodes().find(|(_, node)| matches!(node.op, Op::InTraining(_)));
        let (id, node) = of_training.map(|(id, node)| (id, node.clone())).expect("it has batch norms");
        let mut b = Builder::new(module, "fault");
        b.at(At::Before(id));
        let wrong = b.build(node[OperandRole::State] * 1.5).expect("a float");
        let operands: Vec<ValueId> = node
            .operands
            .iter()
            .map(|&value| if value == node[OperandRole::State] { wrong } else { value })
            .collect();
        let results = b.push(node.op.clone(), &operands).expect("as before");
        b.replace(node.results[0], results[0]);
        b.remove(id);
        b.finish();
    });
    assert!(planted.differences(&stages, Mode::Exact)[0].error <= 1e-9);
    let culprit = planted.culprit(&stages, Mode::Exact, 1e-9).expect("it is found");
    assert_eq!(
        (culprit.pass.as_deref(), culprit.largest.kind),
        (Some("autodiff"), Kind::Evaluation),
        "{culprit}"
    );
    assert_eq!(planted.culprit(&planted.stages, Mode::Exact, 1e-9), None);
}

/// In half precision, errors that rounding explains pass.
#[test]
fn evaluations_in_half_precision_are_as_exact_as_their_rounding() {
    for flags in ["--bf16", "--fp16", "--bf16 --mesh dp=2"] {
        for mode in ["typed", "cpu"] {
            passing("parted-loss.dynamo", &format!("--microbatch 4 --mode {mode} {flags}"));
            passing("bert.dynamo", &format!("--microbatch 2 --mode {mode} {flags}"));
        }
    }
}

#[test]
fn a_report_names_the_program_and_the_output_that_differ() {
    // No two programs are as near as this.
    let flags = "--microbatch 4 --mode cpu --tolerance 1e-300";
    let report = verification::verify(&path("parted-loss.dynamo.onnx"), flags);
    let report = report.unwrap_or_else(|failure| panic!("{failure:?}"));
    assert!(!report.passed);
    let said = line(&report);
    assert!(
        said.starts_with("evaluation: 4 samples differ in loss.") && said.contains(", 2 samples "),
        "{said}"
    );
    assert!(compared(&report).contains(&"loss.sum of 2 samples"), "{report}");
}

/// The rewrites of the GPU's backend are passes whose programs the interpreter runs.
#[test]
fn the_rewrites_of_a_target_are_verified() {
    let gelu = passing("gpt2.dynamo", "--target h200 --bf16 --tolerance 1e-9");
    assert!(line(&gelu).ends_with("2 samples equal"), "{gelu}");
    check([
        "bert.dynamo --target a100 --mesh dp=2 --microbatch 2 --tolerance 1e-9".to_owned(),
        "resnet.legacy-trainmode --target h200 --tolerance 1e-9".to_owned(),
        "parted-loss.dynamo --target h200 --mesh pp=2 --microbatch 4 --global-batch 8 --tolerance 1e-9"
            .to_owned(),
        "llama.dynamo --target cpu --mode cpu".to_owned(),
    ]);
}

#[test]
fn a_mode_that_does_not_run_the_kernels_of_the_target_is_refused() {
    let failure = verification::verify(&path("mlp.dynamo.onnx"), "--mode cpu --target h200");
    let problems = failure.expect_err("it is refused").diagnostics();
    assert_eq!(problems[0].message, "--mode cpu does not run the kernels of H200 SXM");
}
