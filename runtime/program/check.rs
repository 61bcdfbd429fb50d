//! Compares a device with the interpreter: both run the same module on the same inputs.

use crate::Program;
use crate::device::{Device, DeviceError, ProgramId, step};
use crate::lower::{LowerOptions, lower};
use ir::interp::{self, Missing, Mode, StateValues, StepOutputs};
use ir::ops::OperandRole;
use ir::ops::optimizer::quantization::distance;
use ir::tensor::Elements;
use ir::{DType, Diagnostic, Module, Node, StateId, Tensor, ValueId};
use std::collections::BTreeMap;
use std::fmt;

/// The inputs of one microbatch, by name.
pub type Microbatch = BTreeMap<String, Tensor>;

/// A function that makes a device with a program.
pub type Make<'a> = &'a dyn Fn(Program) -> Result<Box<dyn Device>, DeviceError>;

/// An output or a state that differs from the interpreter's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The step, from 0.
    pub step: usize,
    /// The output or the state.
    pub name: String,
    /// The first element that differs, or the type, with the expected one.
    pub what: String,
}

/// `` step 0, `result.0`: element 3 is 1.5, should be 1 ``
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}, `{}`: {}", self.step, self.name, self.what)
    }
}

/// The reason why a module could not be checked.
#[derive(Debug, thiserror::Error)]
pub enum Unchecked {
    /// The module cannot be lowered, or the interpreter refuses it.
    #[error(transparent)]
    Module(#[from] Diagnostic),
    /// The device for the program cannot be made.
    #[error(transparent)]
    Device(DeviceError),
    /// The device failed while it ran.
    #[error(transparent)]
    Run(DeviceError),
}

/// Returns the tolerance of a type, relative to the largest element: the rounding error of sums of a few hundred terms or, for a type that
/// is only stored, the distance from 1 to the next number.
pub fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        DType::F32 => 4e-6,
        _ => 1e-11,
    }
}

/// Describes how two tensors differ: in type, or in an element. Floats differ if they are apart by more than the tolerance times the
/// largest expected magnitude (at least 1); other elements differ if they are not equal.
pub fn difference(given: &Tensor, expected: &Tensor, tolerance: f64) -> Option<String> {
    if (given.dtype, &given.sizes) != (expected.dtype, &expected.sizes) {
        return Some(format!("it is {}, and it should be {}", given.ty(), expected.ty()));
    }
    let (Elements::Float(given), Elements::Float(expected)) = (&given.elements, &expected.elements) else {
        let same = given.elements == expected.elements;
        return (!same)
            .then(|| format!("it is {:?}, and it should be {:?}", given.elements, expected.elements));
    };
    let finite = expected.iter().filter(|x| x.is_finite());
    let scale = finite.fold(1.0, |largest: f64, x| largest.max(x.abs()));
    let differs = |(_, (given, expected)): &(usize, (&f64, &f64))| {
        let same = given == expected || (given.is_nan() && expected.is_nan());
        let close = (*given - *expected).abs() <= tolerance * scale;
        !same && !close
    };
    let (i, (given, expected)) = given.iter().zip(expected).enumerate().find(differs)?;
    Some(format!("element {i} is {given}, and it should be {expected}"))
}

/// Returns whether a value has codes of optimizer moments in 8 bits.
fn is_codes(module: &Module, value: ValueId) -> bool {
    let has_codes = |node: &Node| node.roles().contains(&OperandRole::Codes);
    module.ty(value).dtype == DType::U8 && module.producer(value).is_some_and(has_codes)
}

/// Describes how codes of moments in 8 bits differ, if they are apart by more than one step. After other roundings, a number halfway
/// between the values of two codes may be rounded to either code.
fn difference_of_codes(given: &Tensor, expected: &Tensor) -> Option<String> {
    let (Elements::Int(codes), Elements::Int(expected_codes)) = (&given.elements, &expected.elements) else {
        return difference(given, expected, 0.0);
    };
    let apart = |(given, expected): (&i64, &i64)| distance(*given, *expected) > 1;
    let at = codes.iter().zip(expected_codes).position(apart);
    match at {
        Some(i) => Some(format!("code {i} is {}, and it should be {}", codes[i], expected_codes[i])),
        None if given.sizes == expected.sizes => None,
        None => difference(given, expected, 0.0),
    }
}

