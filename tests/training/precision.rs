//! Exported models in half precision: near fp32 if numbers are rounded, equal to fp32 if they are not.

use ir::interp::{self, Missing, Mode};
use ir::{DType, Module, Op, Phase};
use passes::Pipeline;
use passes::precision::{Precision, Scaling};
use passes::registry::Pass;
use passes::simplify::Simplify;
use passes::{autodiff::Autodiff, optimizer::Optimizer};
use testing::models::{self, Fixture, adamw, done};
use trainyard::verification::execute::Tensors;
use trainyard::verification::inputs;

const STEPS: usize = 3;

#[test]
fn an_mlp_trains_in_half_precision() {
    check(&models::MLP_DYNAMO);
}

#[test]
fn gpt2_trains_in_half_precision() {
    check(&models::GPT2_DYNAMO);
}

#[test]
fn llama_trains_in_half_precision() {
    check(&models::LLAMA_DYNAMO);
}

#[test]
fn bert_trains_in_half_precision() {
    check(&models::BERT_DYNAMO);
}

fn check(fixture: &Fixture) {
    let optimizer = Optimizer { clip: Some(1.0), ..adamw() };
    let (source, plan) = fixture.source(1, optimizer.clone());
    let compile = |compute: DType| {
        // The scale is so small that no step is skipped. So the losses are those of the same number of updates.
        let scaling = Scaling { initial: 256.0, ..Scaling::default() };
        let precision = Precision { compute, scaling, ..Precision::default() };
        let rest: [Pass; 4] =
            [Autodiff::default().into(), precision.into(), optimizer.clone().into(), Simplify.into()];
        let mut passes = plan.forward().passes;
        passes.extend(rest);
        done(source.run(&Pipeline { passes }))
    };
    let plain = compile(DType::F32);
    let microbatches = inputs::draw(&plain, 7, 2).expect("the dims are bound");
    let [exact, typed] = [Mode::Exact, Mode::Typed].map(|mode| losses(&plain, mode, &microbatches));
    for (compute, tolerance) in [(DType::BF16, 1e-2), (DType::F16, 2e-3)] {
        let half = compile(compute);
        check_classes(&half, compute);
        let same = losses(&half, Mode::Exact, &microbatches);
        let near = losses(&half, Mode::Typed, &microbatches);
        let distance =
            |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| (x - y).abs() / y.abs()).fold(0.0, f64::max);
        assert!(distance(&same, &exact) < 1e-9, "{compute}: {same:?}, fp32 {exact:?}");
        assert!(distance(&near, &typed) < tolerance, "{compute}: {near:?}, fp32 {typed:?}");
    }
}

/// The losses of some steps on the same samples.
fn losses(module: &Module, mode: Mode, microbatches: &[Tensors]) -> Vec<f64> {
    let mut states = interp::initial_states(module, 0, Missing::Draw).expect("the weights are here");
    let step = |_| {
        let outputs = interp::step(module, mode, &mut states, microbatches).expect("the program runs");
        let skipped = outputs.get("skipped").is_some_and(|skipped| skipped[0].bools()[0]);
        assert!(!skipped, "the gradients fit");
        outputs["loss"][0].item()
    };
    (0..STEPS).map(step).collect()
}

/// Checks that every contraction and attention that depends on a weight computes in half precision, that each weight is cast once, before
/// the first microbatch, and that no activation is kept in two types for backward.
fn check_classes(module: &Module, half: DType) {
    let heavy = |op: &Op| matches!(op, Op::Attention(_) | Op::AttentionGrad(_) | Op::Contract(_));
    let mut in_half = 0;
    for (_, node) in module.nodes().filter(|(_, node)| node.phase.is_microbatch() && heavy(&node.op)) {
        assert_eq!(module.ty(node.results[0]).dtype, half, "{}", node.op.name());
        in_half += 1;
    }
    assert!(in_half > 3);
    let uses = module.uses();
    for state in module.states.values().filter(|state| state.role == ir::Role::Parameter) {
        let casts = uses[state.input].iter().map(|&id| module.node(id));
        let casts: Vec<Phase> =
            casts.filter(|node| matches!(node.op, Op::Cast(_))).map(|node| node.phase).collect();
        assert!(casts.len() <= 1 && casts.iter().all(|&phase| phase == Phase::Prepare), "{}", state.name);
    }
    for (_, node) in module.nodes().filter(|(_, node)| node.phase == Phase::Backward) {
        for &value in &node.operands {
            let kept = module.phase_of(value) == Phase::Forward && module.ty(value).dtype == DType::F32;
            let widened = module.producer(value).is_some_and(|producer| {
                matches!(producer.op, Op::Cast(_)) && module.ty(producer.operands[0]).dtype == half
            });
            assert!(!(kept && widened), "{value} is kept in f32, and was half");
        }
    }
}
