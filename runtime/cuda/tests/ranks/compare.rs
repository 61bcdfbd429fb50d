//! Runs a placed program on local ranks, and the same program on one device by the interpreter.

use cpu::ranks::on_processor;
use cuda::host::Order;
use cuda::ranks::stand_in;
use ir::interp::{self, Missing, Mode, StateValues, StepOutputs};
use ir::{Builder, DType, Mesh, Module, Sharding, Tensor, Type, ValueId, random, text};
use program::Microbatches;
use program::Target;
use program::device::{NonFinite, ProgramId};
use program::lower::{LowerOptions, lower};
use ranks::Ranks;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The inputs of one microbatch, by name.
pub(crate) type Microbatch = BTreeMap<String, Tensor>;

/// A program of level placed on a mesh with these parameters and nodes; every value in `outputs` is reported.
pub(crate) fn placed(mesh: &str, parameters: &str, nodes: &str, outputs: &[&str]) -> Module {
    let outputs: Vec<String> = outputs.iter().map(|value| format!("output \"{value}\" = {value}")).collect();
    let text = format!(
        r#"trainyard-ir 1
        module @m placed mesh [{mesh}] {{
          func @train({parameters}) {{
            {nodes}
          }}
          {}
        }}"#,
        outputs.join(" ")
    );
    parse(&text)
}

