//! Overflows in fp16. An overflow on one rank skips the step on all, and the scale recovers. The driver trains through overflows, and says
//! so if no scale helps.

use crate::TRAINYARD;
use expect_test::expect;
use ir::tensor::Elements;
use ir::{DType, Tensor};
use passes::precision::{Precision, SCALE, Scaling};
use testing::models::{self, Fixture, adamw, done, split};
use testing::training::train;
use testing::workplace::Workplace;
use trainyard::diagnostics::{Severity, render};
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::Mode;
use trainyard::verification::execute::{Execution, Machine, Tensors};
use trainyard::verification::{Subject, inputs};

/// A scale so large that every gradient overflows, unless it is zero. It grows again soon after it fits.
const TOO_LARGE: Scaling = Scaling {
    initial: 16_777_216.0,
    growth: 2.0,
    interval: 4,
    backoff: 0.5,
    hysteresis: 2,
    min: 1.0,
    max: 16_777_216.0,
};

fn fp16(scaling: Scaling) -> Precision {
    Precision { compute: DType::F16, scaling, ..Precision::default() }
}

const SAMPLES: usize = 8;
const STEPS: usize = 30;

/// A step's samples. Only samples with an index in `counts` count; the gradients of the others are zero.
fn samples(subject: &Subject, counts: std::ops::Range<usize>) -> Tensors {
    let mut inputs = done(inputs::draw(&subject.compilation.forward, 3, 1)).remove(0);
    let labels = inputs.get_mut("labels").expect("the loss takes labels");
    let per_sample = labels.len() / SAMPLES;
    let Elements::Int(labels) = &mut labels.elements else { panic!("labels are integers") };
    for (place, label) in labels.iter_mut().enumerate() {
        if !counts.contains(&(place / per_sample)) {
            *label = -100;
        }
    }
    inputs
}

/// The steps of a run on the same samples.
struct Steps {
    skipped: Vec<bool>,
    scales: Vec<f64>,
    losses: Vec<f64>,
}

/// Runs steps, and checks that a skipped step changes no state except the scaler's.
fn run(subject: &Subject, counts: std::ops::Range<usize>) -> Steps {
    let inputs = samples(subject, counts);
    let mut machine =
        done(Machine::new(&subject.compilation.training, Mode::On(cpu::TARGET), 1, &subject.start));
    let mut before = subject.start.clone();
    let mut steps = Steps { skipped: vec![], scales: vec![], losses: vec![] };
    for step in 0..STEPS {
        let Execution { outputs, states } = done(machine.step(std::slice::from_ref(&inputs)));
        let skipped = outputs["skipped"][0].bools()[0];
        assert!(!outputs["loss_scale.exhausted"][0].bools()[0], "the scale can always get smaller");
        let changed = |name: &String, tensor: &Tensor| before[name] != *tensor && !name.starts_with(SCALE);
        let changed = states.iter().filter(|(name, tensor)| changed(name, tensor)).count();
        assert!(if skipped { changed == 0 } else { changed > 3 }, "step {step} changes {changed} states");
        steps.skipped.push(skipped);
        steps.scales.push(states[SCALE].item());
        steps.losses.push(outputs["loss"][0].item());
        before = states;
    }
    steps
}

/// The samples of one rank overflow, and the other rank has only zero gradients. Whether the ranks agree on the states that all of them
/// have is checked where a state is read.
#[test]
fn an_overflow_on_one_rank_skips_the_step_on_all_and_the_scale_recovers() {
    let gpt2 = Fixture { file: "../gpt2-fresh", ..models::GPT2_DYNAMO };
    let compiled = |spmd: &str| {
        let plan =
            CompilationPlan { optimizer: adamw(), precision: fp16(TOO_LARGE), ..CompilationPlan::default() };
        gpt2.compiled(SAMPLES as u64, CompilationPlan { spmd: split(spmd), ..plan })
    };
    let alone = compiled("");
    let of_rank = [0..SAMPLES / 2, SAMPLES / 2..SAMPLES];
    let expected = of_rank.clone().map(|counts| run(&alone, counts));
    let zeros = compiled("mesh=dp:2");
    assert_eq!(run(&zeros, 0..0).skipped, [false; STEPS], "without labels no gradient overflows");
    for options in
        ["mesh=dp:2", "mesh=dp:2, zero=1", "mesh=dp:2, zero=2", "mesh=dp:2, zero=3", "mesh=dp:2*tp:2"]
    {
        let subject = compiled(options);
        for (rank, expected) in expected.iter().enumerate() {
            let steps = run(&subject, of_rank[rank].clone());
            let first = steps.skipped.iter().position(|skipped| !skipped).expect("a scale that fits");
            assert!(first > 3, "{options}: only {first} steps are skipped");
            // The first overflow does not change the scale; every later one halves it.
            let halved = (0..first).map(|skip| TOO_LARGE.initial * 0.5f64.powi(skip as i32));
            assert_eq!(steps.scales[..first], halved.collect::<Vec<_>>(), "{options}");
            // The scale grows again, overflows again, and shrinks again, while the model learns.
            assert!(steps.skipped[first..].contains(&true), "{options}: it never grew: {:?}", steps.scales);
            assert!(steps.losses[STEPS - 1] < 0.9 * steps.losses[0], "{options}: {:?}", steps.losses);
            assert_eq!(steps.skipped, expected.skipped, "{options}: others than on one device");
            assert_eq!(steps.scales, expected.scales, "{options}");
        }
    }
}

#[test]
fn the_driver_trains_through_skipped_steps_and_gives_up_where_no_scale_helps() {
    let place = Workplace::with_text(TRAINYARD, 8_000);
    let flags = "--microbatch 4 --mesh dp=2 --zero 1 --save-every 2 --lr 1e-2";
    let train = |place: &Workplace, scaling| {
        train(&cpu::Processor::PORTABLE, place, flags, |plan| plan.precision = fp16(scaling), &|_, device| {
            device
        })
    };
    done(train(&place, Scaling { interval: 2000, ..TOO_LARGE }));
    let metrics = place.metrics("run");
    let skipped: Vec<bool> = metrics.iter().map(|step| step["skipped"].as_bool().expect("a word")).collect();
    let first = skipped.iter().position(|skipped| !skipped).expect("a scale that fits");
    assert!((3..10).contains(&first) && skipped[10..] == [false; 6], "{skipped:?}");

    let place = Workplace::with_text(TRAINYARD, 8_000);
    let failure = train(&place, Scaling { min: TOO_LARGE.initial / 4.0, ..TOO_LARGE });
    let failure = failure.expect_err("every gradient overflows");
    assert_eq!(failure.exit_code(), 2);
    let told = render(Severity::Error, &failure.diagnostics(), false);
    expect![[r#"
        error: the gradients of step 4 are not finite, and the loss scale 4194304 is already the smallest: `contract` of node "node_view_26" (Reshape, opset 20) made NaN on rank 0; before it, `contract` of node "node_linear" (MatMul, opset 20) made -inf
          = `run/checkpoints/step-2` was saved before that; --bf16 has the range of fp32; with fp16, a smaller --lr, a longer warm-up or --clip may help
    "#]].assert_eq(&told.replace(&place.path("").display().to_string(), ""));
    assert_eq!(place.checkpoints("run"), [2]);
    assert!(place.metrics("run").iter().all(|step| step["skipped"] == true));
}
