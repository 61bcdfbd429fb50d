//! Half precision: the values that must stay equal, the bounds of rounding errors, and the loss scale when gradients overflow.

use ir::interp::{self, Missing, Mode, StateValues, StepOutputs};
use ir::ops::elementwise::Cast;
use ir::{Blob, DType, Module, Op, Phase, Role, Tensor, random, testing};
use passes::{Manager, PassContext, Pipeline};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Returns a model with an embedding, a norm, a layer with a residual connection, and a head whose logits are multiplied by `factor`.
fn classifier(factor: f64) -> Module {
    let text = format!(
        "trainyard-ir 1
module @classifier imported {{
  data @0 \"table\" : f32[7, 8]
  data @1 \"norm\" : f32[8]
  data @2 \"fc.weight\" : f32[8, 8]
  data @3 \"fc.bias\" : f32[8]
  data @4 \"head\" : f32[8, 5]
  state @table : f32[7, 8] parameter = data @0
  state @norm : f32[8] parameter = data @1
  state @fc.weight : f32[8, 8] parameter = data @2
  state @fc.bias : f32[8] parameter = data @3
  state @head : f32[8, 5] parameter = data @4
  func @forward(%0 \"tokens\" batched : i64[4], %1 \"labels\" batched : i64[4], %2 = @table, %3 = @norm, %4 = @fc.weight, %5 = @fc.bias, %6 = @head) {{
    %7 = gather %2, %0 {{dim = 0}} : f32[4, 8] !{{fwd}}
    %8, %9 = rms_norm %7, %3 {{eps = 1e-5}} : f32[4, 8], f32[4] !{{fwd}}
    %10 = contract %8, %4 {{lhs = bi, rhs = io, out = bo}} : f32[4, 8] !{{fwd}}
    %11 = add %10, %5 : f32[4, 8] !{{fwd}}
    %12 = gelu %11 : f32[4, 8] !{{fwd}}
    %13 = add %7, %12 : f32[4, 8] !{{fwd}}
    %14 = contract %13, %6 {{lhs = bi, rhs = io, out = bo}} : f32[4, 5] !{{fwd}}
    %15 = splat {{value = {factor:?}}} : f32[] !{{fwd}}
    %16 = mul %14, %15 : f32[4, 5] !{{fwd}}
    %17, %18, %19 = cross_entropy %16, %1 {{ignore_index = -100, label_smoothing = 0.0}} : f32[], f32[], f32[4] !{{fwd}}
  }}
  output \"loss.sum\" = %17
  output \"loss.weight\" = %18
}}"
    );
    let mut module = ir::text::parse(&text).expect("the text is a program");
    for data in module.data.values_mut() {
        let sizes: Vec<usize> =
            data.ty.sizes().expect("bound").into_iter().map(|size| size as usize).collect();
        let stream = random::stream(&data.name);
        let normal = |i: usize| 0.5 * random::normal(3, stream, i as u64);
        let elements = (0..sizes.iter().product()).map(normal).collect();
        data.blob = Blob::File(Some(Tensor::float(DType::F32, sizes, elements).to_bytes().into()));
    }
    module
}

fn compile(mut module: Module, pipeline: &str) -> Module {
    let pipeline: Pipeline = pipeline.parse().expect("the pipeline is well written");
    let mut cx = PassContext::default();
    Manager::default().run(&pipeline, &mut module, &mut cx, |_, _, _| {}).expect("the passes succeed");
    module
}

/// Makes two microbatches, different ones in every step.
fn microbatches(step: u64) -> Vec<BTreeMap<String, Tensor>> {
    let draw = |name: &str, index: u64, below: i64| {
        let stream = random::stream(&format!("{name} {step} {index}"));
        let number = |i: u64| (random::normal(5, stream, i).abs() * 1000.0) as i64 % below;
        Tensor::int(DType::I64, vec![4], (0..4).map(number).collect())
    };
    let microbatch = |index| {
        BTreeMap::from([
            ("tokens".to_string(), draw("tokens", index, 7)),
            ("labels".to_string(), draw("labels", index, 5)),
        ])
    };
    vec![microbatch(0), microbatch(1)]
}

fn start(module: &Module) -> StateValues {
    interp::initial_states(module, 0, Missing::Refuse).expect("the weights are here")
}

fn step(module: &Module, mode: Mode, states: &mut StateValues, number: u64) -> StepOutputs {
    interp::step(module, mode, states, &microbatches(number)).expect("the program runs")
}

