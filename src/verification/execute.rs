//! Running a program step by step: in the interpreter, on the CPU backend, or on the stand-in of a GPU.

use super::Mode;
use crate::failure::Failure;
use crate::lowering;
use crate::memory;
use crate::targets;
use crate::training::too_large;
use ir::interp::{self, StateValues};
use ir::tensor::Elements;
use ir::{Blob, DType, Diagnostic, Initializer, Module, Role, State, StateId, StepOutput, Tensor, Type};
use passes::precision::SCALE;
use program::Target;
use program::device::DeviceError;
use program::lower::LowerOptions;
use program::{Microbatches, StagePrograms, UpdateTime};
use ranks::Ranks;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// The outputs of a step, and the states after it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Execution {
    /// The tensors of each output: one for each microbatch, or one for the whole step.
    pub outputs: interp::StepOutputs,
    /// The states after the step.
    pub states: Tensors,
}

impl Execution {
    /// The last tensors of the outputs that are wanted.
    pub fn last_outputs(&self, wanted: impl Fn(&str) -> bool) -> Tensors {
        let wanted = self.outputs.iter().filter(|(name, _)| wanted(name));
        wanted.filter_map(|(name, values)| Some((name.clone(), values.last()?.clone()))).collect()
    }

    /// The gradients of the step.
    pub fn gradients(&self) -> Tensors {
        self.last_outputs(|name| StepOutput::gradient_of(name).is_some())
    }

    /// The loss scale of the step, if the loss is scaled.
    pub fn loss_scale(&self) -> Option<f64> {
        self.last(StepOutput::LossScale).map(Tensor::item)
    }

    /// Whether the gradients are not finite even at the smallest loss scale.
    pub fn overflows(&self) -> bool {
        self.says(StepOutput::ScaleExhausted)
    }

    fn last(&self, output: StepOutput) -> Option<&Tensor> {
        self.outputs.get(&output.to_string())?.last()
    }

    fn says(&self, output: StepOutput) -> bool {
        self.last(output).is_some_and(|said| said.numbers().iter().any(|&number| number != 0.0))
    }

    /// The mean loss of the step.
    pub fn loss(&self) -> Option<f64> {
        self.last(StepOutput::Loss).filter(|loss| loss.len() == 1).map(Tensor::item)
    }
}

const REMEDY: &str =
    "a smaller --microbatch, a smaller --bind or a smaller model of the same layers needs less memory";

/// A program with its current states.
pub struct Machine<'m> {
    module: &'m Module,
    runs_on: RunsOn,
}

enum RunsOn {
    Interpreter(interp::Mode, StateValues),
    Ranks(Ranks),
}

impl<'m> Machine<'m> {
    /// A program before step 0, for steps of `microbatches` microbatches. Its states have the values of `start` that have the state's sizes, or
    /// else those of the model's file. A later pass may have padded a state, so that its sizes differ.
    ///
    /// # Errors
    /// States without weights; a program that the backend cannot run; a step that does not fit into the memory.
    pub fn new(
        module: &'m Module,
        mode: Mode,
        microbatches: usize,
        start: &Tensors,
    ) -> Result<Self, Failure> {
        Self::with(module, mode, microbatches, UpdateTime::Late, start)
    }

    /// As [`Machine::new`], with this time of updates. It changes only programs on devices: the interpreter runs phase after phase.
    ///
    /// # Errors
    /// As of [`Machine::new`].
    pub fn with(
        module: &'m Module,
        mode: Mode,
        microbatches: usize,
        update: UpdateTime,
        start: &Tensors,
    ) -> Result<Self, Failure> {
        match mode {
            Mode::Exact | Mode::Typed => {
                memory::check_step(module, microbatches, REMEDY)?;
                let mode = if mode == Mode::Exact { interp::Mode::Exact } else { interp::Mode::Typed };
                Ok(Self { module, runs_on: RunsOn::Interpreter(mode, initial(module, start)?) })
            }
            // Each of several devices is a rank with a thread of its own.
            Mode::On(target) => {
                let rehearse = |programs| targets::backend(target).rehearse(programs);
                Self::on_ranks(module, options(target, microbatches, update), start, rehearse)
            }
        }
    }

    /// A program that is lowered for a target, on the ranks that `make` opens. The target may be that of any backend.
    ///
    /// # Errors
    /// As of [`Machine::new`].
    pub fn on(
        module: &'m Module,
        target: Target,
        microbatches: usize,
        start: &Tensors,
        make: impl FnOnce(StagePrograms) -> Result<Ranks, DeviceError>,
    ) -> Result<Self, Failure> {
        Self::on_ranks(module, options(target, microbatches, UpdateTime::Late), start, make)
    }

    fn on_ranks(
        module: &'m Module,
        options: LowerOptions,
        start: &Tensors,
        make: impl FnOnce(StagePrograms) -> Result<Ranks, DeviceError>,
    ) -> Result<Self, Failure> {
        let states = initial(module, start)?;
        let mut ranks = make(lowering::lower_stages(module, &options)?).map_err(refused)?;
        for (id, value) in states {
            ranks.write_named_state(&module.states[id].name, &value.to_bytes()).map_err(refused)?;
        }
        Ok(Self { module, runs_on: RunsOn::Ranks(ranks) })
    }

    /// Runs a step. `microbatches` has the inputs of each microbatch.
    ///
    /// # Errors
    /// Inputs that are missing or do not fit.
    pub fn step(&mut self, microbatches: &[Tensors]) -> Result<Execution, Failure> {
        match &mut self.runs_on {
            RunsOn::Interpreter(mode, states) => {
                let outputs = interp::step(self.module, *mode, states, microbatches)?;
                Ok(Execution { outputs, states: named(self.module, states.clone()) })
            }
            RunsOn::Ranks(ranks) => step_on(ranks, microbatches),
        }
    }

