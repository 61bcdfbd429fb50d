//! Whole steps: random programs with their gradients, sums over microbatches, and states updated in place.

use crate::compare::{Microbatch, assert_agrees, bytes, device, states};
use ir::interp::{self, Missing};
use ir::ops::NodeRef;
use ir::ops::optimizer::{Adagrad, Adam, Lion, Sgd};
use ir::ops::step::Accumulate;
use ir::{At, Builder, DType, Initializer, Module, Operator, Phase, Role, StateId, Type, ValueId, testing};
use program::device::{ProgramId, step};
use program::lower::{LowerOptions, lower};
use program::{Microbatches, UpdateTime};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A random program with the gradient of its loss and an optimizer for every state that has one.
pub(crate) fn training_program(seed: u64, dtype: DType, adam: bool) -> Module {
    let mut module = testing::program(seed, dtype, 16);
    let loss = module.output("loss.sum").expect("every random program has one").value;
    let parameters: Vec<(StateId, ValueId)> =
        module.states.iter().map(|(id, state)| (id, state.input)).collect();
    let order = module.order().to_vec();
    let mut b = Builder::new(&mut module, "test");
    b.at(At::End(Phase::Backward));
    let mut gradients = BTreeMap::from([(loss, b.scalar(dtype, 0.5).expect("a scalar"))]);
    for id in order.into_iter().rev() {
        let node = b.module().node(id).clone();
        let d: Vec<Option<ValueId>> =
            node.results.iter().map(|result| gradients.get(result).copied()).collect();
        if d.iter().all(Option::is_none) {
            continue;
        }
        b.origin(node.origin.clone());
        let refs = NodeRef { operands: &node.operands, results: &node.results };
        let found = node.op.gradient(&mut b, refs, &d).expect("random programs are differentiable");
        for (&operand, gradient) in node.operands.iter().zip(found) {
            let Some(gradient) = gradient else { continue };
            let sum = gradients.get(&operand).map_or(Ok(gradient), |&sum| b.build(sum + gradient));
            gradients.insert(operand, sum.expect("gradients of one value have one type"));
        }
    }
    b.at(At::End(Phase::Update));
    let scalars = [0.05, 0.01, 1.0].map(|value| b.scalar(DType::F64, value).expect("a scalar"));
    for (id, parameter) in parameters {
        let Some(&gradient) = gradients.get(&parameter) else { continue };
        let sum = b.one(Accumulate, &[gradient]).expect("gradients are floats");
        update(&mut b, id, parameter, sum, scalars, adam);
    }
    b.finish();
    module
}

/// The first seed from this one on whose program trains at least two parameters.
pub(crate) fn seed_with_parameters(mut seed: u64) -> u64 {
    while testing::program(seed, DType::F64, 16).states.len() < 2 {
        seed += 1;
    }
    seed
}

fn update(
    b: &mut Builder,
    id: StateId,
    parameter: ValueId,
    gradient: ValueId,
    scalars: [ValueId; 3],
    adam: bool,
) {
    let ty = b.ty(parameter).clone();
    let name = b.module().states[id].name.clone();
    let mut moment = |name: String| {
        let id = b.tables().add_state(name, ty.clone(), Role::Optimizer, Initializer::Zeros);
        (id, b.module().states[id].input)
    };
    let (m, v) = (moment(format!("m({name})")), moment(format!("v({name})")));
    let [rate, decay, count] = scalars;
    let results = if adam {
        let op = Adam { beta1: 0.9.into(), beta2: 0.99.into(), eps: 1e-6.into(), decoupled: true };
        b.push(op, &[parameter, gradient, m.1, v.1, rate, decay, count])
    } else {
        b.push(Sgd { momentum: 0.9.into(), nesterov: true }, &[parameter, gradient, m.1, rate, decay])
    };
    for (id, result) in [id, m.0, v.0].into_iter().zip(results.expect("the states have the parameter's type"))
    {
        b.tables().states[id].output = Some(result);
    }
}

