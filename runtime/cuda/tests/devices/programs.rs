//! Random forward programs.

use crate::compare::assert_agrees;
use ir::{DType, testing};
use program::Microbatches;
use program::lower::{LowerOptions, lower};
use proptest::prelude::*;

fn check(seed: u64, dtype: DType, options: &LowerOptions, tolerance: f64) {
    let module = testing::program(seed, dtype, 24);
    let microbatches = (0..2).map(|index| testing::microbatch(&module, seed, index)).collect();
    assert_agrees(&module, options, &[microbatches], tolerance);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_random_program_agrees_with_the_interpreter(seed in any::<u64>(), unfused in any::<bool>()) {
        check(seed, DType::F64, &LowerOptions { unfused, ..LowerOptions::of(cpu::TARGET) }, 1e-10);
    }

    #[test]
    fn a_random_program_of_f32_agrees_with_the_interpreter(seed in any::<u64>()) {
        check(seed, DType::F32, &LowerOptions::of(cpu::TARGET), 3e-5);
    }

    #[test]
    fn lowering_twice_gives_the_same_program(seed in any::<u64>()) {
        let module = testing::program(seed, DType::F32, 24);
        let options = LowerOptions { microbatches: Microbatches::Many, ..LowerOptions::of(cpu::TARGET) };
        let programs = [0, 1].map(|_| lower(&module, &options).expect("it lowers"));
        prop_assert_eq!(programs[0].hash, programs[1].hash);
        prop_assert_eq!(programs[0].to_string(), programs[1].to_string());
    }
}