    /// Runs a last step, as [`Machine::step`], but without a second copy of the states.
    pub fn last_step(mut self, microbatches: &[Tensors]) -> Result<Execution, Failure> {
        match self.runs_on {
            RunsOn::Interpreter(mode, mut states) => {
                let outputs = interp::step(self.module, mode, &mut states, microbatches)?;
                Ok(Execution { outputs, states: named(self.module, states) })
            }
            RunsOn::Ranks(_) => self.step(microbatches),
        }
    }
}

/// Runs one step of a program. If its gradients overflow, the step is run again with a smaller loss scale, as in a training run, until it is
/// not skipped: a skipped step has nothing to compare.
///
/// # Errors
/// As of [`Machine::new`].
pub fn finite_step(
    module: &Module,
    mode: Mode,
    microbatches: &[Tensors],
    start: &Tensors,
    update: UpdateTime,
    backoff: f64,
) -> Result<Execution, Failure> {
    let mut start = Cow::Borrowed(start);
    loop {
        let execution =
            Machine::with(module, mode, microbatches.len(), update, &start)?.last_step(microbatches)?;
        match execution.loss_scale() {
            Some(scale) if execution.says(StepOutput::Skipped) && !execution.overflows() => {
                let smaller = Tensor::splat(DType::F32, vec![], scale * backoff);
                start.to_mut().insert(SCALE.to_owned(), smaller);
            }
            _ => return Ok(execution),
        }
    }
}

fn named(module: &Module, states: StateValues) -> Tensors {
    states.into_iter().map(|(id, value)| (module.states[id].name.clone(), value)).collect()
}

/// The states before step 0.
fn initial(module: &Module, start: &Tensors) -> Result<StateValues, Failure> {
    let given = |state: &State| {
        let sizes = state.ty.sizes()?;
        let fits = |given: &&Tensor| given.sizes.iter().map(|&size| size as u64).eq(sizes.iter().copied());
        start.get(&state.name).filter(fits).cloned()
    };
    let mut states = interp::initial_states_but(module, 0, interp::Missing::Refuse, given)?;
    let mut ages: BTreeMap<StateId, u32> = BTreeMap::new();
    for (id, state) in module.states.iter().filter(|(_, state)| state.role == Role::Version) {
        let Initializer::CopyOf(newest) = state.initializer else { continue };
        let age = ages.entry(newest).or_default();
        *age += 1;
        if given(state).is_none() {
            let value = states.get(&newest).map(|value| earlier(value, *age));
            states.extend(value.map(|value| (id, value)));
        }
    }
    Ok(states)
}

/// The value of an earlier version of a state: the value of the state, times a factor for the age. In a training run all versions are equal
/// before step 0, so a program that reads the wrong version would not be noticed.
pub(super) fn earlier(newest: &Tensor, age: u32) -> Tensor {
    let mut value = newest.clone();
    if let Elements::Float(numbers) = &mut value.elements {
        numbers.iter_mut().for_each(|number| *number *= 1.0 + f64::from(age) / 16.0);
    }
    value.rounded()
}

/// The options by which a run of `microbatches` microbatches lowers a program, with this time of updates.
fn options(target: Target, microbatches: usize, update: UpdateTime) -> LowerOptions<'static> {
    let microbatches = if microbatches == 1 { Microbatches::One } else { Microbatches::Many };
    LowerOptions { microbatches, update, ..LowerOptions::of(target) }
}

fn step_on(ranks: &mut Ranks, microbatches: &[Tensors]) -> Result<Execution, Failure> {
    let bytes = |(name, tensor): (&String, &Tensor)| (name.clone(), tensor.to_bytes());
    let fed: Vec<_> = microbatches.iter().map(|microbatch| microbatch.iter().map(bytes).collect()).collect();
    let mut execution = Execution::default();
    let tensor = |ty: &Type, bytes: &[u8]| {
        let error = || anyhow::anyhow!("the device gives {} bytes for {ty}", bytes.len());
        Tensor::from_bytes(ty, bytes).ok_or_else(error)
    };
    for (name, (ty, values)) in ranks.step_named(&fed).map_err(refused)? {
        let values = values.iter().map(|bytes| tensor(&ty, bytes)).collect::<Result<Vec<_>, _>>()?;
        execution.outputs.insert(name, values);
    }
    for slot in ranks.states() {
        let bytes = ranks.read_named_state(&slot.name).map_err(refused)?;
        execution.states.insert(slot.name.clone(), tensor(&slot.ty, &bytes)?);
    }
    Ok(execution)
}

/// The failure for an error of a device, such as wrong sizes or too little memory. It is a mistake of the user.
fn refused(error: DeviceError) -> Failure {
    let diagnostic = Diagnostic::from(&error);
    match too_large(&error) {
        Some(large) => diagnostic.note(large.told()).into(),
        None => diagnostic.into(),
    }
}

/// Replaces the values of tensors of a program's file. Values of tensors in half precision may be given in f32.
pub fn with_tensors(mut module: Module, tensors: &Tensors) -> Module {
    for data in module.data.values_mut() {
        if let Some(tensor) = tensors.get(&data.name) {
            let in_file = Tensor { dtype: data.ty.dtype, ..tensor.clone() };
            data.blob = Blob::File(Some(in_file.to_bytes().into()));
        }
    }
    module
}
