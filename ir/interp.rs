//! The interpreter: the meaning of a program. Every pass and every backend is checked against it.
//!
//! One call runs one step: `prepare`, then `forward` and `backward` for each microbatch, then `update`. States are read as they
//! were when the step began, and written when it ends. The exceptions are buffers and counters that a microbatch phase writes:
//! they are carried from microbatch to microbatch.
//!
//! A program for several devices runs on as many simulated ranks. All ranks run a node before any rank runs the next one. States,
//! inputs and outputs are global: they are split when they enter and joined when they leave.

mod collective;
mod held;
mod memory;
mod ranks;
mod run;

use crate::data::Data;
use crate::random;
use crate::{DType, Diagnostic, Initializer, Module, Op, State, StateId, Tensor};
use run::StepInterpreter;
use std::collections::BTreeMap;

pub use memory::{LargestValue, StepMemory, bytes_of, memory};

/// The precision in which numbers are kept between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Every float as f64; casts between float types do nothing. Used to compare programs for equality.
    Exact,
    /// Every float rounded to its value's element type. Used to compare precision.
    Typed,
}

/// The value of every state of a module.
pub type StateValues = BTreeMap<StateId, Tensor>;

/// The treatment of a state whose bytes did not come with the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Return an error that names the missing states.
    Refuse,
    /// Draw the values from the seed: normal, with deviation 0.02.
    Draw,
}

/// The outputs of a step: for each output one tensor per microbatch, or a single tensor if it belongs to `prepare` or `update`.
pub type StepOutputs = BTreeMap<String, Vec<Tensor>>;

/// Returns the values of all states before step 0.
pub fn initial_states(module: &Module, seed: u64, missing: Missing) -> Result<StateValues, Diagnostic> {
    initial_states_but(module, seed, missing, |_| None)
}

/// Returns the values of all states before step 0. States for which `given` has a value take that value.
pub fn initial_states_but(
    module: &Module,
    seed: u64,
    missing: Missing,
    given: impl Fn(&State) -> Option<Tensor>,
) -> Result<StateValues, Diagnostic> {
    let mut values = StateValues::new();
    for (id, state) in module.states.iter() {
        let mut tensor = match given(state) {
            Some(tensor) => tensor,
            None => initial_value(module, id, seed, missing, &values)?,
        };
        tensor.dtype = state.ty.dtype;
        values.insert(id, tensor);
    }
    Ok(values)
}

/// Returns the value of a state before step 0. `earlier` has the values of the states that are defined before it.
fn initial_value(
    module: &Module,
    id: StateId,
    seed: u64,
    missing: Missing,
    earlier: &StateValues,
) -> Result<Tensor, Diagnostic> {
    let state = &module.states[id];
    let unbound = || Diagnostic::new(format!("state `{}` has unbound dims: {}", state.name, state.ty));
    let (padding, sizes) = crate::view::padding(&state.view, &state.ty.sizes().ok_or_else(unbound)?);
    let sizes: Vec<usize> = sizes.into_iter().map(|size| size as usize).collect();
    let padded = |tensor: Tensor| {
        let misfit = || Diagnostic::new(format!("the padding of state `{}` does not fit", state.name));
        crate::view::apply(padding, &tensor).ok_or_else(misfit)
    };
    let splat = |value: f64| padded(Tensor::splat(state.ty.dtype, sizes.clone(), value));
    let draw = |std: f64| {
        let stream = random::stream(&state.name);
        let normal = |i: usize| std * random::normal(seed, stream, i as u64);
        padded(Tensor::float(DType::F64, sizes.clone(), (0..sizes.iter().product()).map(normal).collect()))
    };
    Ok(match state.initializer {
        Initializer::Zeros => splat(0.0)?,
        Initializer::Splat(bits) | Initializer::Fill { value: bits, .. } => splat(f64::from_bits(bits))?,
        Initializer::Normal { std, .. } => draw(f64::from_bits(std))?,
        Initializer::CopyOf(other) => earlier.get(&other).cloned().ok_or_else(|| {
            Diagnostic::new(format!("state `{}` copies a state that is defined later", state.name))
        })?,
        Initializer::Data(data) | Initializer::Noisy { data, .. } => match file_tensor(&module.data[data]) {
            Some(tensor) => {
                let misfit = || {
                    Diagnostic::new(format!(
                        "the view of state `{}` does not fit {}",
                        state.name,
                        tensor.ty()
                    ))
                };
                let tensor = crate::view::apply(&state.view, &tensor).ok_or_else(misfit)?;
                match state.initializer {
                    Initializer::Noisy { std, .. } => added(&tensor, &draw(f64::from_bits(std))?),
                    _ => tensor,
                }
            }
            None if missing == Missing::Draw && state.ty.dtype.is_float() => draw(0.02)?,
            None => {
                return Err(Diagnostic::new(format!(
                    "the weights of `{}` are missing",
                    module.data[data].name
                ))
                .note("give them with --weights FILE.safetensors, or start from scratch with --init"));
            }
        },
    })
}

