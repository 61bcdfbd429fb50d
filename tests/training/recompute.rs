//! Steps whose activations are computed again have the same bits as steps that keep them, in less memory.

mod faults;
mod layers;
mod random;

use ir::machine::{self, Preset};
use ir::{DType, Diagnostic, Module, Node, Op};
use passes::Manager;
use passes::precision::Precision;
use passes::recompute::Recompute;
use program::Multiprocessors;
use testing::models::{self, Fixture, adamw, done, split};
use trainyard::config::memory::{Budget, Tiers};
use trainyard::failure::Failure;
use trainyard::fit::{self, Conditions, Fit, OnDevice, Peaks};
use trainyard::pipeline::CompilationPlan;
use trainyard::training::Programs;
use trainyard::verification::execute::{Machine, Tensors};
use trainyard::verification::{Mode, Subject, inputs};

const STEPS: u64 = 20;
const SAMPLES: u64 = 4;

/// The losses and gradients of each step, and the states after the last one.
fn run(subject: &Subject, microbatches: usize) -> (Vec<Tensors>, Tensors) {
    let mut machine = done(Machine::new(
        &subject.compilation.training,
        Mode::On(cpu::TARGET),
        microbatches,
        &subject.start,
    ));
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
    done(Programs::lower(&subject.compilation, 1, cpu::TARGET)).peak()
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
#[ignore = "longer"]
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
#[ignore = "longer"]
fn llama_and_bert_have_the_same_bits() {
    check(&models::LLAMA_DYNAMO, &precision(DType::BF16), 1);
    check(&models::BERT_DYNAMO, &CompilationPlan::default(), 1);
}

/// The budget that an error names.
fn named_budget(failure: &Failure) -> u64 {
    let Failure::User(errors) = failure else { panic!("{failure:?}") };
    let text = errors[0].to_string();
    let (_, budget) = text.split_once("the smallest budget that fits is --memory ").expect("it is named");
    done(
        budget
            .lines()
            .next()
            .expect("a line")
            .parse::<Budget>()
            .map_err(|error| Diagnostic::new(error.to_string())),
    )
    .0
}

/// The numbers of a search in which no value may leave the device.
fn numbers(fit: &Fit) -> OnDevice {
    fit.on_device.expect("no value may leave the device")
}

/// Makes GPT-2 fit a budget. Returns the bytes of its program, and the number of its copies.
fn fit(budget: u64) -> Result<(Fit, u64, usize), Failure> {
    fit_model(&models::GPT2_DYNAMO, SAMPLES, budget)
}

fn fit_model(fixture: &Fixture, samples: u64, budget: u64) -> Result<(Fit, u64, usize), Failure> {
    let plan = CompilationPlan { optimizer: adamw(), ..CompilationPlan::default() };
    let mut subject = fixture.compiled(samples, plan);
    let (target, multiprocessors) = (cpu::TARGET, Multiprocessors::default());
    let node = &machine::Node::of_device(&Preset::Cpu.device());
    let conditions = Conditions { microbatches: 1, target, multiprocessors, may_update_early: false, node };
    let tiers = Tiers::within(Some(budget));
    let fit = fit::fit(&mut subject.compilation, &Manager::default(), &tiers, conditions, |_, _| {})?;
    let programs = done(Programs::lower(&subject.compilation, 1, target));
    assert_eq!(fit.peaks, Peaks::of(&programs), "{fit}");
    let copies = copies(&subject.compilation.training);
    Ok((fit, programs.peak(), copies))
}

#[test]
fn every_budget_between_the_smallest_and_the_largest_program_is_kept() {
    let smallest = named_budget(&fit(1).expect_err("a program takes more than a byte"));
    let all = peak(&subject_of(&models::GPT2_DYNAMO, &CompilationPlan::default(), None));
    assert!(smallest < all, "{smallest} and {all} bytes");
    for share in 0..=4 {
        let budget = smallest + (all - smallest) * share / 4;
        let (fit, peak, copies) = done(fit(budget));
        assert!(peak <= budget && fit.peaks.device == peak, "{fit:?}: {peak} bytes");
        assert_eq!(copies > 0, share < 4, "{fit:?}");
        let OnDevice { time, least_time, .. } = numbers(&fit);
        assert!(least_time <= time, "{fit:?}");
    }
}

/// The masks of ReLUs take a bit for each element, which costs less than recomputation.
#[test]
fn masks_are_kept_as_bits_before_anything_is_computed_again() {
    let model = &models::RESNET_TRAINMODE;
    let all = done(fit_model(model, 32, u64::MAX)).1;
    let (fit, peak, copies) = done(fit_model(model, 32, all - 1));
    let is_compressed = |fit: &Fit| fit.candidate.compress.is_some();
    assert!(is_compressed(&fit) && numbers(&fit).time == 0, "{fit}");
    assert!(copies == 0 && peak < all, "{fit}: {peak} bytes");
    assert!(fit.to_string().contains("activations are compressed without loss, and nothing is"), "{fit}");
    let (less, smaller, copies) = done(fit_model(model, 32, peak - 1));
    assert!(is_compressed(&less) && numbers(&less).time > 0, "{less}");
    assert!(copies > 0 && smaller < peak, "{less}: {smaller} bytes");
    // The budget in the error is that of the smallest program.
    let smallest = named_budget(&fit_model(model, 32, 1).expect_err("a program takes more than a byte"));
    let named = done(fit_model(model, 32, smallest)).1;
    assert!(smallest < peak && named <= smallest, "{smallest} named, {named}, {smaller} and {peak} bytes");
}

#[test]
fn a_budget_that_nothing_fits_is_refused_with_its_remedies() {
    let Err(Failure::User(errors)) = fit(1 << 20) else { panic!("no program fits") };
    let text = errors[0].to_string();
    for part in [
        "--memory 1MiB: the smallest program that was found takes ",
        "the smallest budget that fits is --memory ",
        "the largest value at its peak is the result of `",
        "a smaller --microbatch, a mesh of more devices or --zero takes less",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(errors[0].origin.is_some(), "the node that makes the largest value is named");
}
