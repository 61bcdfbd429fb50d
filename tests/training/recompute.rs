//! Steps whose activations are computed again have the bits of steps that keep them, in less memory.

use ir::{DType, Module, Node, Op};
use passes::Manager;
use passes::precision::Precision;
use passes::recompute::Recompute;
use runtime::target::{Multiprocessors, Target};
use testing::models::{self, Fixture, adamw, done, split};
use trainyard::budget::{self, Place};
use trainyard::failure::Failure;
use trainyard::pipeline::CompilationPlan;
use trainyard::training::Programs;
use trainyard::verification::execute::{Machine, Tensors};
use trainyard::verification::{Mode, Subject, inputs};

const STEPS: u64 = 20;
const SAMPLES: u64 = 4;

/// The losses and gradients of each step, and the states after the last one.
fn run(subject: &Subject, microbatches: usize) -> (Vec<Tensors>, Tensors) {
    let mut machine =
        done(Machine::new(&subject.compilation.training, Mode::Cpu, microbatches, &subject.start));
    let (mut outputs, mut states) = (vec![], Tensors::new());
    for step in 0..STEPS {
        let inputs = done(inputs::draw(&subject.compilation.forward, step, microbatches as u64));
        let executed = done(machine.step(&inputs));
        outputs.push(executed.last_outputs(|name| name == "loss" || name.starts_with("grad")));
        states = executed.states;
    }
    (outputs, states)
}

fn peak(subject: &Subject) -> u64 {
    done(Programs::lower(&subject.compilation, 1, Target::Cpu)).peak()
}

fn copies(module: &Module) -> usize {
    module.nodes().filter(|(_, node)| node.copy > 0).count()
}

fn subject_of(fixture: &Fixture, plan: &CompilationPlan, recompute: Option<Recompute>) -> Subject {
    fixture.compiled(SAMPLES, CompilationPlan { recompute, optimizer: adamw(), ..plan.clone() })
}

fn check(fixture: &Fixture, plan: &CompilationPlan, microbatches: usize) {
    let subject = |recompute| subject_of(fixture, plan, recompute);
    let kept = subject(None);
    let expected = run(&kept, microbatches);
    for recompute in [Recompute::FULL, Recompute::SELECTIVE] {
        let again = subject(Some(recompute.clone()));
        assert!(copies(&again.compilation.training) > 0, "{recompute:?}");
        assert!(run(&again, microbatches) == expected, "{}: other bits with {recompute:?}", fixture.file);
        if recompute == Recompute::FULL {
            assert!(peak(&again) <= peak(&kept), "{} and {} bytes", peak(&again), peak(&kept));
        }
    }
}

fn precision(compute: DType) -> CompilationPlan {
    let precision = Precision { compute, ..Precision::default() };
    CompilationPlan { precision, ..CompilationPlan::default() }
}

#[test]
fn gpt2_has_the_same_bits_in_every_precision() {
    for compute in [DType::F32, DType::BF16, DType::F16] {
        check(&models::GPT2_DYNAMO, &precision(compute), 1);
    }
}

#[test]
fn gpt2_has_the_same_bits_in_microbatches() {
    check(&models::GPT2_DYNAMO, &CompilationPlan::default(), 2);
}

#[test]
fn gpt2_has_the_same_bits_on_meshes() {
    for options in ["mesh=dp:2, zero=3", "mesh=tp:2, sequence-parallel"] {
        let plan = CompilationPlan { spmd: split(options), ..CompilationPlan::default() };
        check(&models::GPT2_DYNAMO, &plan, 1);
    }
}

#[test]
fn a_repeated_dropout_draws_the_same_numbers() {
    let dropped = subject_of(&models::GPT2_DROPOUT, &CompilationPlan::default(), Some(Recompute::FULL));
    let module = &dropped.compilation.training;
    let draws = |node: &Node| node.copy > 0 && matches!(node.op, Op::Dropout(_));
    assert!(module.nodes().any(|(_, node)| draws(node)), "no dropout is repeated");
    check(&models::GPT2_DROPOUT, &CompilationPlan::default(), 1);
    check(&models::GPT2_DROPOUT, &CompilationPlan::default(), 2);
}

#[test]
fn llama_and_bert_have_the_same_bits() {
    check(&models::LLAMA_DYNAMO, &precision(DType::BF16), 1);
    check(&models::BERT_DYNAMO, &CompilationPlan::default(), 1);
}

/// Every budget between the smallest program and the largest is kept, and the smallest program is named where none fits.
#[test]
fn a_budget_that_is_accepted_is_kept() {
    let full = peak(&models::GPT2_DYNAMO.compiled(
        SAMPLES,
        CompilationPlan {
            recompute: Some(Recompute::FULL),
            optimizer: adamw(),
            ..CompilationPlan::default()
        },
    ));
    let plan = CompilationPlan { optimizer: adamw(), ..CompilationPlan::default() };
    let all = peak(&models::GPT2_DYNAMO.compiled(SAMPLES, plan.clone()));
    assert!(full < all, "{full} and {all} bytes");
    let fit = |budget: u64| {
        let mut subject = models::GPT2_DYNAMO.compiled(SAMPLES, plan.clone());
        let (target, multiprocessors) = (Target::Cpu, Multiprocessors::default());
        let place = Place { budget, microbatches: 1, target, multiprocessors };
        let fit = budget::fit(&mut subject.compilation, &Manager::default(), place);
        fit.map(|fit| (fit, peak(&subject), copies(&subject.compilation.training)))
    };
    for share in 0..=4 {
        let budget = full + (all - full) * share / 4;
        let (fit, peak, copies) = done(fit(budget));
        assert!(peak <= budget && fit.peak == peak, "{fit:?}: {peak} bytes");
        assert_eq!(copies > 0, share < 4, "{fit:?}");
        assert!(fit.least_time <= fit.time);
    }
    let Err(Failure::User(errors)) = fit(full - 1) else { panic!("no program fits") };
    assert!(errors[0].to_string().contains("the smallest program"), "{errors:?}");
}
