//! Runs a module on a device and by the interpreter, and asserts that they agree.

use cpu::Cpu;
use ir::interp::{Mode, StateValues, StepOutputs};
use ir::{DType, Module};
use program::Program;
use program::check::differences;
pub(crate) use program::check::{Microbatch, bytes, unit};
use program::device::{Device, ProgramId};
use program::lower::LowerOptions;
use std::sync::Arc;

/// A program on the device, with these states.
pub(crate) fn device(program: Program, states: &StateValues, threads: usize) -> Cpu {
    let mut cpu = Cpu::new(vec![Arc::new(program)], Some(threads)).expect("the arena fits");
    for (index, tensor) in states.values().enumerate() {
        cpu.write_state(ProgramId(0), index, &tensor.to_bytes()).expect("states fit");
    }
    cpu
}

/// The states of a device as tensors.
pub(crate) fn states(device: &dyn Device, module: &Module) -> StateValues {
    program::check::states(device, module).expect("the states are there")
}

/// One step on a device.
pub(crate) fn step_on(device: &mut dyn Device, module: &Module, microbatches: &[Microbatch]) -> StepOutputs {
    program::check::step_on(device, module, microbatches).expect("the step runs")
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

/// A processor with two threads.
pub(crate) fn cpu(program: Program) -> Box<dyn Device> {
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
    let make = |program| Ok(make(program));
    let found = differences(&make, mode, module, options, steps, tolerance);
    let found = found.unwrap_or_else(|error| panic!("{error}"));
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{}", lines.join("\n"));
}
