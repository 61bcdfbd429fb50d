//! A compiled model's step in half precision, compared with the interpreter, which rounds each value.

use super::losses::machine;
use super::{Fixture, adamw, done};
use ir::relative_error::largest;
use ir::{DType, Module, Tensor};
use passes::precision::Precision;
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::Mode;
use trainyard::verification::compare::FLOOR;
use trainyard::verification::execute::{Execution, Machine, Tensors, with_tensors};
use trainyard::verification::inputs;

/// Checks that the loss is within 1e-3 of the interpreter's, and that gradients have the same direction.
pub fn check_half(fixture: &Fixture, mode: Mode) {
    for compute in [DType::BF16, DType::F16] {
        let (what, [given, typed]) = steps(fixture, mode, compute, 2, machine);
        check_loss(&what, &given, &typed);
        check_gradients(&what, &given, &typed);
    }
}

/// As [`check_half`], for the loss alone, in this type.
pub fn check_half_loss(fixture: &Fixture, mode: Mode, compute: DType) {
    let (what, [given, typed]) = steps(fixture, mode, compute, 2, machine);
    check_loss(&what, &given, &typed);
}

/// As [`check_half_loss`], for the mean loss of `microbatches` microbatches. The memory accesses of commands are not checked, because that
/// takes long.
pub fn check_half_mean_loss(fixture: &Fixture, mode: Mode, compute: DType, microbatches: u64) {
    let (what, [given, typed]) = steps(fixture, mode, compute, microbatches, unchecked);
    check_loss(&what, &given, &typed);
}

/// Makes a program's machine in a mode.
type Make = for<'m> fn(&'m Module, Mode, usize, &Tensors) -> Machine<'m>;

fn unchecked<'m>(module: &'m Module, mode: Mode, microbatches: usize, start: &Tensors) -> Machine<'m> {
    done(Machine::new(module, mode, microbatches, start))
}

/// Runs a step of `microbatches` microbatches in a mode, and by the interpreter.
fn steps(
    fixture: &Fixture,
    mode: Mode,
    compute: DType,
    microbatches: u64,
    make: Make,
) -> (String, [Execution; 2]) {
    let precision = Precision { compute, ..Precision::default() };
    let plan = CompilationPlan { optimizer: adamw(), precision, ..CompilationPlan::default() };
    let subject = fixture.compiled(fixture.batch, plan);
    let module = with_tensors(subject.compilation.training.clone(), &subject.tensors);
    let microbatches = done(inputs::draw(&module, 5, microbatches));
    let executions = [mode, Mode::Typed]
        .map(|mode| done(make(&module, mode, microbatches.len(), &subject.start).last_step(&microbatches)));
    (format!("{} in {compute}, mode {}", fixture.file, mode.name()), executions)
}

fn check_loss(what: &str, given: &Execution, typed: &Execution) {
    let [ours, theirs] = [given, typed].map(|run| run.loss().expect("a step has a loss"));
    assert!((ours - theirs).abs() <= 1e-3 * theirs.abs(), "{what}: a loss of {ours}, not of {theirs}");
}

/// Checks that each gradient has a cosine of at least 0.999. A gradient that is zero but for rounding is not compared.
fn check_gradients(what: &str, given: &Execution, typed: &Execution) {
    let is_gradient = |name: &str| name.starts_with("grad.");
    let (given, typed) = (given.last_outputs(is_gradient), typed.last_outputs(is_gradient));
    assert!(given.keys().eq(typed.keys()), "{what}");
    let floor = FLOOR * largest(typed.values());
    let above = || typed.iter().filter(|(_, gradient)| largest([*gradient]) > floor);
    assert!(above().count() + 4 >= typed.len() && above().count() > 15, "{what}: little is left to compare");
    for (name, gradient) in above() {
        let cosine = cosine(&given[name], gradient);
        assert!(cosine >= 0.999, "{what}: `{name}` has a cosine of {cosine}");
    }
}

fn cosine(a: &Tensor, b: &Tensor) -> f64 {
    let (a, b) = (a.numbers(), b.numbers());
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt()
}
