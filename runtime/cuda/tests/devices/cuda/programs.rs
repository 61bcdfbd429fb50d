//! Random steps, lowered for GPUs: all of them lower, and on the stand-in they compute what the interpreter does.

use super::host;
use crate::compare::{Microbatch, assert_agrees_on, unit};
use crate::training::training_program;
use cuda::host::Order;
use ir::interp::Mode;
use ir::{DType, testing};
use program::Microbatches;
use program::lower::{LowerOptions, lower};
use proptest::prelude::*;
use std::sync::Arc;

const TYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

fn dtype() -> impl Strategy<Value = DType> {
    prop::sample::select(&TYPES[..])
}

fn options(many: bool) -> LowerOptions<'static> {
    let microbatches = if many { Microbatches::Many } else { Microbatches::One };
    LowerOptions { microbatches, ..LowerOptions::of(cuda::TARGET) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_random_step_has_kernels(seed in any::<u64>(), dtype in dtype(), many in any::<bool>()) {
        let program = lower(&training_program(seed, dtype, true), &options(many));
        let program = program.unwrap_or_else(|error| panic!("{error}"));
        let cuda = cuda::lower::lower(Arc::new(program));
        prop_assert!(cuda.is_ok(), "{}", cuda.unwrap_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs a C++ compiler"]
    fn a_random_step_computes_what_the_interpreter_does(seed in any::<u64>(), dtype in dtype(), many in any::<bool>()) {
        let module = training_program(seed, dtype, true);
        let count = if many { 2 } else { 1 };
        let step: Vec<Microbatch> = (0..count).map(|index| testing::microbatch(&module, seed, index)).collect();
        let make = |program| host(program, Order::default());
        assert_agrees_on(&make, Mode::Typed, &module, &options(many), &[step], |dtype| 8.0 * unit(dtype));
    }
}
