//! Runs a module on a device and by the interpreter, and holds one against the other.

use ir::interp::{self, Missing, Mode, StateValues, StepOutputs};
use ir::tensor::Elements;
use ir::{DType, Module, StateId, Tensor};
use runtime::cpu::Cpu;
use runtime::device::{Device, ProgramId, step};
use runtime::lower::{LowerOptions, lower};
use runtime::program::Program;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The inputs of one microbatch, by name.
pub(crate) type Microbatch = BTreeMap<String, Tensor>;

/// A program on the device, with these states.
pub(crate) fn device(program: Program, states: &StateValues, threads: usize) -> Cpu {
    let mut cpu = Cpu::new(vec![Arc::new(program)], Some(threads)).expect("the arena fits");
    for (index, tensor) in states.values().enumerate() {
        cpu.write_state(ProgramId(0), index, &tensor.to_bytes()).expect("states fit");
    }
    cpu
}

/// The bytes of every input, in the program's order.
pub(crate) fn bytes(program: &Program, microbatch: &Microbatch) -> Vec<Vec<u8>> {
    program.inputs.iter().map(|input| microbatch[&input.name].to_bytes()).collect()
}

/// The states of a device as tensors.
pub(crate) fn states(device: &dyn Device, module: &Module) -> StateValues {
    let tensor = |(index, (id, state)): (usize, (StateId, &ir::State))| {
        let bytes = device.read_state(ProgramId(0), index).expect("the state is there");
        (id, Tensor::from_bytes(&state.ty, &bytes).expect("whole tensors"))
    };
    module.states.iter().enumerate().map(tensor).collect()
}

/// One step on a device.
pub(crate) fn step_on(device: &mut dyn Device, module: &Module, microbatches: &[Microbatch]) -> StepOutputs {
    let program = device.program(ProgramId(0)).clone();
    let inputs: Vec<Vec<Vec<u8>>> =
        microbatches.iter().map(|microbatch| bytes(&program, microbatch)).collect();
    let outputs = step(device, ProgramId(0), &inputs).expect("the step runs");
    let tensor = |name: &str, bytes: &Vec<u8>| {
        let ty = module.ty(module.output(name).expect("the module's output").value);
        Tensor::from_bytes(ty, bytes).expect("whole tensors")
    };
    let all = |(name, reported): (String, Vec<Vec<u8>>)| {
        let tensors = reported.iter().map(|bytes| tensor(&name, bytes)).collect();
        (name, tensors)
    };
    outputs.into_iter().map(all).collect()
}

/// Runs `steps` steps both ways, and asserts that outputs and states agree within a tolerance relative to the
/// largest element of each tensor, or 1.
pub(crate) fn assert_agrees(
    module: &Module,
    options: &LowerOptions,
    steps: &[Vec<Microbatch>],
    tolerance: f64,
) {
    assert_agrees_in(Mode::Exact, module, options, steps, |_| tolerance);
}

/// As [`assert_agrees`], with the interpreter in this mode, and a tolerance for each element type.
pub(crate) fn assert_agrees_in(
    mode: Mode,
    module: &Module,
    options: &LowerOptions,
    steps: &[Vec<Microbatch>],
    tolerance: impl Fn(DType) -> f64,
) {
    assert_agrees_on(&cpu, mode, module, options, steps, tolerance);
}

/// What makes a device with a program.
pub(crate) type Make<'a> = &'a dyn Fn(Program) -> Box<dyn Device>;

fn cpu(program: Program) -> Box<dyn Device> {
    Box::new(Cpu::new(vec![Arc::new(program)], Some(2)).expect("the arena fits"))
}

/// As [`assert_agrees_in`], on a device that is made.
pub(crate) fn assert_agrees_on(
    make: Make,
    mode: Mode,
    module: &Module,
    options: &LowerOptions,
    steps: &[Vec<Microbatch>],
    tolerance: impl Fn(DType) -> f64,
) {
    let program = lower(module, options).unwrap_or_else(|error| panic!("{error}"));
    let mut expected_states = interp::initial_states(module, 1, Missing::Draw).expect("states can be drawn");
    expected_states.values_mut().for_each(|tensor| *tensor = tensor.clone().rounded());
    let mut device = make(program);
    for (index, tensor) in expected_states.values().enumerate() {
        device.write_state(ProgramId(0), index, &tensor.to_bytes()).expect("states fit");
    }
    for (index, microbatches) in steps.iter().enumerate() {
        let expected = interp::step(module, mode, &mut expected_states, microbatches);
        let expected = expected.unwrap_or_else(|error| panic!("{error}"));
        let given = step_on(&mut *device, module, microbatches);
        for (name, tensors) in &expected {
            let pairs = tensors.iter().zip(&given[name]);
            pairs.for_each(|(expected, given)| {
                let tolerance = tolerance(expected.dtype);
                assert_close(&format!("step {index}, output {name}"), given, expected, tolerance)
            });
            assert_eq!(tensors.len(), given[name].len());
        }
        for (id, given) in states(&*device, module) {
            let what = format!("step {index}, state {}", module.states[id].name);
            assert_close(&what, &given, &expected_states[&id], tolerance(given.dtype));
        }
    }
}

/// How far a number of a type may be off, relative to the largest: what sums of a few hundred terms leave, or, of a
/// type that is storage alone, the distance from 1 to the next number.
pub(crate) fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        DType::F32 => 4e-6,
        _ => 1e-11,
    }
}

/// Asserts that two tensors agree: floats within a tolerance, everything else exactly.
pub(crate) fn assert_close(what: &str, given: &Tensor, expected: &Tensor, tolerance: f64) {
    assert_eq!((given.dtype, &given.sizes), (expected.dtype, &expected.sizes), "{what}");
    let (Elements::Float(given), Elements::Float(expected)) = (&given.elements, &expected.elements) else {
        assert_eq!(given.elements, expected.elements, "{what}");
        return;
    };
    let finite = expected.iter().filter(|x| x.is_finite());
    let scale = finite.fold(1.0, |largest: f64, x| largest.max(x.abs()));
    for (i, (given, expected)) in given.iter().zip(expected).enumerate() {
        let same = given == expected || (given.is_nan() && expected.is_nan());
        let close = (given - expected).abs() <= tolerance * scale;
        assert!(same || close, "{what}: element {i} is {given}, should be {expected}");
    }
}
