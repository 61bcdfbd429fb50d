//! Checks gradients of random programs against finite differences, and plants faults in gradients that this check must find.

use ir::interp::{self, Missing, Mode, StateValues, StepOutputs};
use ir::ops::elementwise::{Binary, Unary};
use ir::{At, Builder, DType, Module, Op, Phase, Role, StateId, Tensor, ValueId, random, testing};
use passes::{Pass, PassContext, autodiff};
use proptest::prelude::*;
use std::collections::BTreeMap;

const STEP: f64 = 1e-5;

/// A random program with its backward phase, its states and two microbatches.
struct Case {
    module: Module,
    states: StateValues,
    microbatches: Vec<BTreeMap<String, Tensor>>,
}

impl Case {
    fn new(seed: u64, steps: usize) -> Option<Self> {
        let mut module = testing::program(seed, DType::F64, steps);
        if !module.states.values().any(|state| state.role == Role::Parameter) {
            return None;
        }
        let autodiff = Pass::from(autodiff::Autodiff::default());
        autodiff
            .run(&mut module, &mut PassContext::default())
            .expect("random programs can be differentiated");
        ir::verify::verify(&module).expect("autodiff makes valid programs");
        let states = interp::initial_states(&module, seed, Missing::Draw).expect("states can be made");
        let microbatches = (0..2).map(|index| testing::microbatch(&module, seed, index)).collect();
        Some(Self { module, states, microbatches })
    }

    fn step(&self, states: &StateValues) -> StepOutputs {
        interp::step(&self.module, Mode::Exact, &mut states.clone(), &self.microbatches)
            .expect("the program runs")
    }

    /// Returns the largest error of a parameter's gradient along a random direction, relative to the size of the terms.
    fn error(&self) -> f64 {
        let outputs = self.step(&self.states);
        let parameters = self.module.states.iter().filter(|(_, state)| state.role == Role::Parameter);
        let errors = parameters.map(|(id, state)| {
            let direction = direction(&self.states[&id], &state.name);
            let gradient = match outputs.get(&format!("grad.{}", state.name)) {
                Some(gradients) => gradients[0].floats().to_vec(),
                None => vec![0.0; direction.len()],
            };
            let slope: f64 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
            let scale: f64 = gradient.iter().zip(&direction).map(|(g, d)| (g * d).abs()).sum();
            let difference =
                (self.loss_at(id, &direction, STEP) - self.loss_at(id, &direction, -STEP)) / (2.0 * STEP);
            (slope - difference).abs() / (scale + 1e-2)
        });
        errors.fold(0.0, f64::max)
    }

    fn loss_at(&self, id: StateId, direction: &[f64], step: f64) -> f64 {
        let mut states = self.states.clone();
        let tensor = &states[&id];
        let moved = tensor.floats().iter().zip(direction).map(|(x, d)| x + step * d).collect();
        let moved = Tensor::float(tensor.dtype, tensor.sizes.clone(), moved);
        states.insert(id, moved);
        self.step(&states)["loss"][0].item()
    }
}