/// Returns the bytes of every input, in the program's order.
pub fn bytes(program: &Program, microbatch: &Microbatch) -> Vec<Vec<u8>> {
    program.inputs.iter().map(|input| microbatch[&input.name].to_bytes()).collect()
}

/// Reads the states of a device's only program as tensors.
///
/// # Errors
/// Errors of the device.
pub fn states(device: &dyn Device, module: &Module) -> Result<StateValues, DeviceError> {
    let tensor = |(index, (id, state)): (usize, (StateId, &ir::State))| {
        let bytes = device.read_state(ProgramId(0), index)?;
        Ok((id, Tensor::from_bytes(&state.ty, &bytes).expect("a device gives whole tensors")))
    };
    module.states.iter().enumerate().map(tensor).collect()
}

/// Runs one step of a device's only program.
///
/// # Errors
/// Errors of the device.
pub fn step_on(
    device: &mut dyn Device,
    module: &Module,
    microbatches: &[Microbatch],
) -> Result<StepOutputs, DeviceError> {
    let program = device.program(ProgramId(0)).clone();
    let inputs: Vec<Vec<Vec<u8>>> =
        microbatches.iter().map(|microbatch| bytes(&program, microbatch)).collect();
    let outputs = step(device, ProgramId(0), &inputs)?;
    let tensor = |name: &str, bytes: &Vec<u8>| {
        let ty = module.ty(module.output(name).expect("the module's output").value);
        Tensor::from_bytes(ty, bytes).expect("a device gives whole tensors")
    };
    let all = |(name, reported): (String, Vec<Vec<u8>>)| {
        let tensors = reported.iter().map(|bytes| tensor(&name, bytes)).collect();
        (name, tensors)
    };
    Ok(outputs.into_iter().map(all).collect())
}

/// Runs some steps on a new device, and by the interpreter in this mode, and returns the outputs and states that differ. `tolerance` gives
/// the tolerance of each element type.
///
/// # Errors
/// A program that cannot be lowered, interpreted, or run.
pub fn differences(
    make: Make,
    mode: Mode,
    module: &Module,
    options: &LowerOptions,
    steps: &[Vec<Microbatch>],
    tolerance: impl Fn(DType) -> f64,
) -> Result<Vec<Difference>, Unchecked> {
    differences_of(make, mode, module, lower(module, options)?, steps, tolerance)
}

/// Does the same as [`differences`], with a program that was lowered from the module after passes had rewritten it.
///
/// # Errors
/// A program that cannot be interpreted or run.
pub fn differences_of(
    make: Make,
    mode: Mode,
    module: &Module,
    program: Program,
    steps: &[Vec<Microbatch>],
    tolerance: impl Fn(DType) -> f64,
) -> Result<Vec<Difference>, Unchecked> {
    let mut expected_states = interp::initial_states(module, 1, Missing::Draw)?;
    expected_states.values_mut().for_each(|tensor| *tensor = tensor.clone().rounded());
    let mut device = make(program).map_err(Unchecked::Device)?;
    for (index, tensor) in expected_states.values().enumerate() {
        device.write_state(ProgramId(0), index, &tensor.to_bytes()).map_err(Unchecked::Run)?;
    }
    let mut found = Vec::new();
    for (step, microbatches) in steps.iter().enumerate() {
        let expected = interp::step(module, mode, &mut expected_states, microbatches)?;
        let given = step_on(&mut *device, module, microbatches).map_err(Unchecked::Run)?;
        let mut compare = |name: &str, value: Option<ValueId>, given: &Tensor, expected: &Tensor| {
            let what = if value.is_some_and(|value| is_codes(module, value)) {
                difference_of_codes(given, expected)
            } else {
                difference(given, expected, tolerance(expected.dtype))
            };
            found.extend(what.map(|what| Difference { step, name: name.to_owned(), what }));
        };
        for (name, tensors) in &expected {
            assert_eq!(tensors.len(), given[name].len(), "as many reports of `{name}` as there should be");
            let value = module.output(name).map(|output| output.value);
            let pairs = given[name].iter().zip(tensors);
            pairs.for_each(|(given, expected)| compare(name, value, given, expected));
        }
        for (id, given) in states(&*device, module).map_err(Unchecked::Run)? {
            let state = &module.states[id];
            compare(&state.name, state.output, &given, &expected_states[&id]);
        }
    }
    Ok(found)
}
