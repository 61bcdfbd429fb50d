//! Checks that random programs compute the same values when their contractions are joined.

use super::*;
use ir::interp::{self, Mode, StateValues, StepOutputs};
use ir::{DType, testing};
use proptest::prelude::*;

/// Kernels that write all results anywhere. For them more is joined than for any real target.
#[derive(Debug)]
struct WritesAnywhere;

impl Kernels for WritesAnywhere {
    fn target(&self) -> &'static str {
        "anywhere"
    }

    fn reads_half(&self, _: &Op, _: usize) -> bool {
        false
    }

    fn writes_as(&self, _: &Op, _: usize, _: DType, _: DType) -> bool {
        false
    }

    fn writes_anywhere(&self, _: &Op) -> bool {
        true
    }
}

fn joined(module: &Module) -> Module {
    let mut module = module.clone();
    contractions(&mut module, &WritesAnywhere);
    ir::verify::verify(&module).expect("the joined program is valid");
    module
}

fn outputs(module: &Module, seed: u64) -> StepOutputs {
    let mut states: StateValues =
        interp::initial_states(module, seed, interp::Missing::Draw).expect("states can be drawn");
    let microbatches = [testing::microbatch(module, seed, 0)];
    interp::step(module, Mode::Exact, &mut states, &microbatches).expect("it runs")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_compute_the_same(seed in any::<u64>()) {
        let module = testing::program(seed, DType::F64, 48);
        let [given, expected] = [&joined(&module), &module].map(|module| outputs(module, seed));
        for (name, tensors) in &expected {
            let pairs = tensors.iter().zip(&given[name]).flat_map(|(a, b)| {
                a.numbers().into_iter().zip(b.numbers())
            });
            for (expected, given) in pairs {
                let apart = (expected - given).abs();
                prop_assert!(apart <= 1e-10 * expected.abs().max(1.0), "{name}: {given}, not {expected}");
            }
        }
    }
}

#[test]
fn some_random_programs_are_joined() {
    let module = |seed: u64| testing::program(seed, DType::F64, 48);
    let is_joined = |seed: &u64| ir::text::print(&joined(&module(*seed))) != ir::text::print(&module(*seed));
    let count = (0..500).filter(is_joined).count();
    assert!(count >= 10, "{count}");
}