fn direction(tensor: &Tensor, name: &str) -> Vec<f64> {
    (0..tensor.len()).map(|i| random::normal(9, random::stream(name), i as u64)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn gradients_agree_with_finite_differences(seed in any::<u64>(), steps in 1usize..24) {
        if let Some(case) = Case::new(seed, steps) {
            prop_assert!(case.error() < 1e-5, "error {}", case.error());
        }
    }

    #[test]
    fn simplified_programs_compute_the_same(seed in any::<u64>(), steps in 1usize..24) {
        if let Some(case) = Case::new(seed, steps) {
            let mut module = case.module.clone();
            let simplify = Pass::from(passes::simplify::Simplify);
            simplify.run(&mut module, &mut PassContext::default()).expect("simplify takes every program");
            ir::verify::verify(&module).expect("simplify makes valid programs");
            let before = case.step(&case.states);
            let after = Case { module, ..case };
            for (name, tensors) in after.step(&after.states) {
                for (new, old) in tensors.iter().zip(&before[&name]) {
                    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-11 * (1.0 + a.abs());
                    prop_assert!(new.floats().iter().zip(old.floats()).all(close), "output {name}");
                }
            }
        }
    }
}

/// Replaces the result of the last backward node that `choose` accepts by `fault(value)`.
fn plant(
    module: &mut Module,
    choose: impl Fn(&Op) -> bool,
    fault: impl Fn(&mut Builder, ValueId) -> ValueId,
) -> Option<()> {
    let backward = |(_, node): &(_, &ir::Node)| node.phase == Phase::Backward && choose(&node.op);
    let (id, result) = module.nodes().filter(backward).map(|(id, node)| (id, node.results[0])).next_back()?;
    let accumulated: Vec<(ir::NodeId, ValueId)> = module
        .nodes()
        .filter(|(_, node)| node.operands.contains(&result))
        .map(|(id, node)| (id, node.results[0]))
        .collect();
    let mut b = Builder::new(module, "fault");
    b.at(At::After(id));
    let wrong = fault(&mut b, result);
    // Each reader is built again with the wrong value.
    for (reader, old) in accumulated {
        let node = b.module().node(reader).clone();
        let operands: Vec<ValueId> =
            node.operands.iter().map(|&v| if v == result { wrong } else { v }).collect();
        let types: Vec<ir::Type> = node.results.iter().map(|&value| b.ty(value).clone()).collect();
        b.at(At::Before(reader));
        let new = b.push_typed(node.op, &operands, &types).expect("the same types fit");
        b.replace(old, new[0]);
        b.remove(reader);
    }
    b.finish();
    Some(())
}

/// Plants a fault in a fixed set of programs. Returns how many had a place for it, and in how many the check found it.
fn found(choose: impl Fn(&Op) -> bool, fault: impl Fn(&mut Builder, ValueId) -> ValueId) -> (usize, usize) {
    let (mut planted, mut seen) = (0, 0);
    for seed in 0..30 {
        let Some(mut case) = Case::new(seed, 12) else { continue };
        assert!(case.error() < 1e-5, "program {seed} is right before the fault");
        if plant(&mut case.module, &choose, &fault).is_some() {
            planted += 1;
            seen += usize::from(case.error() > 1e-4);
        }
    }
    (planted, seen)
}

#[test]
fn a_gradient_with_the_wrong_sign_is_caught_by_finite_differences() {
    let (planted, seen) = found(
        |op| matches!(op, Op::Contract(_)),
        |b, value| b.one(Unary::Neg, &[value]).expect("it is a float"),
    );
    assert!(planted >= 10 && seen * 10 >= planted * 9, "{seen} of {planted}");
}

#[test]
fn a_gradient_with_a_wrong_factor_is_caught_by_finite_differences() {
    let (planted, seen) =
        found(|op| matches!(op, Op::Contract(_)), |b, value| b.build(value * 1.01).expect("it is a float"));
    assert!(planted >= 10 && seen * 10 >= planted * 9, "{seen} of {planted}");
}

#[test]
fn an_addend_that_was_forgotten_is_caught_by_finite_differences() {
    let mut seen = 0;
    let mut planted = 0;
    for seed in 0..60 {
        let Some(mut case) = Case::new(seed, 14) else { continue };
        let sum =
            |(_, node): &(_, &ir::Node)| node.phase == Phase::Backward && node.op == Op::Binary(Binary::Add);
        let Some((result, first)) =
            case.module.nodes().filter(sum).map(|(_, n)| (n.results[0], n.operands[0])).next_back()
        else {
            continue;
        };
        if case.module.ty(result) != case.module.ty(first) {
            continue;
        }
        let mut b = Builder::new(&mut case.module, "fault");
        b.replace(result, first);
        b.finish();
        planted += 1;
        seen += usize::from(case.error() > 1e-4);
    }
    assert!(planted >= 10 && seen * 10 >= planted * 8, "{seen} of {planted}");
}

#[test]
fn a_gradient_that_enters_update_without_a_sum_is_caught_by_the_verifier() {
    let mut case = (0..).find_map(|seed| Case::new(seed, 8)).expect("some program has a parameter");
    let accumulation = |(_, node): &(_, &ir::Node)| matches!(node.op, Op::Accumulate(_));
    let (result, operand) = case
        .module
        .nodes()
        .filter(accumulation)
        .map(|(_, n)| (n.results[0], n.operands[0]))
        .next_back()
        .expect("one");
    let mut b = Builder::new(&mut case.module, "fault");
    b.replace(result, operand);
    b.finish();
    let faults = ir::verify::verify(&case.module).expect_err("a partial gradient is not a gradient");
    assert!(faults.iter().any(|fault| fault.message.contains("accumulate")), "{faults:?}");
}