pub(crate) fn parse(text: &str) -> Module {
    text::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The program on one device, where collectives do nothing.
pub(crate) fn on_one_device(module: &Module) -> Module {
    let mut module = module.clone();
    let results = module.nodes().flat_map(|(_, node)| node.results.clone());
    let inputs = module.inputs.iter().map(|input| input.value);
    let states = module.states.values().map(|state| state.input);
    let values: Vec<ValueId> = results.chain(inputs).chain(states).collect();
    let mut b = Builder::new(&mut module, "test");
    values.into_iter().for_each(|value| b.shard(value, Sharding::default()));
    b.finish();
    module.states.values_mut().for_each(|state| state.ty.sharding = Sharding::default());
    module.mesh = Mesh::default();
    module
}

/// Made-up inputs, others in each microbatch; integers are from 0 to 5.
pub(crate) fn microbatches(module: &Module, count: u64) -> Vec<Microbatch> {
    let tensor = |ty: &Type, stream| {
        let sizes: Vec<usize> = ty.sizes().unwrap().into_iter().map(|size| size as usize).collect();
        let numbers: Vec<f64> =
            (0..sizes.iter().product()).map(|i: usize| random::normal(7, stream, i as u64)).collect();
        if ty.dtype.is_float() {
            Tensor::float(ty.dtype, sizes, numbers).rounded()
        } else {
            let integers = numbers.into_iter().map(|x| (x.abs() * 1e6) as i64 % 6).collect();
            Tensor::int(ty.dtype, sizes, integers)
        }
    };
    let microbatch = |i: u64| {
        let inputs = module.inputs.iter().zip(100 * i..);
        inputs.map(|(input, stream)| (input.name.clone(), tensor(module.ty(input.value), stream))).collect()
    };
    (0..count).map(microbatch).collect()
}

/// States before the first step.
pub(crate) fn initial(module: &Module) -> StateValues {
    let mut states = interp::initial_states(module, 3, Missing::Draw).unwrap();
    states.values_mut().for_each(|tensor| *tensor = tensor.clone().rounded());
    states
}

/// Two steps on ranks, with the states and everything reported after each.
pub(crate) fn on_ranks(
    module: &Module,
    options: &LowerOptions,
    count: u64,
) -> Vec<(StateValues, StepOutputs)> {
    let program = Arc::new(lower(module, options).unwrap_or_else(|error| panic!("{error}")));
    let made = if options.target.is_host() {
        on_processor(vec![program.clone()], Some(2), None, None)
    } else {
        stand_in(vec![program.clone()], Order::default())
    };
    let mut ranks = made.unwrap_or_else(|error| panic!("{error}"));
    let id = ProgramId(0);
    for (index, tensor) in initial(module).values().enumerate() {
        ranks.write_state(id, index, &tensor.to_bytes()).unwrap();
    }
    let bytes = |microbatch: &Microbatch| -> Vec<Vec<u8>> {
        program.inputs.iter().map(|input| microbatch[&input.name].to_bytes()).collect()
    };
    let inputs: Vec<_> = microbatches(module, count).iter().map(bytes).collect();
    let mut one_step = || {
        let outputs = ranks.step(id, &inputs).unwrap_or_else(|error| panic!("{error}"));
        let tensors = |(name, reported): (String, Vec<Vec<u8>>)| {
            let ty = module.ty(module.output(&name).unwrap().value);
            (name, reported.iter().map(|bytes| Tensor::from_bytes(ty, bytes).unwrap()).collect())
        };
        let state = |(index, (id, state)): (usize, (_, &ir::State))| {
            let bytes = ranks.read_state(ProgramId(0), index).unwrap();
            (id, Tensor::from_bytes(&state.ty, &bytes).unwrap())
        };
        (module.states.iter().enumerate().map(state).collect(), outputs.into_iter().map(tensors).collect())
    };
    vec![one_step(), one_step()]
}

/// The first number that is not finite that any rank makes, as it is told, when `x` is the first input: a tensor of four rows.
pub(crate) fn first_non_finite(ranks: &mut Ranks, x: &[f32]) -> Option<String> {
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    let found = ranks.run(vec![(); ranks.count()], |mut rank, ()| {
        rank.write_rows(ProgramId(0), 0, &bytes, 0..4)?;
        rank.device.first_non_finite(ProgramId(0))
    });
    NonFinite::first(found.unwrap_or_else(|error| panic!("{error}"))).map(|found| found.to_string())
}

fn close(given: &Tensor, expected: &Tensor) -> bool {
    // Numbers are sums of at most some hundred terms, each rounded to the type.
    let tolerance = match given.dtype {
        DType::F16 | DType::BF16 => 2e-2,
        DType::F32 => 1e-4,
        _ => 1e-11,
    };
    let (x, y) = (given.numbers(), expected.numbers());
    let is_close = |(x, y): (&f64, &f64)| (x - y).abs() <= tolerance * (1.0 + y.abs());
    given.sizes == expected.sizes && x.iter().zip(&y).all(is_close)
}

thread_local! {
    static TARGET: Cell<Target> = const { Cell::new(cpu::TARGET) };
}

/// Runs tests with stand-ins of GPUs for their ranks.
pub(crate) fn on_stand_ins(tests: &[fn()]) {
    TARGET.set(cuda::TARGET);
    tests.iter().for_each(|test| test());
}

/// Two steps of these microbatches give on ranks what the interpreter gives on one device.
pub(crate) fn same_as_on_one_device(module: &Module) {
    if TARGET.get() == cuda::TARGET {
        // Kernels take long to compile.
        agrees(module, &LowerOptions::of(cuda::TARGET), 2);
        return;
    }
    for (microbatches, count) in [(Microbatches::Many, 2), (Microbatches::One, 1)] {
        let options = LowerOptions { microbatches, ..LowerOptions::of(cpu::TARGET) };
        agrees(module, &options, count);
    }
    agrees(module, &LowerOptions { unfused: true, ..LowerOptions::of(cpu::TARGET) }, 2);
}

fn agrees(module: &Module, options: &LowerOptions, count: u64) {
    let alone = on_one_device(module);
    let mut states = initial(&alone);
    for (given_states, given) in on_ranks(module, options, count) {
        let expected = interp::step(&alone, Mode::Exact, &mut states, &microbatches(&alone, count)).unwrap();
        assert!(given.keys().eq(expected.keys()));
        for (name, expected) in &expected {
            assert_eq!(given[name].len(), expected.len());
            for (given, expected) in given[name].iter().zip(expected) {
                assert!(close(given, expected), "{name}: {given:?}\n{expected:?}");
            }
        }
        for (id, expected) in &states {
            let given = &given_states[id];
            assert!(close(given, expected), "{}: {given:?}\n{expected:?}", module.states[*id].name);
        }
    }
}
