//! Tests of the generator of random programs, on which other property tests rely.

use ir::interp::{Missing, Mode, initial_states, step};
use ir::testing::{microbatch, program};
use ir::{DType, Tensor};
use std::collections::BTreeSet;

#[test]
fn a_program_runs_and_its_numbers_stay_small() {
    for seed in 0..300 {
        let module = program(seed, DType::F64, 25);
        let mut states = initial_states(&module, seed, Missing::Refuse).unwrap();
        let inputs = [microbatch(&module, seed, 0), microbatch(&module, seed, 1)];
        let outputs = step(&module, Mode::Exact, &mut states, &inputs).unwrap();
        let numbers = outputs.values().flatten().flat_map(Tensor::numbers);
        assert!(numbers.into_iter().all(|x| x.abs() < 100.0), "seed {seed}");
        assert_eq!(outputs["loss.sum"].len(), 2);
    }
}

#[test]
fn every_parameter_matters_to_the_loss() {
    for seed in 0..300 {
        let module = program(seed, DType::F32, 25);
        let mut needed = BTreeSet::from([module.output("loss.sum").unwrap().value]);
        for (_, node) in module.nodes().rev() {
            if node.results.iter().any(|result| needed.contains(result)) {
                needed.extend(&node.operands);
            }
        }
        assert!(module.states.values().all(|state| needed.contains(&state.input)), "seed {seed}");
    }
}

#[test]
fn a_seed_gives_one_program_and_other_seeds_give_others() {
    assert_eq!(program(1, DType::F32, 20), program(1, DType::F32, 20));
    assert_ne!(program(1, DType::F32, 20), program(2, DType::F32, 20));
}

#[test]
fn programs_use_every_kind_of_operator_they_can() {
    let used =
        |seed| program(seed, DType::F32, 30).nodes().map(|(_, node)| node.op.name()).collect::<Vec<_>>();
    let used: BTreeSet<&str> = (0..100).flat_map(used).collect();
    for name in
        ["contract", "reshape", "transpose", "broadcast", "slice", "concat", "pad", "reduce", "select"]
    {
        assert!(used.contains(name), "{name}");
    }
    for name in ["splat", "iota", "constant", "add", "div", "pow", "log", "gelu", "tanh"] {
        assert!(used.contains(name), "{name}");
    }
}