/// Returns the losses of some steps on the same samples.
fn losses(module: &Module, mode: Mode, steps: u64) -> Vec<f64> {
    let mut states = start(module);
    (0..steps).map(|_| step(module, mode, &mut states, 0)["loss"][0].item()).collect()
}

/// Returns the largest difference, relative to the largest number.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    let apart = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
    apart / b.iter().map(|x| x.abs()).fold(f64::MIN_POSITIVE, f64::max)
}

const ADAMW: &str = "optimizer(adamw, lr=0.01, weight-decay=0.1, clip=1, keep-gradients) simplify";

#[test]
fn without_rounding_half_precision_trains_as_fp32_does() {
    let plain = losses(&compile(classifier(1.0), &format!("autodiff {ADAMW}")), Mode::Exact, 5);
    for options in ["bf16", "fp16", "fp16, interval=2", "bf16, grad-dtype=bf16", "fp16, grad-dtype=bf16"] {
        let pipeline = format!("autodiff precision({options}) {ADAMW}");
        let losses = losses(&compile(classifier(1.0), &pipeline), Mode::Exact, 5);
        assert!(distance(&losses, &plain) < 1e-12, "{options}: {losses:?} {plain:?}");
    }
}

#[test]
fn with_rounding_the_losses_stay_near_those_of_fp32() {
    let plain = losses(&compile(classifier(1.0), &format!("autodiff {ADAMW}")), Mode::Typed, 10);
    assert!(plain[9] < 0.9 * plain[0], "{plain:?}");
    for (options, tolerance) in [
        ("bf16", 1e-2),
        // The default scale overflows a few times, and a skipped step changes nothing.
        ("fp16, initial=1024", 2e-3),
        ("bf16, grad-dtype=bf16", 1e-2),
    ] {
        let pipeline = format!("autodiff precision({options}) {ADAMW}");
        let losses = losses(&compile(classifier(1.0), &pipeline), Mode::Typed, 10);
        let distance = distance(&losses, &plain);
        // Rounding must be visible; otherwise nothing was computed in half.
        assert!(distance > 1e-6 && distance < tolerance, "{options}: {distance}");
    }
}

#[test]
fn weights_stay_f32_and_gradients_are_summed_in_the_type_asked_for() {
    for (options, sums) in [("bf16", DType::F32), ("fp16, grad-dtype=bf16", DType::BF16)] {
        let module = compile(classifier(1.0), &format!("autodiff precision({options}) {ADAMW}"));
        for state in module.states.values().filter(|state| state.ty.dtype.is_float()) {
            assert_eq!(state.ty.dtype, DType::F32, "{}", state.name);
        }
        let accumulated = module.nodes().filter(|(_, node)| matches!(node.op, Op::Accumulate(_)));
        let gradients = accumulated.filter(|(_, node)| module.ty(node.results[0]).ndim() > 0);
        let types: Vec<DType> = gradients.map(|(_, node)| module.ty(node.results[0]).dtype).collect();
        assert_eq!(types, [sums; 5], "{options}");
    }
}

/// Megatron-LM's `DynamicGradScaler`.
struct Scaler {
    scale: f64,
    good_steps: u64,
    hysteresis: i64,
}

impl Scaler {
    fn update(&mut self, overflow: bool, interval: u64) {
        if overflow {
            self.good_steps = 0;
            self.hysteresis -= 1;
            if self.hysteresis <= 0 {
                self.scale = (self.scale * 0.5).max(1.0);
            }
        } else {
            self.good_steps += 1;
            if self.good_steps == interval {
                (self.good_steps, self.hysteresis) = (0, 2);
                self.scale *= 2.0;
            }
        }
    }
}

#[test]
fn an_overflow_skips_the_step_and_the_scale_finds_its_size() {
    let pipeline = format!("autodiff precision(fp16, initial=33554432, interval=3, max=1e9) {ADAMW}");
    let module = compile(classifier(1.0), &pipeline);
    let mut states = start(&module);
    let mut scaler = Scaler { scale: 33_554_432.0, good_steps: 0, hysteresis: 2 };
    let mut history = String::new();
    for number in 0..40 {
        let before = states.clone();
        let outputs = step(&module, Mode::Typed, &mut states, number);
        let skipped = outputs["skipped"][0].bools()[0];
        history.push(if skipped { 'x' } else { '.' });
        assert_eq!(outputs["grad_norm"][0].item().is_finite(), !skipped);
        assert_eq!(outputs["loss_scale"][0].item(), scaler.scale, "step {number}: {history}");
        assert!(!outputs["loss_scale.exhausted"][0].bools()[0]);
        for (id, state) in module.states.iter().filter(|(_, state)| state.role != Role::Scaler) {
            assert!(states[&id].numbers().iter().all(|x| x.is_finite()), "{}", state.name);
            let changed = states[&id] != before[&id];
            assert_eq!(changed, !skipped, "step {number}: {}", state.name);
        }
        scaler.update(skipped, 3);
    }
    // At first the scale is too large. Then it grows until it is too large again, and shrinks each time.
    assert!(history.starts_with("xxx") && history.trim_start_matches('x').contains('x'), "{history}");
    assert!(history.matches('.').count() > 15, "{history}");
}

