//! Random steps, rewritten and lowered for GPUs. All operators have kernels, and on the stand-in the kernels compute the same as the
//! interpreter.

use crate::models::done;
use crate::rewritten::{assert_agrees, lowered};
use cuda::host::Order;
use ir::interp::Mode;
use ir::{DType, Module, testing};
use passes::{Manager, PassContext, Pipeline};
use program::Microbatches;
use program::check::{Microbatch, unit};
use program::lower::LowerOptions;
use std::sync::Arc;

const TYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// A random program with gradients and an update. `None` if the loss of the program depends on no parameter.
fn training_program(seed: u64, dtype: DType, passes: &str) -> Option<Module> {
    let mut module = testing::program(seed, dtype, 16);
    let pipeline: Pipeline = passes.parse().expect("these are passes");
    let (manager, mut cx) = (Manager::default(), PassContext::default());
    match manager.run(&pipeline, &mut module, &mut cx, |_, _, _| {}) {
        Ok(_) => Some(module),
        Err(failure) if failure.pass == "autodiff" && !failure.fault => None,
        Err(failure) => panic!("{failure}"),
    }
}

/// The type of a case, and whether it has many microbatches; both alternate.
fn case(seed: u64) -> (DType, bool) {
    (TYPES[seed as usize % TYPES.len()], (seed / 3).is_multiple_of(2))
}

#[test]
fn random_steps_have_kernels_when_they_are_rewritten() {
    let mut rewritten = 0;
    for seed in 0..200 {
        let (dtype, many) = case(seed);
        // Every second program has casts of its own.
        let (dtype, precision) =
            if seed.is_multiple_of(2) { (DType::F32, "precision(bf16)") } else { (dtype, "") };
        let passes = format!("autodiff {precision} optimizer(adamw, lr=0.05) simplify");
        let Some(module) = training_program(seed, dtype, &passes) else { continue };
        let microbatches = if many { Microbatches::Many } else { Microbatches::One };
        let program = lowered(&module, microbatches);
        let as_it_is = LowerOptions { microbatches, ..LowerOptions::of(cuda::TARGET) };
        rewritten += usize::from(program.hash != done(program::lower::lower(&module, &as_it_is)).hash);
        let cuda = cuda::lower::lower(Arc::new(program));
        assert!(cuda.is_ok(), "seed {seed}: {}", cuda.unwrap_err());
    }
    assert!(rewritten >= 10, "only {rewritten} programs are rewritten");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn random_steps_compute_what_the_interpreter_does_when_they_are_rewritten() {
    let mut checked = 0;
    for seed in 0..24 {
        let (dtype, many) = case(seed);
        let Some(module) = training_program(seed, dtype, "autodiff optimizer(sgd, lr=0.05)") else {
            continue;
        };
        let count = if many { 2 } else { 1 };
        let step: Vec<Microbatch> =
            (0..count).map(|index| testing::microbatch(&module, seed, index)).collect();
        // The loss and the norm are reported in f64, and are sums of numbers in the program's own type.
        let tolerance = |of| 8.0 * f64::max(unit(of), unit(dtype));
        assert_agrees(&module, Order::default(), Mode::Typed, &[step], tolerance);
        checked += 1;
    }
    assert!(checked >= 10, "only {checked} programs have parameters");
}