/// Returns the sum of two float tensors of equal sizes, in the type of the first.
fn added(x: &Tensor, y: &Tensor) -> Tensor {
    let sum = x.floats().iter().zip(y.floats()).map(|(x, y)| x + y).collect();
    Tensor::float(x.dtype, x.sizes.clone(), sum)
}

/// Returns the tensor of a row of the data table, if its bytes are loaded and complete.
pub fn file_tensor(data: &Data) -> Option<Tensor> {
    Tensor::from_bytes(&data.ty, data.bytes()?)
}

/// The largest number of ranks that are simulated.
pub const MOST_RANKS: u64 = 1024;

/// Runs one step: reads and writes `states`, returns the outputs. The module must be one that the verifier accepts.
///
/// `microbatches` has, for each microbatch, a tensor for every input. Inputs, states and outputs are global, whatever the mesh.
/// Errors: a missing input or an input of another type; unbound dims; constants whose bytes are missing; ranks that disagree on a
/// value that they should all hold, which is a fault of the program. After an error the states are unchanged.
pub fn step(
    module: &Module,
    mode: Mode,
    states: &mut StateValues,
    microbatches: &[BTreeMap<String, Tensor>],
) -> Result<StepOutputs, Diagnostic> {
    check(module, states, microbatches)?;
    StepInterpreter::new(module, mode, microbatches.len()).step(states, microbatches)
}

/// Checks everything that could make a step fail, before it starts.
fn check(
    module: &Module,
    states: &StateValues,
    microbatches: &[BTreeMap<String, Tensor>],
) -> Result<(), Diagnostic> {
    for (id, state) in module.states.iter() {
        if states.get(&id).is_none_or(|tensor| !tensor.ty().same_shape(&state.ty)) {
            return Err(Diagnostic::new(format!(
                "state `{}` needs a value of type {}",
                state.name, state.ty
            )));
        }
    }
    for input in &module.inputs {
        let ty = module.ty(input.value);
        for microbatch in microbatches {
            match microbatch.get(&input.name) {
                Some(tensor) if tensor.ty().same_shape(ty) => {}
                Some(tensor) => {
                    let message =
                        format!("input `{}` is {}, and the program takes {ty}", input.name, tensor.ty());
                    return Err(Diagnostic::new(message));
                }
                None => return Err(Diagnostic::new(format!("input `{}` is missing", input.name))),
            }
        }
    }
    check_mesh(module)?;
    for (_, node) in module.nodes() {
        if let Some(ty) = node.results.iter().map(|&value| module.ty(value)).find(|ty| ty.numel().is_none()) {
            let message = format!("a result of `{}` has unbound dims: {ty}", node.op.name());
            return Err(Diagnostic::new(message)
                .at(node.origin.to_string())
                .note("bind the dims with --bind NAME=SIZE"));
        }
        if let Op::Constant(constant) = &node.op
            && file_tensor(&module.data[constant.data]).is_none()
        {
            let name = &module.data[constant.data].name;
            return Err(Diagnostic::new(format!("the bytes of constant `{name}` are missing")));
        }
    }
    Ok(())
}

/// Checks that the mesh can be simulated, and that all values divide over it.
fn check_mesh(module: &Module) -> Result<(), Diagnostic> {
    let (mesh, sizes) = (&module.mesh, module.mesh.axes.values().map(|axis| axis.size));
    let count = sizes.fold(1, u64::saturating_mul);
    if count > MOST_RANKS {
        return Err(Diagnostic::new(format!(
            "the mesh {mesh} has {count} devices, and at most {MOST_RANKS} ranks can be simulated"
        )));
    }
    let states = module.states.values().map(|state| state.input);
    let inputs = module.inputs.iter().map(|input| input.value);
    for value in states.chain(inputs) {
        if !mesh.size(module.ty(value).sharding.partial_axes()).eq(&1) {
            let ty = module.ty(value);
            return Err(Diagnostic::new(format!(
                "an input or state of type {ty} cannot be partial: it has no addends"
            )));
        }
    }
    let results = module.nodes().flat_map(|(_, node)| node.results.iter().copied());
    let values = module.inputs.iter().map(|input| input.value).chain(results);
    let types = values.map(|value| module.ty(value)).chain(module.states.values().map(|state| &state.ty));
    match types.filter(|ty| ty.sizes().is_some()).find(|ty| ty.local(mesh).is_none()) {
        Some(ty) => Err(Diagnostic::new(format!(
            "a value of type {ty} cannot be divided equally over the mesh {mesh}"
        ))),
        None => Ok(()),
    }
}