#[test]
fn a_scale_that_can_get_no_smaller_says_so() {
    let pipeline = format!("autodiff precision(fp16, initial=1e9, min=1e9, max=1e9) {ADAMW}");
    let module = compile(classifier(1.0), &pipeline);
    let outputs = step(&module, Mode::Typed, &mut start(&module), 0);
    assert!(outputs["skipped"][0].bools()[0] && outputs["loss_scale.exhausted"][0].bools()[0]);
}

#[test]
fn small_gradients_survive_in_fp16_because_the_loss_is_scaled() {
    let gradient = |options: &str| {
        let pipeline = format!("autodiff precision({options}) {ADAMW}");
        let module = compile(classifier(1e-8), &pipeline);
        let outputs = step(&module, Mode::Typed, &mut start(&module), 0);
        outputs["grad.fc.weight"][0].floats().to_vec()
    };
    let plain = gradient("fp32");
    assert!(distance(&gradient("fp16"), &plain) < 1e-2);
    assert!(distance(&gradient("fp16, initial=1"), &plain) > 0.5);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    for (options, message) in [
        ("fp16, min=4, initial=2", "the initial loss scale is 2 and the smallest is 4"),
        ("fp16, backoff=1", "shrinks by the factor 1"),
        ("fp16, hysteresis=0", "must wait at least one step"),
        ("grad-dtype=i64", "not in i64"),
    ] {
        let pipeline: Pipeline = format!("autodiff precision({options})").parse().expect("it reads");
        let mut module = classifier(1.0);
        let mut cx = PassContext::default();
        let failure = Manager::default()
            .run(&pipeline, &mut module, &mut cx, |_, _, _| {})
            .expect_err("the options are refused");
        assert!(failure.to_string().contains(message), "{failure}");
    }
}

/// Checks that a value is cast at most once to a type in a phase, and that a widened value is never narrowed again.
fn check_casts(module: &Module) {
    let mut seen = BTreeSet::new();
    for (_, node) in module.nodes().filter(|(_, node)| node.phase != Phase::Update) {
        let Op::Cast(Cast { to }) = node.op else { continue };
        let operand = node.operands[0];
        assert!(seen.insert((operand, to, node.phase)), "{operand} is cast to {to} twice");
        let Some(inner) = module.producer(operand) else { continue };
        let [from, through] = [inner.operands.first(), Some(&operand)]
            .map(|value| value.map_or(DType::F64, |&value| module.ty(value).dtype));
        let cancels = matches!(inner.op, Op::Cast(_)) && from == to && through == DType::F32;
        assert!(!cancels, "{operand} is widened and narrowed again");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_compute_the_same_without_rounding(seed in any::<u64>(), steps in 1usize..24) {
        let module = testing::program(seed, DType::F32, steps);
        if module.states.values().any(|state| state.role == Role::Parameter) {
            let plain = compile(module.clone(), "autodiff");
            let states = interp::initial_states(&plain, seed, Missing::Draw).expect("states can be made");
            let microbatches: Vec<_> = (0..2).map(|index| testing::microbatch(&plain, seed, index)).collect();
            let run = |module: &Module| {
                let mut all = interp::initial_states(module, seed, Missing::Draw).expect("as above");
                all.extend(states.clone());
                interp::step(module, Mode::Exact, &mut all, &microbatches).expect("the program runs")
            };
            let expected = run(&plain);
            for options in ["bf16", "fp16", "fp16, grad-dtype=f16", "grad-dtype=bf16"] {
                let half = compile(module.clone(), &format!("autodiff precision({options})"));
                check_casts(&half);
                let outputs = run(&half);
                for (name, tensors) in &expected {
                    for (new, old) in outputs[name].iter().zip(tensors) {
                        prop_assert_eq!(new.dtype, old.dtype, "{}: output {}", options, name);
                        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-11 * (1.0 + b.abs());
                        prop_assert!(new.numbers().iter().zip(&old.numbers()).all(close), "{}: {}", options, name);
                    }
                }
            }
        }
    }
}