fn steps(module: &Module, seed: u64, count: u64, microbatches: u64) -> Vec<Vec<Microbatch>> {
    let batch = |step: u64, index: u64| testing::microbatch(module, seed, step * microbatches + index);
    (0..count).map(|step| (0..microbatches).map(|index| batch(step, index)).collect()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn steps_of_several_microbatches_agree_with_the_interpreter(seed in any::<u64>(), adam in any::<bool>(), unfused in any::<bool>()) {
        let module = training_program(seed, DType::F64, adam);
        let options = LowerOptions { unfused, ..LowerOptions::of(cpu::TARGET) };
        assert_agrees(&module, &options, &steps(&module, seed, 3, 3), 1e-8);
    }

    #[test]
    fn steps_of_one_microbatch_agree_with_the_interpreter(seed in any::<u64>(), adam in any::<bool>()) {
        let module = training_program(seed, DType::F64, adam);
        let options = LowerOptions { microbatches: Microbatches::One, ..LowerOptions::of(cpu::TARGET) };
        assert_agrees(&module, &options, &steps(&module, seed, 3, 1), 1e-8);
    }

    #[test]
    fn early_updates_change_no_bit(seed in any::<u64>(), adam in any::<bool>(), unfused in any::<bool>()) {
        let module = training_program(seed, DType::F32, adam);
        let initial = interp::initial_states(&module, 1, Missing::Draw).expect("states can be drawn");
        let trained = [UpdateTime::Late, UpdateTime::Early].map(|update| {
            let microbatches = Microbatches::One;
            let options = LowerOptions { microbatches, update, unfused, ..LowerOptions::of(cpu::TARGET) };
            let program = lower(&module, &options).expect("it lowers");
            let mut cpu = device(program.clone(), &initial, 2);
            let outputs = steps(&module, seed, 3, 1).into_iter().map(|microbatches| {
                let inputs: Vec<_> = microbatches.iter().map(|microbatch| bytes(&program, microbatch)).collect();
                step(&mut cpu, ProgramId(0), &inputs).expect("the step runs")
            });
            (outputs.collect::<Vec<_>>(), states(&cpu, &module))
        });
        prop_assert!(trained[0] == trained[1]);
    }

    #[test]
    fn the_number_of_threads_does_not_show(seed in any::<u64>()) {
        let module = training_program(seed, DType::F32, true);
        let initial = interp::initial_states(&module, 1, Missing::Draw).expect("states can be drawn");
        let trained = [1, 2, 5].map(|threads| {
            let program = lower(&module, &LowerOptions::of(cpu::TARGET)).expect("it lowers");
            let mut cpu = device(program.clone(), &initial, threads);
            for microbatches in steps(&module, seed, 2, 2) {
                let inputs: Vec<_> = microbatches.iter().map(|microbatch| bytes(&program, microbatch)).collect();
                step(&mut cpu, ProgramId(0), &inputs).expect("the step runs");
            }
            states(&cpu, &module)
        });
        prop_assert!(trained[0] == trained[1] && trained[0] == trained[2]);
    }
}

/// What is added up may be looked at through views first: by a kernel that adds, by one that does not, and with one
/// view that strides cannot say.
#[test]
fn sums_are_made_before_the_views_of_their_addends() {
    let mut module = Module::new("views");
    let x = module.add_input("x", Type::of(DType::F64, &[2, 3, 4]), true);
    let mut b = Builder::new(&mut module, "test");
    let reduced = b.sum(x, &[0]).unwrap();
    let reduced = b.reshape(reduced, [1, 12].map(ir::Dim::known)).unwrap();
    let exp = b.one(ir::ops::elementwise::Unary::Exp, &[x]).unwrap();
    let turned = b.transpose(exp, &[2, 0, 1]).unwrap();
    let turned = b.reshape(turned, [8, 3].map(ir::Dim::known)).unwrap();
    let flat = b.transpose(x, &[1, 0, 2]).unwrap();
    let product = b.one(ir::ops::contract::Contract::new("abc,abd->cd"), &[flat, flat]).unwrap();
    let product = b.transpose(product, &[1, 0]).unwrap();
    let product = b.reshape(product, [16].map(ir::Dim::known)).unwrap();
    b.at(At::End(Phase::Update));
    let sums = [reduced, turned, product].map(|value| b.one(Accumulate, &[value]).unwrap());
    b.finish();
    for (i, sum) in sums.into_iter().enumerate() {
        module.add_output(format!("sum.{i}"), sum);
    }
    for (microbatches, count) in [(Microbatches::Many, 3), (Microbatches::One, 1)] {
        let options = LowerOptions { microbatches, ..LowerOptions::of(cpu::TARGET) };
        assert_agrees(&module, &options, &steps(&module, 4, 2, count), 1e-12);
    }
}

/// Two states that exchange their values, one that is read after it is written, one that goes from microbatch to
/// microbatch: none may be overwritten too early.
#[test]
fn states_are_written_when_nobody_reads_the_old_value_any_more() {
    let mut module = Module::new("states");
    let ty = Type::of(DType::F64, &[4]);
    let mut state = |name: &str, value: f64| {
        let id = module.add_state(name, ty.clone(), Role::Buffer, Initializer::Splat(value.to_bits()));
        (id, module.states[id].input)
    };
    let [(a, old_a), (b, old_b), (c, old_c), (d, old_d)] =
        [("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0)].map(|(n, x)| state(n, x));
    let x = module.add_input("x", ty.clone(), true);
    let mut builder = Builder::new(&mut module, "test");
    let carried = builder.build(old_d + x).unwrap();
    let seen = builder.build(carried * old_a).unwrap();
    builder.at(At::End(Phase::Update));
    let new_c = builder.build(old_c + old_a).unwrap();
    let late = builder.build(old_c * new_c).unwrap();
    builder.finish();
    for (id, output) in [(a, old_b), (b, old_a), (c, new_c), (d, carried)] {
        module.states[id].output = Some(output);
    }
    module.add_output("seen", seen);
    module.add_output("late", late);
    module.add_output("old a", old_a);
    let microbatch = |step: u64| {
        let tensor = ir::Tensor::float(DType::F64, vec![4], (0..4).map(|i| (step * 4 + i) as f64).collect());
        Microbatch::from([("x".to_string(), tensor)])
    };
    let steps: Vec<Vec<Microbatch>> =
        (0..3).map(|step| vec![microbatch(2 * step), microbatch(2 * step + 1)]).collect();
    for unfused in [false, true] {
        assert_agrees(&module, &LowerOptions { unfused, ..LowerOptions::of(cpu::TARGET) }, &steps, 0.0);
    }
}

/// As in PyTorch, which leaves the decay away where it is zero: zero times infinity would be NaN.
#[test]
fn an_infinite_parameter_that_does_not_decay_stays_infinite() {
    let adam = |decoupled| Adam { beta1: 0.9.into(), beta2: 0.99.into(), eps: 1e-6.into(), decoupled };
    let rules: [ir::Op; 5] = [
        adam(true).into(),
        adam(false).into(),
        Sgd { momentum: 0.9.into(), nesterov: false }.into(),
        Adagrad { eps: 1e-6.into() }.into(),
        Lion { beta1: 0.9.into(), beta2: 0.99.into() }.into(),
    ];
    for rule in rules {
        let mut module = Module::new("masked");
        let ty = Type::of(DType::F32, &[40]);
        let initializer = Initializer::Splat(f64::NEG_INFINITY.to_bits());
        let id = module.add_state("w", ty.clone(), Role::Parameter, initializer);
        let parameter = module.states[id].input;
        let mut b = Builder::new(&mut module, "test");
        b.at(At::End(Phase::Update));
        let splat = |b: &mut Builder, value| b.splat(ty.clone(), value).expect("it is well-typed");
        let scalar = |b: &mut Builder, value| b.scalar(DType::F64, value).expect("a scalar");
        let moments = if matches!(rule, ir::Op::Adam(_)) { 2 } else { 1 };
        let mut operands = vec![parameter, splat(&mut b, 0.5)];
        operands.extend((0..moments).map(|_| splat(&mut b, 0.25)));
        operands.extend([0.1, 0.0].map(|value| scalar(&mut b, value)));
        if moments == 2 {
            operands.push(scalar(&mut b, 1.0));
        }
        let results = b.push(rule.clone(), &operands).expect("it is well-typed");
        b.finish();
        module.states[id].output = Some(results[0]);
        let program = lower(&module, &LowerOptions::of(cpu::TARGET)).expect("it lowers");
        let mut updated = interp::initial_states(&module, 0, Missing::Draw).expect("states can be drawn");
        let mut cpu = device(program, &updated, 1);
        step(&mut cpu, ProgramId(0), &[vec![]]).expect("the step runs");
        let on_cpu = states(&cpu, &module);
        interp::step(&module, interp::Mode::Exact, &mut updated, &[BTreeMap::new()]).expect("the step runs");
        for (place, states) in [("interpreter", updated), ("processor", on_cpu)] {
            let is_kept = states[&id].floats().iter().all(|&x| x == f64::NEG_INFINITY);
            assert!(is_kept, "{}, {place}: {:?}", rule.name(), states[&id]);
        }
    }
}
